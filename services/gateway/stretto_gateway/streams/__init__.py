"""Streams of the bus: what the gateway reads from them, and what it stores there."""

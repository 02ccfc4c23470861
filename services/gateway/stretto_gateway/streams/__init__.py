"""The streams of the bus: what is read from them, and what the gateway keeps there."""

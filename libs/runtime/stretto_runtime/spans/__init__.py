"""Spans of a service: their places in a trace, and where they go."""

"""Foresees out-of-memory of parameter servers."""

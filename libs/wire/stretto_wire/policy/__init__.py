"""Bounds that an operator sets on what jobs may ask for."""

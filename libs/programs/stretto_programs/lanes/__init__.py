"""Processes on this machine that prepare elements, and the feed that asks them."""

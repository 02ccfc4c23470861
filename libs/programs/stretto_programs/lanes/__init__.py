"""Lanes: processes on this machine that prepare elements of a program's data; and the feed that asks them."""

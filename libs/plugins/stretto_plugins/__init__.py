"""Algorithms on large libraries, as plug-ins of core's decisions; each is imported only when it is chosen."""

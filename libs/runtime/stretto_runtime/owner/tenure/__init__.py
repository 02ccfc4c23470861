"""Whose a partition is, since which term, and who comes next."""

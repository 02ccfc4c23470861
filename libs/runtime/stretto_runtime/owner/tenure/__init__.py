"""Owners of partitions: which replica has one, since which term, and which comes next."""

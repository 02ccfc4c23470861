"""Spans of jobs, from files of this machine and from a collector."""

"""Fits the throughput model of every job, with its error."""

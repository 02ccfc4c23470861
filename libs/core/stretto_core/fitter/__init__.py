"""Fits the throughput model of one job to its measured windows."""

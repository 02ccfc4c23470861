"""Batches that are prepared outside their trainer: who prepares which one, and how they travel."""

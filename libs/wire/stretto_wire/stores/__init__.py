"""Stores of checkpoints, code and data: their URLs and how they are opened."""

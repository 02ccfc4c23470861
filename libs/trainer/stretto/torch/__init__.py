"""Modules of PyTorch: with an argument for rows, or adapted as they are."""

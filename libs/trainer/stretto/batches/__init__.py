"""Prepared batches in the order of training: how they are fed to a step, and how they travel from lanes."""

"""Checkpoints of a job: when they are taken, which one stands, and the way back to it."""

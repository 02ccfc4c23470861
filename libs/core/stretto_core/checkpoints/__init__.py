"""Checkpoints of a job: when, which one stands, the way back. ``facts``: the vocabulary; ``machine``: the decisions."""

"""Profiles of a job from the telemetry of its pods. ``facts``: the vocabulary; ``machine``: the decisions."""

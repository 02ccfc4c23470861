"""Profiles of a job from the telemetry of its pods; detection of stragglers and hot parameter servers."""

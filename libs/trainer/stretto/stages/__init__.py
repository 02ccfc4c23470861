"""Stages: workers that compute layers for other workers, which read samples and pull rows."""

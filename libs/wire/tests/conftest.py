"""Hypothesis without a deadline: a busy machine must not fail a generated test."""

from hypothesis import settings

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")

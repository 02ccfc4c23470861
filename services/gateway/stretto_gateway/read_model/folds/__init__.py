"""Folds of events into the view of their job, by what an event is about."""

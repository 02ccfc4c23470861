"""Folds of one event each into the view of its job, by what the event is about."""

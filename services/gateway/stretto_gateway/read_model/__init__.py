"""Views of jobs, folded from events."""

"""The read model: views of all jobs, folded from events, and readings of those views."""

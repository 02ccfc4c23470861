"""Commands that start, change and end jobs."""

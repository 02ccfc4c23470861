"""The job's specification: its fields, their bounds, the file that a user writes."""

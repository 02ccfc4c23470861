"""The size of programs of which nobody knows the samples."""

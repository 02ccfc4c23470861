"""The state of a partition's machines in the bucket: its form, what is saved when, and how it is read again."""

"""Places in the data, kept beside the checkpoints of a program; its data go on there after a restore."""

"""`--resume`: places of a program in its data, kept beside its checkpoints, where its data go on after a restore."""

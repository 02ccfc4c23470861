"""`--resume`: the places of a program in its data are kept beside its checkpoints, and its data go on there after a
restore.
"""

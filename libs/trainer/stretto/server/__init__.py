"""A parameter server and its agent on the bus, with flash checkpoints of its columns."""

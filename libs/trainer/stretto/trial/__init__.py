"""A model and its data tried on one machine, without a bus or services."""

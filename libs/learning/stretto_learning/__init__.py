"""Placement by reinforcement learning on TensorFlow, as a plug-in of core's decision; loaded only when it is chosen."""

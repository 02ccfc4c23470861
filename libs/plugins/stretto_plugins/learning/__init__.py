"""Placement by reinforcement learning on TensorFlow (HeterPS §5.2)."""

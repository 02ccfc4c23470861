"""Graphs and pipelines of TensorFlow: read, without calls, and traced while they run."""

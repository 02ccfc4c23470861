"""Graphs and tf.data pipelines of TensorFlow, read for the partition, and traced while they run."""

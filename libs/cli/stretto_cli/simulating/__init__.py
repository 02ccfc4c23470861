"""The simulator as commands: one module for each kind of cluster, and what they show while they run and afterwards."""

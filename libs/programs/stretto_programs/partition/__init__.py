"""The parts of a training step that can be prepared elsewhere: effects, state and cut (GoldMiner, section 3.2).

Graphs of TensorFlow are read in `normalise` and `reading` only; everything else is pure.
"""

"""Decisions about the step of a program: which part can be prepared elsewhere, and should (GoldMiner, section 3.2).

Everything here is pure and free of TensorFlow, whose graphs are read in `graphs`.
"""

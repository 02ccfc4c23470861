"""Training programs that nobody here wrote: run up to their first step, whose graph is taken.

No file of the program is touched: hooks stand in TensorFlow and Keras while the script runs.
"""

"""Programs of TensorFlow with data workers: hooks in Keras `fit`, in loops over data sets, and in functions of
iterators.
"""

"""Programs of TensorFlow with data workers: hooks in Keras `fit`, loops over data sets, and functions of iterators."""

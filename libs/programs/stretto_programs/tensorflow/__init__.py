"""Programs of TensorFlow with data workers: hooks in Keras fit and in loops over data sets."""

"""What a training script imports: elastic parameter-server training on TensorFlow."""

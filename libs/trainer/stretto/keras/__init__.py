"""Models of Keras 3: with an input for rows, or adapted as they are."""

"""A Keras program as users write them: lines of text, decoded by tf.data; lookups and hashes are layers of the model.

lookups.py FILE STEPS WARM_S; its last line of output is the clock's.
"""

import sys

import keras
import tensorflow as tf
from clock import Clock

NUMBERS, TEXTS, BATCH, BINS = 13, 26, 2048, 2000
STEPS_MAX = 1_000_000
WORDS = [f"{number:08x}" for number in range(1000)]


class Watch(keras.callbacks.Callback):
    """Looks at the clock behind each step of `fit`."""

    def __init__(self, steps, warm_s):
        super().__init__()
        self.clock = Clock(steps, warm_s)

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = self.clock.is_over_behind_step()


def decoded(lines):
    columns = tf.io.decode_csv(lines, [[0.0]] * (1 + NUMBERS) + [[""]] * TEXTS)
    numbers = tf.math.log1p(tf.stack(columns[1 : 1 + NUMBERS], 1))
    return {"numbers": numbers, "texts": tf.stack(columns[1 + NUMBERS :], 1)}, columns[0]


def main(file, steps, warm_s):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    data = tf.data.TextLineDataset(file).repeat().batch(BATCH, drop_remainder=True).map(decoded).prefetch(2)
    numbers, texts = keras.Input((NUMBERS,), name="numbers"), keras.Input((TEXTS,), dtype="string", name="texts")
    known = keras.layers.Embedding(len(WORDS) + 1, 4)(keras.layers.StringLookup(vocabulary=WORDS)(texts))
    hashed = keras.layers.Embedding(BINS, 8)(keras.layers.Hashing(BINS)(texts))
    deep = keras.layers.Concatenate()([keras.layers.Flatten()(known), keras.layers.Flatten()(hashed), numbers])
    for units in (64, 32):
        deep = keras.layers.Dense(units, "relu")(deep)
    model = keras.Model({"numbers": numbers, "texts": texts}, keras.layers.Dense(1, "sigmoid")(deep))
    model.compile("sgd", "binary_crossentropy", jit_compile=False)
    model.fit(data, steps_per_epoch=STEPS_MAX, verbose=0, callbacks=[Watch(steps, warm_s)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))

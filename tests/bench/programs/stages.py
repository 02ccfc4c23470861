"""A Keras program as users write them: texts are cleaned and hashed by tf.data, on the CPU; the model projects what
they give by fixed matrices, as on an accelerator, before its trained layers.

stages.py GO SECONDS; it makes the file GO.ready behind its 200th step, and waits behind each step until the file GO is
there; then it trains without waits. The last line of output has the steps per second since then, and digests of the
variables by step.
"""

import hashlib
import json
import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf

BATCH, TEXTS, CLEANINGS, BINS = 64, 64, 24, 1000
ROWS, MATRICES = 256, 30
EVERY = 10
"""Steps from one digest to the next."""
STEPS_MAX, WARM, WAIT_S, SETTLE = 1_000_000, 200, 0.1, 5


class Projection(keras.layers.Layer):
    """Multiplies by fixed matrices, one after another."""

    def __init__(self):
        super().__init__()
        chance = np.random.default_rng(5)
        self.first = (chance.normal(size=(TEXTS, ROWS)) / TEXTS).astype(np.float32)
        self.matrices = (chance.normal(size=(MATRICES, ROWS, ROWS)) / ROWS**0.5).astype(np.float32)

    def call(self, values):
        found = tf.matmul(values, self.first)
        for matrix in self.matrices:
            found = tf.tanh(tf.matmul(found, matrix))
        return found[:, :16]


class Clock(keras.callbacks.Callback):
    """Waits behind each step until it may go on; then measures for so many seconds."""

    def __init__(self, go, seconds):
        super().__init__()
        self.go, self.seconds, self.begun, self.left = go, seconds, None, SETTLE
        self.digests = {}

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % EVERY == 0:
            found = hashlib.sha256(b"".join(each.numpy().tobytes() for each in self.model.variables))
            self.digests[batch + 1] = found.hexdigest()
        if batch == WARM:
            open(f"{self.go}.ready", "w").close()
        if not os.path.exists(self.go):
            time.sleep(WAIT_S)
            return
        self.left -= 1
        if self.left == 0:
            self.begun = batch, time.perf_counter()
        elif self.begun is not None and time.perf_counter() - self.begun[1] >= self.seconds:
            first, begun_s = self.begun
            per_s = (batch - first) / (time.perf_counter() - begun_s)
            print(json.dumps({"per_s": per_s, "first": first, "digests": self.digests}), flush=True)
            self.model.stop_training = True


def cleaned(numbers):
    texts = tf.strings.as_string(numbers[:, tf.newaxis] * 7919 + tf.range(TEXTS, dtype=tf.int64) * 104729)
    for number in range(CLEANINGS):
        texts = tf.strings.regex_replace(texts, f"[{number % 10}{(number + 1) % 10}]", str(number * 7 % 10))
    hashed = tf.strings.to_hash_bucket_fast(texts, BINS)
    return tf.cast(hashed, tf.float32) / BINS, numbers % 2


def main(go, seconds):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(3)
    data = tf.data.Dataset.range(BATCH * 1000).repeat().batch(BATCH, drop_remainder=True).map(cleaned)
    values = keras.Input((TEXTS,))
    joined = keras.layers.Concatenate()([Projection()(values), values])
    model = keras.Model(values, keras.layers.Dense(1, "sigmoid")(joined))
    model.compile("sgd", "binary_crossentropy", jit_compile=False)
    model.fit(data, steps_per_epoch=STEPS_MAX, verbose=0, callbacks=[Clock(go, seconds)])


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))

"""A Keras program as users write them: lines of text, decoded by tf.data; lookups and hashes are layers of the model.

lookups.py FILE STEPS WARM_S; the last line of output has this process's CPU for a step while it waits behind each, and
the steps per second without that.
"""

import json
import sys
import time

import keras
import tensorflow as tf

NUMBERS, TEXTS, BATCH, BINS = 13, 26, 2048, 2000
STEPS_MAX, WAIT_S = 1_000_000, 0.1
WORDS = [f"{number:08x}" for number in range(1000)]


class Clock(keras.callbacks.Callback):
    """Waits behind each step, as for an accelerator, for STEPS steps after the warm-up; then trains as many without."""

    def __init__(self, steps, warm_s):
        super().__init__()
        self.steps, self.warm_s, self.marks, self.left = steps, warm_s, [], 0

    def on_train_begin(self, logs=None):
        self.begun_s = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        if len(self.marks) < 2:
            time.sleep(WAIT_S)
        self.left -= 1
        if self.left <= 0 and time.perf_counter() - self.begun_s >= self.warm_s:
            self.marks.append((time.perf_counter(), time.process_time()))
            self.left = self.steps
        if len(self.marks) == 3:
            self.tell()
            self.model.stop_training = True

    def tell(self):
        (_, begun_cpu_s), (middle_s, middle_cpu_s), (ended_s, _) = self.marks
        cpu_ms = 1000 * (middle_cpu_s - begun_cpu_s) / self.steps
        print(json.dumps({"per_s": self.steps / (ended_s - middle_s), "cpu_ms": cpu_ms}), flush=True)


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
    model.fit(data, steps_per_epoch=STEPS_MAX, verbose=0, callbacks=[Clock(steps, warm_s)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))

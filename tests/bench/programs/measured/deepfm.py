"""A program in the form of DeepFM: each text column is hashed by a layer, and crossed with the next three.

deepfm.py FILE STEPS WARM_S; as lookups.py.
"""

import sys

import keras
import lookups
import tensorflow as tf
from lookups import BATCH, NUMBERS, STEPS_MAX, TEXTS, Watch

BINS, WIDTH, NEXT = 5000, 8, 3


def decoded(lines):
    inputs, label = lookups.decoded(lines)
    texts = tf.unstack(inputs["texts"], TEXTS, 1)
    return {"numbers": inputs["numbers"], **{f"text{place}": each for place, each in enumerate(texts)}}, label


def main(file, steps, warm_s):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    data = tf.data.TextLineDataset(file).repeat().batch(BATCH, drop_remainder=True).map(decoded).prefetch(2)
    numbers = keras.Input((NUMBERS,), name="numbers")
    texts = [keras.Input((), dtype="string", name=f"text{place}") for place in range(TEXTS)]
    ids = [keras.layers.Hashing(BINS)(each) for each in texts]
    crosses = [
        keras.layers.HashedCrossing(BINS)((one, [*texts, *texts][place + ahead]))
        for place, one in enumerate(texts)
        for ahead in range(1, NEXT + 1)
    ]
    ids = keras.ops.stack([*ids, *crosses], 1)
    first = keras.ops.sum(keras.layers.Embedding(BINS, 1)(ids), 1)
    rows = keras.layers.Embedding(BINS, WIDTH)(ids)
    pairs = keras.ops.square(keras.ops.sum(rows, 1)) - keras.ops.sum(keras.ops.square(rows), 1)
    deep = keras.layers.Concatenate()([keras.layers.Flatten()(rows), numbers])
    for units in (64, 32):
        deep = keras.layers.Dense(units, "relu")(deep)
    logits = first + keras.ops.sum(pairs, 1, keepdims=True) + keras.layers.Dense(1)(deep)
    model = keras.Model([numbers, *texts], keras.layers.Activation("sigmoid")(logits))
    model.compile("sgd", "binary_crossentropy", jit_compile=False)
    model.fit(data, steps_per_epoch=STEPS_MAX, verbose=0, callbacks=[Watch(steps, warm_s)])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))

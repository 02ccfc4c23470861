"""Programs that decode and hash lines of text, in tf.data or in the function of a step, and train a small model.

loops.py FILE STEPS WARM_S WAY; as lookups.py. The ways: `fit` by Keras, a `function` of an iterator, a function that
hashes in its `step`, and a loop over `elements`.
"""

import sys

import keras
import tensorflow as tf
from clock import Clock
from lookups import BATCH, NUMBERS, STEPS_MAX, TEXTS, Watch, decoded

BINS, WIDTH = 20_000, 8


def hashed(inputs, label):
    texts = tf.strings.lower(inputs["texts"])
    crosses = tf.strings.join([texts, tf.roll(texts, 1, 1)])
    ids = [tf.strings.to_hash_bucket_strong(each, BINS, [1, 2]) for each in (texts, crosses)]
    return {"numbers": inputs["numbers"], "ids": tf.concat(ids, 1)}, label


def main(file, steps, warm_s, way):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    data = tf.data.TextLineDataset(file).repeat().batch(BATCH, drop_remainder=True).map(decoded)
    data = data if way == "step" else data.map(hashed)
    numbers, ids = keras.Input((NUMBERS,), name="numbers"), keras.Input((2 * TEXTS,), dtype="int64", name="ids")
    deep = keras.layers.Concatenate()([keras.layers.Flatten()(keras.layers.Embedding(BINS, WIDTH)(ids)), numbers])
    for units in (32, 16):
        deep = keras.layers.Dense(units, "relu")(deep)
    model = keras.Model({"numbers": numbers, "ids": ids}, keras.layers.Dense(1, "sigmoid")(deep))
    model.compile("sgd", "binary_crossentropy", jit_compile=False)
    if way == "fit":
        model.fit(data, steps_per_epoch=STEPS_MAX, verbose=0, callbacks=[Watch(steps, warm_s)])
        return
    optimizer, loss_of = keras.optimizers.SGD(), keras.losses.BinaryCrossentropy()
    optimizer.build(model.trainable_variables)

    @tf.function
    def train(inputs, label):
        with tf.GradientTape() as tape:
            loss = loss_of(label[:, None], model(inputs))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    @tf.function
    def step(iterator):
        element = next(iterator)
        return train(*(hashed(*element) if way == "step" else element))

    clock, iterator = Clock(steps, warm_s), iter(data)
    while True:
        _ = train(*next(iterator)) if way == "elements" else step(iterator)
        if clock.is_over_behind_step():
            return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])

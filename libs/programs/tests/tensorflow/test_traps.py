"""Small programs of TensorFlow 2 that a careless split would change, under `python -m stretto_programs.run`.

These are programs of `tests/capture/test_traps.py`, run to their end: as steps of a function and as a loop, twice.
Programs of which nothing may move, whatever it costs, are in `test_loops.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from program_harness import FREE, compared, steps_of
from program_texts import MEET

pytestmark = [pytest.mark.slow, pytest.mark.night]

STEPS = (
    MEET
    + '''
import hashlib, sys
import tensorflow as tf
tf.random.set_seed(7)
rows = tf.Variable(tf.random.uniform([50, 4]))
shift = tf.Variable(3, dtype=tf.int64)
fixed = tf.Variable(3, dtype=tf.int64, trainable=False)

def tell(name, *variables):
    for variable in (rows, *variables):
        print(name, hashlib.sha256(variable.numpy().tobytes()).hexdigest(), flush=True)

def raw(count=150):
    return tf.data.Dataset.range(count)

def hashed(number):
    return tf.strings.to_hash_bucket_fast(tf.strings.as_string(number), 50)

def train(keys):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(rows, keys) ** 2)
    rows.assign_sub(0.01 * tf.convert_to_tensor(tape.gradient(loss, rows)))

def run(name, dataset, prepare=tf.identity, *variables):
    """Train for two passes by the iterator, and for one by elements."""
    print(name, file=sys.stderr)
    @tf.function
    def step(iterator):
        train(prepare(next(iterator)))
    @tf.function(reduce_retracing=True)
    def element_step(element):
        train(prepare(element))
    for _ in range(2):
        iterator = iter(dataset)
        for _ in range(19):
            try:
                step(iterator)
            except tf.errors.OutOfRangeError:
                break
        tell(name, *variables)
    for place, element in enumerate(dataset):
        element_step(element)
        if place == 18:
            break
    tell(name, *variables)

run("pure", raw().shuffle(30, seed=1).map(hashed).batch(8))
meet(1)
run("pure again", raw().shuffle(30, seed=1).map(hashed).batch(8))

def noisy(number):
    return number + tf.random.uniform([], 0, 9, tf.int64)
run("random map", raw().map(noisy).map(hashed).batch(8))
def printed(number):
    tf.print("printed", number, output_stream=sys.stdout)
    return hashed(number)
run("printing map", raw(60).map(printed).batch(8))
run("cache", raw().map(hashed).cache().map(lambda key: key % 40).shuffle(9, seed=2).batch(8).map(lambda key: key + 1))
run("last partial batch", raw(149).map(hashed).repeat(2).batch(8))
run("trained variable in a map", raw().map(
    lambda number: (hashed(number) + tf.cast(tf.gather(rows, 1)[0] > 0.5, tf.int64)) % 50).batch(8))
words = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(list("abc"), [1, 2, 3]), 0)
run("static table", raw().map(lambda number: words.lookup(tf.gather(list("abc"), number % 3))).batch(8))

seen = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=0)
def remembered(keys):
    keys = hashed(keys)
    found = seen.lookup(keys)
    seen.insert(keys, found + 1)
    return tf.minimum(found, 49)
run("written table", raw().batch(8), remembered)
print(sorted(seen.export()[1].numpy().tolist()))
centres = tf.Variable(tf.random.uniform([50]))
def nearest(keys):
    with tf.GradientTape() as tape:
        distance = tf.reduce_sum((centres - tf.cast(hashed(keys), tf.float32)[:, None]) ** 2)
    centres.assign_sub(0.01 * tape.gradient(distance, centres))
    return tf.argmin(tf.abs(centres - tf.cast(hashed(keys), tf.float32)[:, None]), 1)
run("vocabulary that the gradient feeds", raw().batch(8), nearest, centres)
run("trainable variable", raw().batch(8), lambda keys: tf.abs(tf.maximum(hashed(keys), fixed) - shift))
fixed.assign(30)
run("variable written between steps", raw().batch(8), lambda keys: tf.maximum(hashed(keys), fixed))
mean = tf.Variable(0.0, trainable=False)
def adapted(keys):
    values = tf.cast(hashed(keys), tf.float32)
    mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(values))
    return tf.cast(tf.clip_by_value(values - mean, 0, 49), tf.int64)
run("adapted while it trains", raw().batch(8), adapted, mean)
def random_step(keys):
    return (hashed(keys) + tf.random.uniform(tf.shape(keys), 0, 9, tf.int64)) % 50
run("random step", raw(144).batch(8), random_step)
def printed_step(keys):
    keys = hashed(keys)
    with tf.control_dependencies([tf.print("keys", tf.reduce_max(keys), output_stream=sys.stdout)]):
        return tf.abs(keys)
run("printing step", raw(60).batch(8), printed_step)
def dense(keys):
    return tf.reduce_max(hashed(keys).to_tensor(), 1) % 50
run("ragged", raw().map(lambda number: tf.range(number % 3 + 1)).ragged_batch(8), dense)
def sparse(keys):
    cells = tf.sparse.from_dense(tf.strings.as_string(keys))
    return tf.sparse.to_dense(tf.sparse.map_values(tf.strings.to_hash_bucket_fast, cells, 50))[:, 0]
run("sparse", raw().map(lambda number: number + tf.range(4, dtype=tf.int64)).batch(8), sparse)
run("sparse elements", raw().map(lambda number: tf.sparse.from_dense([hashed(number), 0])).batch(8), tf.sparse.to_dense)
'''
)
KERAS = """
import keras
class Adapting(keras.layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(shape=(), trainable=False, initializer="zeros")
    def call(self, keys):
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(keras.ops.cast(keys, "float32")))
        return keras.ops.clip(keras.ops.cast(keys, "float32") - self.mean, 0, 49)
keras.utils.set_random_seed(7)
keys = keras.Input((1,), dtype="int64")
embedded = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(Adapting()(keras.layers.Hashing(50)(keys))))
model = keras.Model(keys, keras.layers.Dense(1)(keras.layers.Dropout(0.2)(embedded)))
model.compile("sgd", "mse")
data = raw(300).map(lambda number: (number[None] % 50, tf.cast(number, tf.float32)[None] / 300)).shuffle(40).batch(8)
model.fit(data, epochs=2, verbose=0)
for element, _ in data:
    pass
tell("adapted in fit", *model.variables, tf.constant(element))
tell("evaluated", tf.constant(model.evaluate(data, verbose=0)), tf.constant(model.predict(data, verbose=0)))
"""


@pytest.mark.parametrize("free", [False, True])
def test_traps_have_the_numbers_and_the_output_that_they_have_alone(tmp_path: Path, free: bool) -> None:
    """Where crossings are free, all that may move does; with their prices, what such small programs have stays."""
    _, errors = compared(tmp_path, STEPS + KERAS, lanes=2, meet=1 if free else None, free=FREE if free else "")
    if free:
        assert errors.count("data workers can prepare ") > 10
        assert steps_of(errors)[0] > 100

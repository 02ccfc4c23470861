"""Beginnings of programs that several tests run.

A program tells where it is by files, and waits for the test by files.
"""

MEET = '''
import os, time

def meet(step):
    """Wait for the test at a step, if it is there."""
    if "MEET" in os.environ:
        open(f"step-{step}", "w").close()
        while not os.path.exists(f"step-{step}-done"):
            time.sleep(0.01)
'''
DATA = (
    MEET
    + """
import hashlib, sys
import tensorflow as tf
tf.random.set_seed(7)

def raw(count=600):
    return tf.data.Dataset.range(count)

def parsed(number):
    words = tf.strings.join(["w\\0", tf.strings.as_string(tf.range(number, number + 400) % 50)])
    return words[:3], number % 2
"""
)
"""A data set, and a map of it that takes some milliseconds of CPU."""
LOOPS = (
    DATA
    + """
rows = tf.Variable(tf.random.uniform([50, 4]))
traces = []

def tell(name, *more):
    print(name, hashlib.sha256(rows.numpy().tobytes()).hexdigest(), *more, flush=True)

def texts(element):
    return hashlib.sha256(b"".join(element[0].numpy().reshape(-1).tolist())).hexdigest()[:8]

def train(words, label, rate=0.1):
    keys = tf.strings.to_hash_bucket_fast(words, 50)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((tf.reduce_sum(tf.gather(rows, keys), [1, 2]) - tf.cast(label, tf.float32)) ** 2)
    rows.assign_sub(0.001 * rate * tf.convert_to_tensor(tape.gradient(loss, rows)))
    return loss

@tf.function
def step(iterator):
    traces.append("step")
    return train(*next(iterator))

@tf.function
def element_step(words, label):
    traces.append("element_step")
    return train(words, label)
"""
)
"""Steps of a training loop: of an iterator, and of an element."""
KERAS = (
    DATA
    + '''
import keras, numpy as np
keras.utils.set_random_seed(7)

class Meets(keras.callbacks.Callback):
    """Waits for the test at a step, if it is there."""
    def __init__(self, *steps):
        self.steps = list(steps)
        self.seen = 0
    def on_train_batch_end(self, step, logs):
        self.seen += 1
        if self.steps and self.seen >= self.steps[0]:
            meet(self.steps.pop(0))

def tell(name, model):
    found = hashlib.sha256()
    for each in [*model.variables, *model.optimizer.variables]:
        found.update(each.numpy().tobytes())
    print(name, found.hexdigest(), flush=True)
'''
)
"""A callback that waits for the test, and the variables of a model."""
FITS = (
    KERAS
    + """
def made(**how):
    text = keras.Input((3,), dtype="string")
    rows = keras.layers.Flatten()(keras.layers.Embedding(30, 4)(keras.layers.Hashing(30)(text)))
    model = keras.Model(text, keras.layers.Dense(1, "sigmoid")(keras.layers.Dropout(0.1)(rows)))
    model.compile("adam", "binary_crossentropy", **how)
    return model

def fit(name, data, model=None, **how):
    model = model or made()
    print(name, file=sys.stderr)
    model.fit(data, verbose=0, **how)
    tell(name, model)
    return model
"""
)
"""A small model, and a function that fits one and tells its variables."""

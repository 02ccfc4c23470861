"""Steps in two parts, cut where the partition says: the same variables as in one part, to the last bit.

The first part makes the tensors that cross; the second takes them and does the rest. With free crossings everything
that may move does, which is the hardest case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from stretto_programs.capture.analysis import Explained
from stretto_programs.graphs.pruning import ImportedGraph
from stretto_programs.splitting.halves import Halves, halves_of

pytestmark = pytest.mark.slow
STEPS = 4

HEAD = """
import keras
import numpy as np
import tensorflow as tf
keras.utils.clear_session()  # names of variables begin anew
keras.utils.set_random_seed(7)

def raw():
    return tf.data.Dataset.range(200).shuffle(50, seed=3)

def hashed(number):
    return tf.strings.to_hash_bucket_fast(tf.strings.as_string(number), 50)
"""
TF2 = {
    "keras": """
words = keras.layers.StringLookup(vocabulary=[f"w{n}" for n in range(40)])
text, amount = keras.Input((5,), dtype="string"), keras.Input((3,))
numbers = keras.layers.Normalization()
numbers.adapt(np.arange(12.0).reshape(4, 3))
rows = [keras.layers.Embedding(41, 4)(words(text)), keras.layers.Embedding(30, 4)(keras.layers.Hashing(30)(text))]
amounts = keras.layers.BatchNormalization()(numbers(amount))
joined = keras.layers.Concatenate()([*map(keras.layers.Flatten(), rows), amounts])
model = keras.Model([text, amount], keras.layers.Dense(1, "sigmoid")(keras.layers.Dropout(0.2)(joined)))
model.compile("adam", "binary_crossentropy", metrics=["auc"])
def parsed(number):
    text = tf.strings.join(["w", tf.strings.as_string(tf.range(number, number + 5) % 50)])
    return (text, tf.cast([number, 1, 2], tf.float32)), number % 2
model.fit(raw().map(parsed).batch(16), verbose=0)
""",
    "function": """
table = tf.Variable(tf.random.stateless_normal([50, 4], [1, 2]))
count = tf.Variable(0, trainable=False, dtype=tf.int64)
seen = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=0)
@tf.function
def prepared(keys):
    keys = hashed(keys)
    tf.debugging.assert_less(keys, tf.constant(50, tf.int64))
    unique, places = tf.unique(keys)
    return unique, places, tf.cond(tf.reduce_any(keys > 25), lambda: keys, lambda: keys + 1)
@tf.function
def step(iterator):
    number, label = next(iterator)
    unique, places, other = prepared(number)
    old = seen.lookup(other)
    seen.insert(other, old + 1)
    with tf.control_dependencies([count.assign_add(tf.size(unique, tf.int64))]):
        with tf.GradientTape() as tape:
            rows = tf.gather(tf.gather(table, unique), places)
            loss = tf.reduce_mean((tf.reduce_sum(rows, 1) - label - tf.cast(old % 3, tf.float32)) ** 2)
    table.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, table)))
    return loss
iterator = iter(raw().map(lambda n: (n, tf.cast(n % 2, tf.float32))).batch(16))
step(iterator)
""",
    "sparse": """
table = tf.Variable(tf.random.stateless_normal([50, 4], [1, 2]))
@tf.function
def step(iterator):
    rows = next(iterator)
    cells = tf.sparse.map_values(tf.strings.to_hash_bucket_fast, tf.sparse.from_dense(tf.strings.as_string(rows)), 50)
    crossed = tf.sparse.cross_hashed([tf.sparse.from_dense(tf.strings.as_string(rows)), rows], 50, 1)
    keys = tf.concat([tf.sparse.to_dense(cells), tf.sparse.to_dense(crossed)], 1)
    ragged = tf.RaggedTensor.from_tensor(keys)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, ragged.to_tensor()) ** 2)
    table.assign_sub(0.001 * tf.convert_to_tensor(tape.gradient(loss, table)))
iterator = iter(raw().map(lambda n: n + tf.range(4, dtype=tf.int64)).batch(16))
step(iterator)
""",
}


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Turn TensorFlow's optimizer of graphs off: it joins other operations in a part than in the whole (1 ulp)."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})


def halves(found: Explained) -> Halves:
    cut = halves_of(found.captured.graph_def, found.partition, found.captured.targets)
    moved = {found.partition.graph.by_name[name].op for name in found.partition.moved}
    assert moved & {node.op for node in cut.first.node}
    assert not {"IteratorGetNext", "AsString", "LookupTableFindV2"} & moved & {node.op for node in cut.second.node}
    return cut


def parts_of(found: Explained) -> Callable[[Any], None]:
    """Return a step of TensorFlow 2 in two parts, as a function of the iterator."""
    cut, step = halves(found), found.captured.step
    handles = {inner.name: outer for outer, inner in step.graph.captures}
    iterator_name = next(each.name for each in step.inputs if each.name not in handles)

    def given(graph_def: Any) -> list[str]:
        names = {f"{node.name}:0" for node in graph_def.node}
        return [name for name in handles if name in names]

    in_first, in_second = given(cut.first), given(cut.second)
    first = ImportedGraph(cut.first).function([iterator_name, *in_first], list(cut.taken))
    fetched = [f"{cut.taken[name]}:0" if name in cut.taken else name for name in found.captured.fetched]
    placeholders = [f"{name}:0" for name in cut.taken.values()]
    second = ImportedGraph(cut.second).function([*placeholders, *in_second], fetched, cut.targets)

    def split(iterator: Any) -> None:
        values = first([iterator._iterator_resource, *(handles[name] for name in in_first)])
        second([*values, *(handles[name] for name in in_second)])

    return split


@pytest.mark.parametrize(
    "program", [pytest.param(name, marks=pytest.mark.night) if name == "keras" else name for name in TF2]
)
def test_a_step_of_tensorflow_2(explain: Callable[..., Explained], program: str) -> None:
    results: list[list[bytes]] = []

    def after(parts: Callable[[Explained], Callable[[Any], None]], steps: int) -> Callable[[Explained], None]:
        def use(found: Explained) -> None:
            assert found.partition.moved
            run, dataset = parts(found), found.captured.iterators[0]._dataset
            iterator = iter(dataset)
            for _ in range(steps):
                run(iterator)
            variables = sorted(found.captured.step.graph.variables, key=lambda each: each.name)
            results.append([each.numpy().tobytes() for each in variables])

        return use

    for parts, steps in (
        (parts_of, STEPS),
        (lambda found: found.captured.step, STEPS),
        (lambda found: found.captured.step, STEPS),
        (lambda found: found.captured.step, STEPS - 1),
    ):
        explain(HEAD, TF2[program], use=after(parts, steps))
    split, whole, again, shorter = results
    assert whole == again  # else nothing could be compared
    assert split == whole
    assert shorter != whole

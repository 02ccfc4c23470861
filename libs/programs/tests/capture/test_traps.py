"""Small programs that a careless partition would change: what stays of each, and the true reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from stretto_programs.capture.analysis import Explained
from stretto_programs.capture.report import document
from stretto_programs.errors import HookMissing, ProgramRefused
from stretto_programs.partition.cut import Prices
from stretto_programs.partition.effects import Effect

pytestmark = pytest.mark.slow

Explain = Callable[..., Explained]

TF2 = """
import tensorflow as tf
table = tf.Variable(tf.zeros([50, 4]))

def raw(count=64):
    return tf.data.Dataset.range(count)

def hashed(number):
    return tf.strings.to_hash_bucket_fast(tf.strings.as_string(number), 50)

def train(keys):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, keys) ** 2)
    table.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, table)))

def run(dataset, prepare=tf.identity):
    @tf.function
    def step(iterator):
        train(prepare(next(iterator)))
    iterator = iter(dataset)
    for _ in range(3):
        step(iterator)
"""
KERAS = """
import keras
import numpy as np
import tensorflow as tf

def fit(dataset, preparation, model=keras.Model, shape=(), dtype="int64", **how):
    keys = keras.Input(shape, dtype=dtype)
    rows = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(preparation(keys)))
    made = model(keys, keras.layers.Dense(1)(rows))
    made.compile("sgd", "mse", **how)
    made.fit(dataset, verbose=0)
"""


def movable(found: Explained) -> set[str]:
    """Return the types of operations that could move."""
    graph = found.partition.graph
    return {graph.by_name[name].op for name in found.partition.state.movable}


def moved_maps(found: Explained) -> int:
    return sum(len(opened.maps) for _, opened in found.opened)


def reasons(found: Explained) -> list[tuple[Effect, str]]:
    return [(each.reason.effect, each.reason.text) for each in found.partition.staying]


def reason_of(found: Explained, op: str) -> Any:
    """Return the reason for which the first operation of a type stays."""
    state = found.partition.state
    name = next(node.name for node in found.partition.graph.nodes if node.op == op and node.name in state.stateful)
    return state.reason(name)


class TestDatasets:
    def test_a_random_map_stays_and_the_pure_one_behind_it_moves(self, explain: Explain) -> None:
        found = explain(TF2, """
def noisy(number):
    return number + tf.random.uniform([], 0, 9, tf.int64)
run(raw().map(noisy).shuffle(9, seed=1).map(hashed).batch(8))
""")  # fmt: skip
        [(_, opened)] = found.opened
        assert [op.kind for op in opened.source] == ["Range", "Map", "Shuffle", "Batch"]
        assert [op.kind for op in opened.stage] == ["Map", "Batch"]
        assert "draws random numbers (RandomUniformInt" in opened.ended_by

    def test_a_map_of_python_stays(self, explain: Explain) -> None:
        found = explain(TF2, """
calls = 0
def counted(number):
    global calls
    calls += 1
    return number + calls
run(raw().map(lambda number: tf.py_function(counted, [number], tf.int64)).map(lambda n: tf.reshape(n, [])).batch(8))
""")  # fmt: skip
        [(_, opened)] = found.opened
        assert len(opened.maps) == 1
        assert "runs Python code of the program, which can keep state of its own (EagerPyFunc" in opened.ended_by

    def test_a_map_that_prints_stays(self, explain: Explain) -> None:
        found = explain(TF2, """
def printed(number):
    tf.print(number)
    return hashed(number)
run(raw().map(printed).batch(8))
""")  # fmt: skip
        [(_, opened)] = found.opened
        assert opened.maps == ()
        assert "prints, writes a summary, or uses a file or a queue (" in opened.ended_by
        assert "PrintV2" in opened.ended_by

    def test_elements_of_a_generator_are_the_source_and_the_map_behind_it_moves(self, explain: Explain) -> None:
        found = explain(TF2, """
def numbers():
    yield from range(64)
signature = tf.TensorSpec([], tf.int64)
run(tf.data.Dataset.from_generator(numbers, output_signature=signature).map(hashed).batch(8))
""")  # fmt: skip
        [(_, opened)] = found.opened
        assert [op.kind for op in opened.stage] == ["Map", "Batch"]
        assert "GeneratorDataset" in opened.ended_by

    def test_an_iterator_that_the_program_checkpoints_is_refused(self, explain: Explain) -> None:
        found = explain(TF2, """
@tf.function
def step(iterator):
    train(hashed(next(iterator)))
iterator = iter(raw().batch(8))
checkpoint = tf.train.Checkpoint(iterator=iterator, table=table)
for _ in range(3):
    step(iterator)
""")  # fmt: skip
        assert found.partition.moved == frozenset()
        assert "the program checkpoints the iterator of its data set" in document(found)["verdict"]

    def test_a_cache_keeps_the_maps_before_it(self, explain: Explain) -> None:
        found = explain(TF2, "run(raw().map(hashed).cache().batch(8).map(lambda key: key * 2))")
        [(_, opened)] = found.opened
        assert len(opened.maps) == 1
        assert opened.ended_by.startswith("Cache")
        assert len(opened.stays) == 1

    def test_an_order_that_is_not_kept_is_not_opened(self, explain: Explain) -> None:
        found = explain(TF2, """
options = tf.data.Options()
options.deterministic = False
run(raw().map(hashed, num_parallel_calls=2).batch(8).with_options(options))
""")  # fmt: skip
        assert moved_maps(found) == 0
        assert "does not keep the order" in found.opened[0][1].ended_by

    def test_a_last_partial_batch_is_no_obstacle(self, explain: Explain) -> None:
        found = explain(TF2, "run(raw(13).repeat().map(hashed).batch(8))")
        assert moved_maps(found) == 1
        [received] = found.partition.crossings.received
        assert found.partition.graph.tensors[received].size_bytes in (8 * 8, 5 * 8)

    def test_a_map_that_reads_a_trained_variable_stays(self, explain: Explain) -> None:
        found = explain(TF2, """
run(raw().map(lambda n: hashed(n) + tf.cast(tf.gather(table, 1)[0] > 5, tf.int64)).batch(8))
""")  # fmt: skip
        assert moved_maps(found) == 0
        assert "reads Variable:0, which the training writes" in found.opened[0][1].ended_by

    def test_a_map_that_reads_a_table_copies_it(self, explain: Explain) -> None:
        found = explain(TF2, """
words = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(list("abc"), [1, 2, 3]), 0)
run(raw().map(lambda n: words.lookup(tf.gather(list("abc"), n % 3))).batch(8))
""")  # fmt: skip
        assert moved_maps(found) == 1
        assert len(found.partition.state.frozen) == 1


class TestSteps:
    def test_a_table_that_training_writes_keeps_its_lookups(self, explain: Explain) -> None:
        found = explain(TF2, """
seen = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=0)
def counted(keys):
    keys = hashed(keys)
    found = seen.lookup(keys)
    seen.insert(keys, found + 1)
    return tf.minimum(found, 49)
run(raw().batch(8), counted)
""")  # fmt: skip
        assert "StringToHashBucketFast" in movable(found)
        assert "LookupTableFindV2" not in movable(found)
        reason = reason_of(found, "LookupTableFindV2")
        assert reason.effect is Effect.READS
        assert "LookupTableInsertV2" in reason.text

    def test_a_vocabulary_that_the_gradient_feeds_keeps_what_reads_it(self, explain: Explain) -> None:
        found = explain(TF2, """
centres = tf.Variable(tf.random.uniform([50]))
def nearest(keys):
    with tf.GradientTape() as tape:
        distance = tf.reduce_sum((centres - tf.cast(hashed(keys), tf.float32)[:, None]) ** 2)
    centres.assign_sub(0.01 * tape.gradient(distance, centres))
    return tf.argmin(tf.abs(centres - tf.cast(hashed(keys), tf.float32)[:, None]), 1)
run(raw().batch(8), nearest)
""")  # fmt: skip
        assert "StringToHashBucketFast" in movable(found)
        assert "ArgMin" not in movable(found)
        reason = reason_of(found, "ArgMin")
        assert reason.effect in (Effect.READS, Effect.WRITES)
        assert reason.path[-1] == next(node.name for node in found.partition.graph.nodes if node.op == "ArgMin")

    def test_a_variable_that_another_function_trains_keeps_what_reads_it(self, explain: Explain) -> None:
        """The variable is not written by this step; but it is trainable, and steps may take turns."""
        found = explain(TF2, """
shift = tf.Variable(3, dtype=tf.int64)
fixed = tf.Variable(3, dtype=tf.int64, trainable=False)
def shifted(keys):
    return tf.abs(tf.maximum(hashed(keys), fixed) - shift)
run(raw().batch(8), shifted)
""")  # fmt: skip
        assert "Maximum" in movable(found)
        assert "Abs" not in movable(found)
        assert "the training (it is trainable) writes" in reason_of(found, "Abs").text

    def test_a_normalisation_that_is_adapted_during_fit_stays(self, explain: Explain) -> None:
        found = explain(KERAS, """
class Adapting(keras.layers.Layer):
    def build(self, shape):
        self.mean = self.add_weight(shape=(), trainable=False, initializer="zeros")
    def call(self, keys):
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(keras.ops.cast(keys, "float32")))
        return keras.ops.clip(keras.ops.cast(keys, "float32") - self.mean, 0, 49)
data = tf.data.Dataset.range(64).map(lambda n: (n[None] % 50, tf.cast(n, tf.float32)[None])).batch(8)
fit(data, Adapting(), shape=(1,))
""")  # fmt: skip
        assert moved_maps(found) == 1
        assert "ClipByValue" not in movable(found)
        assert any(effect in (Effect.READS, Effect.WRITES) for effect, _ in reasons(found))

    def test_random_numbers_in_the_step_stay(self, explain: Explain) -> None:
        found = explain(TF2, """
def noisy(keys):
    return (hashed(keys) + tf.random.uniform([8], 0, 9, tf.int64)) % 50
run(raw().batch(8), noisy)
""")  # fmt: skip
        assert "StringToHashBucketFast" in movable(found)
        assert "FloorMod" not in movable(found)
        assert reason_of(found, "FloorMod").effect is Effect.RANDOM

    def test_an_operation_that_prints_stays_with_all_after_it(self, explain: Explain) -> None:
        found = explain(TF2, """
def printed(keys):
    keys = hashed(keys)
    with tf.control_dependencies([tf.print("keys", tf.reduce_max(keys))]):
        return tf.abs(keys)
run(raw().batch(8), printed)
""")  # fmt: skip
        assert "StringToHashBucketFast" in movable(found)
        assert "Abs" not in movable(found)
        assert reason_of(found, "Abs").effect is Effect.OUTSIDE

    def test_control_flow_of_an_imported_graph_is_one_node_and_moves_as_a_whole(self, explain: Explain) -> None:
        """Graphs that were made with TensorFlow 1 have loops and branches of many operations."""
        found = explain(TF2, """
tf1 = tf.compat.v1
tf1.disable_control_flow_v2()
try:
    with tf.Graph().as_default() as graph:
        given = tf1.placeholder(tf.int64, [None], name="given")
        def outer(place, found):
            def inner(count, key):
                return count + 1, tf1.cond(key > 40, lambda: key - 5, lambda: tf.identity(key))
            _, key = tf1.while_loop(lambda count, _: count < 2, inner, [0, given[place]])
            return place + 1, tf.concat([found, [key]], 0)
        _, keys = tf1.while_loop(
            lambda place, _: place < tf.size(given), outer, [0, tf.zeros([0], tf.int64)],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])])
finally:
    tf1.enable_control_flow_v2()
def imported(number):
    return tf.graph_util.import_graph_def(graph.as_graph_def(), {"given:0": number}, [keys.name], name="")[0]
run(raw().map(hashed).batch(8), imported)
""")  # fmt: skip
        graph = found.partition.graph
        regions = [node for node in graph.nodes if node.op == "control flow"]
        assert len(regions) == 1
        assert {"Enter", "Merge", "Switch", "Exit"} & {node.op for node in graph.nodes} == set()
        assert regions[0].name in found.partition.moved
        [received] = [name for name in found.partition.crossings.received if graph.producers[name] == regions[0].name]
        assert "Exit" in received

    def test_a_loop_that_trains_stays_whole(self, explain: Explain) -> None:
        found = explain(TF2, """
@tf.function
def epoch(dataset):
    for keys in dataset:
        train(hashed(keys))
epoch(raw().batch(8))
""")  # fmt: skip
        assert found.partition.moved == frozenset()
        assert "loops over a data set itself" in document(found)["notes"][0]

    def test_ragged_elements_cannot_travel_as_they_are(self, explain: Explain) -> None:
        """A variant does not cross. Behind a map that makes ragged elements dense, the dense tensor does."""
        found = explain(TF2, """
def dense(rows):
    return tf.reduce_max(hashed(rows).to_tensor(), 1) % 50
run(raw().map(lambda n: tf.range(n % 3 + 1)).ragged_batch(8), dense)
""", "")  # fmt: skip
        assert found.partition.moved <= {"IteratorGetNext"} | found.partition.state.movable
        for name in (*found.partition.crossings.sent, *found.partition.crossings.received):
            assert found.partition.graph.tensors[name].dtype != "variant"

    def test_sparse_tensors_travel_as_their_three_parts(self, explain: Explain) -> None:
        found = explain(TF2, """
def sparse(rows):
    cells = tf.sparse.from_dense(tf.strings.as_string(rows))
    keys = tf.sparse.map_values(tf.strings.to_hash_bucket_fast, cells, 50)
    return tf.sparse.to_dense(keys)[:, 0]
run(raw().map(lambda n: n + tf.range(4, dtype=tf.int64)).batch(8), sparse)
""")  # fmt: skip
        assert movable(found) >= {"StringToHashBucketFast", "SparseToDense"}
        assert moved_maps(found) == 1


class TestRefusals:
    @pytest.mark.parametrize(
        ("how", "said"),
        [("run_eagerly=True", "run_eagerly is on"), ("jit_compile=True", "XLA compiles the whole step")],
    )
    def test_keras_steps_without_a_graph_of_operations(self, explain: Explain, how: str, said: str) -> None:
        found = explain(KERAS, f"""
data = tf.data.Dataset.range(64).map(lambda n: (n[None] % 50, [1.0])).batch(8)
fit(data, keras.layers.Identity(), shape=(1,), {how})
""")  # fmt: skip
        assert said in document(found)["verdict"]
        assert moved_maps(found) == 1  # what could move of its data, all the same
        assert found.partition.moved == frozenset()

    def test_batches_from_python(self, explain: Explain) -> None:
        found = explain(KERAS, """
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.train_on_batch(np.ones((8, 2)), np.ones((8, 1)))
""")  # fmt: skip
        assert "train_on_batch" in document(found)["verdict"]

    def test_several_devices(self, explain: Explain) -> None:
        found = explain(KERAS, """
with tf.distribute.MirroredStrategy(["cpu:0"]).scope():
    data = tf.data.Dataset.range(64).map(lambda n: (n[None] % 50, [1.0])).batch(8)
    fit(data, keras.layers.Identity(), shape=(1,))
""")  # fmt: skip
        assert "MirroredStrategy wraps data set and step" in document(found)["verdict"]

    def test_an_eager_loop(self, explain: Explain) -> None:
        found = explain(TF2, """
import keras
optimizer = keras.optimizers.SGD()
for keys in raw().map(hashed).batch(8):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, keys))
    optimizer.apply_gradients([(tape.gradient(loss, table), table)])
""")  # fmt: skip
        assert "the step runs eagerly" in document(found)["verdict"]
        assert moved_maps(found) == 1

    def test_a_function_of_elements_moves_its_data_only(self, explain: Explain) -> None:
        found = explain(TF2, """
@tf.function
def step(keys):
    train(hashed(keys))
for keys in raw().map(hashed).batch(8):
    step(keys)
""")  # fmt: skip
        assert movable(found) == {"Map", "Batch"}
        assert found.partition.moved
        assert "only what lies in tf.data can move" in document(found)["notes"][0]

    @pytest.mark.parametrize(
        ("program", "said"),
        [
            ("print('no training')\nraise SystemExit(0)", "ended without a step of training"),
            ("raise SystemExit('no data')", "ended with no data before its first step"),
            ("1 / 0", "ZeroDivisionError: division by zero (line 1)"),
            ("def broken(:", "SyntaxError"),
        ],
    )
    def test_programs_without_a_step(self, explain: Explain, program: str, said: str) -> None:
        with pytest.raises(ProgramRefused) as refused:
            explain(program)
        assert said in str(refused.value)

    def test_a_step_that_fails_is_explained_by_guesses_that_are_called_so(self, explain: Explain) -> None:
        found = explain(TF2, """
def failing(keys):
    tf.debugging.assert_less(keys, tf.constant(0, tf.int64), "no key is so small")
    return hashed(keys)
run(raw().batch(8), failing)
""")  # fmt: skip
        assert not found.is_measured
        assert "no key is so small" in found.costs
        assert document(found)["verdict"].endswith("(its costs are guesses)")

    def test_a_program_that_catches_everything_ends_at_its_first_step_all_the_same(self, explain: Explain) -> None:
        found = explain(TF2, """
try:
    run(raw().map(hashed).batch(8))
except BaseException:
    raise SystemExit(3)
""")  # fmt: skip
        assert moved_maps(found) == 1


class TestLaterSteps:
    def test_the_second_fit_is_explained_with_its_own_data(self, explain: Explain) -> None:
        found = explain(KERAS, """
fit(tf.data.Dataset.range(64).map(lambda n: (n[None] % 50, [1.0])).batch(8), keras.layers.Identity(), shape=(1,))
words = tf.data.Dataset.range(64).map(lambda n: (tf.strings.as_string(n)[None], [1.0])).batch(8)
fit(words, keras.layers.Hashing(50), shape=(1,), dtype="string")
""", number=2)  # fmt: skip
        assert "StringToHashBucketFast" in movable(found)
        assert found.captured.kind == "Keras fit"

    def test_the_second_function_is_a_step_of_its_own_however_often_the_first_one_runs(self, explain: Explain) -> None:
        found = explain(TF2, """
run(raw().map(hashed).batch(8))
run(raw().batch(8), hashed)
""", number=2)  # fmt: skip
        assert "StringToHashBucketFast" in movable(found)
        assert not moved_maps(found)

    def test_a_step_that_the_program_does_not_reach(self, explain: Explain) -> None:
        with pytest.raises(ProgramRefused, match="before its step 2 of training"):
            explain(TF2, "run(raw().map(hashed).batch(8))\nraise SystemExit", number=2)


class TestHooks:
    def test_a_missing_place_is_named_and_no_hook_is_left(
        self, explain: Explain, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from keras.src.optimizers.base_optimizer import BaseOptimizer
        from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

        whole = vars(Function)["__call__"]
        monkeypatch.delattr(BaseOptimizer, "apply")
        with pytest.raises(HookMissing, match="BaseOptimizer has no apply"):
            explain(TF2, "run(raw().batch(8), hashed)")
        assert vars(Function)["__call__"] is whole

    def test_no_hook_is_left_behind_a_program(self, explain: Explain) -> None:
        from tensorflow.python.data.ops.iterator_ops import OwnedIterator

        before = vars(OwnedIterator)["__next__"]
        explain(TF2, "run(raw().batch(8), hashed)")
        assert vars(OwnedIterator)["__next__"] is before


class TestPreparationMoves:
    def test_lookups_and_hashes_in_a_keras_model(self, explain: Explain) -> None:
        found = explain("""
import keras
import numpy as np
import tensorflow as tf
words = keras.layers.StringLookup(vocabulary=[f"w{n}" for n in range(40)])
buckets = keras.layers.Hashing(30)
numbers = keras.layers.Normalization()
numbers.adapt(np.arange(12.0).reshape(4, 3))
text, amount = keras.Input((20,), dtype="string"), keras.Input((3,))
rows = [keras.layers.Embedding(41, 4)(words(text)), keras.layers.Embedding(30, 4)(buckets(text))]
joined = keras.layers.Concatenate()([*map(keras.layers.Flatten(), rows), numbers(amount)])
model = keras.Model([text, amount], keras.layers.Dense(1, "sigmoid")(keras.layers.Dropout(0.1)(joined)))
model.compile("adam", "binary_crossentropy", metrics=["auc"])
def parsed(number):
    text = tf.strings.join(["w", tf.strings.as_string(tf.range(number, number + 20) % 50)])
    return (text, tf.cast([number, 1, 2], tf.float32)), number % 2
model.fit(tf.data.Dataset.range(4096).map(parsed).shuffle(100, seed=1).batch(256).prefetch(2), verbose=0)
""", prices=Prices())  # fmt: skip
        state, graph = found.partition.state, found.partition.graph
        assert movable(found) >= {"LookupTableFindV2", "StringToHashBucketFast", "RealDiv", "Map"}
        moved = {graph.by_name[name].op for name in found.partition.moved}
        assert moved >= {"Map", "Batch", "LookupTableFindV2", "StringToHashBucketFast"}
        assert state.frozen
        assert found.partition.is_worth_it
        assert found.partition.crossings.sent == ("tf.data IteratorGetNext: raw 0",)
        assert graph.tensors["tf.data IteratorGetNext: raw 0"].size_bytes == 256 * 8
        assert reason_of(found, "MatMul").effect is Effect.READS
        assert "measured" in found.costs
        assert "measured" in found.sizes

"""Keras `fit` under `python -m stretto_programs.run`: the same numbers, output and exit status as alone.

Programs and data workers are real processes.
"""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest
from program_harness import FREE, WARM, alone, compared, running, steps_of, until
from program_texts import FITS, KERAS

pytestmark = pytest.mark.slow

FIT = (
    KERAS
    + """
from tensorflow.python.framework import ops
printed, text_of = [], ops._EagerTensorBase.__repr__
ops._EagerTensorBase.__repr__ = lambda tensor: printed.append(tensor) or text_of(tensor)
words = keras.layers.StringLookup(vocabulary=[f"w\\0{n}" for n in range(40)])
text, amount = keras.Input((3,), dtype="string"), keras.Input((3,))
numbers = keras.layers.Normalization()
numbers.adapt(np.arange(12.0).reshape(4, 3))
rows = [keras.layers.Embedding(41, 4)(words(text)), keras.layers.Embedding(30, 4)(keras.layers.Hashing(30)(text))]
amounts = keras.layers.BatchNormalization()(numbers(amount))
joined = keras.layers.Concatenate()([*map(keras.layers.Flatten(), rows), amounts])
model = keras.Model([text, amount], keras.layers.Dense(1, "sigmoid")(keras.layers.Dropout(0.2)(joined)))
model.compile("adam", "binary_crossentropy", metrics=["auc"])
def both(number):
    texts, label = parsed(number)
    return (texts, tf.cast([number, 1, 2], tf.float32)), label
data = raw(1500).shuffle(100, seed=3).map(both).shuffle(50, seed=5).batch(32).prefetch(2)
list(data.take(1))  # draws an order beside `fit`
history = model.fit(data, epochs=4, verbose=0, callbacks=[Meets(20, 70)], validation_data=raw(90).map(both).batch(16))
print(history.history, len(printed), "tensors printed")
print([label.numpy().tolist() for _, label in data.take(1)])  # the order after those of `fit`
tell("variables", model)
sys.exit(int(sys.argv[1]))
"""
)
VARIED = (
    FITS
    + """
repeated = raw().map(parsed).shuffle(80, seed=3).repeat().batch(32)
fit("repeat", repeated, epochs=2, steps_per_epoch=15, callbacks=[Meets(3)])
model = fit("epochs", raw().map(parsed).batch(32, drop_remainder=True), epochs=2)
fit("another data set of the same model", raw(300).map(parsed).batch(16), model)
fit("class weights", raw(300).map(parsed).batch(16), class_weight={0: 1.0, 1: 3.0})
def even(number):
    return number % 3 > 0
fit("unknown length", raw(400).filter(even).map(parsed).shuffle(20).batch(8), epochs=2)
class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, step, logs):
        self.model.stop_training = step == 5
fit("stopped", raw().shuffle(50, seed=2).map(parsed).batch(32), epochs=2, callbacks=[Stop()])
def noisy(number):
    return number + tf.random.uniform([], 0, 5, tf.int64, seed=4)
fit("random source", raw().map(noisy).map(parsed).batch(32), epochs=2)
def checked(number):
    with tf.control_dependencies([tf.debugging.assert_less(number, tf.constant(400, tf.int64))]):
        return parsed(tf.identity(number))
model = made()
try:
    model.fit(raw().map(checked).batch(32), verbose=0)
except tf.errors.InvalidArgumentError:
    print("the error of an element", [hashlib.sha256(each.numpy()).hexdigest() for each in model.trainable_weights])

def numbers():
    yield from range(100)
generated = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64))
fit("generator", generated.map(parsed).batch(8))
offset = tf.Variable(1, dtype=tf.int64)
def moved(number):
    return parsed(number + offset)
fit("variable", raw().map(moved).batch(32))
def python(number):
    return parsed(tf.ensure_shape(tf.numpy_function(abs, [number], tf.int64), []))
fit("python", raw().map(python).batch(32))
fit("steps at once", raw().map(parsed).batch(32), made(steps_per_execution=2))
fit("eager", raw(64).map(parsed).batch(32), made(run_eagerly=True))
rows = np.arange(60.0).reshape(20, 3)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(rows, rows[:, 0], verbose=0, epochs=2)
tell("numbers", model)
"""
)
MOVING = (
    FITS
    + """
table = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer([f"w\\0{n}" for n in range(40)], [n * 3 % 30 for n in range(40)]), -1)
def looked_up(number):
    texts, label = parsed(number)
    return tf.strings.as_string(table.lookup(texts)), label
fit("table", raw().map(looked_up).batch(32), epochs=2, callbacks=[Meets(3)])
parallel = raw().map(parsed, num_parallel_calls=tf.data.AUTOTUNE).batch(32, num_parallel_calls=2)
fit("parallel", parallel.prefetch(tf.data.AUTOTUNE), epochs=2)
def upper(texts, label):
    return tf.strings.upper(texts), label
fit("cache", raw().map(parsed).cache().map(upper).shuffle(40, seed=2).batch(16), epochs=3)

def joined():
    texts, amount = keras.Input((3,), dtype="string", name="a"), keras.Input((1,), name="b")
    keys = keras.layers.StringLookup(vocabulary=["x", "y"])(texts)
    rows = keras.layers.Flatten()(keras.layers.Embedding(30, 4)(keys))
    made = keras.Model({"a": texts, "b": amount}, keras.layers.Dense(1)(keras.layers.Concatenate()([rows, amount])))
    made.compile("adam", "mse", metrics=["mae"], weighted_metrics=["mae"])
    return made
with open("data.csv", "w") as file:
    file.writelines(f"{'xyz'[i % 3]},{'yz'[i % 2]},{i / 7:.3f},{i % 2}\\n" for i in range(900))
def decoded(line):
    one, two, amount, label = tf.io.decode_csv(line, ["", "", 0.0, 0])
    return {"a": tf.stack([one, two, tf.strings.join([one, two])]), "b": tf.reshape(amount, [1])}, label, amount + 1
lines = tf.data.TextLineDataset("data.csv").shuffle(200, seed=1)
fit("text", lines.map(decoded).repeat(2).batch(32), joined(), epochs=2)
csv = tf.data.experimental.make_csv_dataset(
    "data.csv", 32, ["a", "b", "c", "label"], label_name="label", num_epochs=1, shuffle_seed=3)
def stacked(columns, label):
    texts = tf.stack([columns["a"], columns["b"], tf.strings.upper(columns["a"])], 1)
    return {"a": texts, "b": tf.expand_dims(columns["c"], 1)}, label
fit("interleaved files", csv.map(stacked), joined(), epochs=2)
arrays = {"a": tf.constant([["xyz"[i % 3], "y", f"b{i}"] for i in range(300)]), "b": np.arange(300.0)[:, None]}
fit("arrays", arrays, joined(), y=np.arange(300) % 2, epochs=2, batch_size=16, validation_split=0.2)

class Own(keras.Model):
    def train_step(self, data):
        keys, label = data
        keys = tf.ensure_shape(tf.sparse.to_dense(keys), [None, 3])
        with tf.GradientTape() as tape:
            loss = self.compute_loss(keys, label, self(keys, training=True))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss, "count": tf.shape(label)[0]}
keys = keras.Input((3,), dtype="int64")
own = Own(keys, keras.layers.Dense(1)(keras.layers.Flatten()(keras.layers.Embedding(5, 4)(keys))))
own.compile("adam", "mse")
def sparse(number):
    texts, label = parsed(number)
    return tf.sparse.from_dense(tf.strings.to_hash_bucket_fast(texts, 5)), label
fit("sparse", raw().map(sparse).batch(32), own, epochs=2)
"""
)
REFUSED = {
    "generator": "GeneratorDataset, which must not run ahead of the training",
    "variable": "uses a variable or a table, which must not be read ahead of the training",
    "python": "PyFunc, which must not run ahead of the training",
    "steps at once": "steps_per_execution=2: the loop over steps is one operation",
    "eager": "run_eagerly is on",
}
MOVED = (
    "repeat", "epochs", "another data set of the same model", "class weights", "unknown length", "stopped",
    "random source",
)  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of the program alone."""
    return alone(tmp_path_factory.mktemp("fit") / "alone", FIT, status=3)


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.night), 2])
def test_variables_metrics_and_status_are_those_of_the_program_alone(tmp_path: Path, out: str, count: int) -> None:
    """The first one starts as its user starts it, with nothing imported before; one of two data workers is killed."""
    warm = None if count == 1 else WARM
    with running(tmp_path / "run", FIT, "--data-workers", str(count), meet=True, warm=warm) as program:
        program.meet_lanes(20, count)
        program.meet(70)
        if count == 2:
            program.kill_lane()
        program.go_on(70)
        *ended, errors = program.ended()
    assert ended == [3, out], errors
    elsewhere, steps = steps_of(errors)
    assert steps == 4 * 47
    assert elsewhere > steps // 10
    assert errors.count("is lost: it ended with status -9;") == count - 1
    assert len(re.findall("^stretto: ", errors, re.M)) == 2 + (count - 1)
    assert "stretto: Keras fit: data workers can prepare Map, " in errors


def test_no_data_worker_outlives_a_program_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path / "run", FIT, "--data-workers", "1", meet=True, warm=None) as program:
        program.meet(20)
        until(lambda: len(program.lanes) == 1)
        [lane] = program.lanes
        nursery = lane.parent()
        assert nursery is not None
        program.kill()
    for each in (lane, nursery):
        until(lambda: not each.is_running() or each.status() == psutil.STATUS_ZOMBIE)  # noqa: B023


@pytest.mark.night
def test_programs_of_many_kinds_end_with_the_numbers_that_they_have_alone(tmp_path: Path) -> None:
    _, errors = compared(tmp_path, VARIED, meet=3)
    told = dict(re.findall(r"^([a-z ]+)\n(?:(?!stretto).*\n)*?stretto: (.*)$", errors, re.M))
    for name, reason in REFUSED.items():
        assert "nothing moves to data workers" in told[name]
        assert reason in told[name]
    for name in MOVED:
        assert "data workers can prepare " in told[name]
    assert steps_of(errors)[0] > 0


@pytest.mark.night
def test_all_that_may_move_gives_the_same_numbers(tmp_path: Path) -> None:
    """With free crossings everything that may move does, which is the hardest case."""
    out, errors = compared(tmp_path, MOVING, meet=3, free=FREE)
    assert "nothing moves" not in errors
    assert len(out.splitlines()) == errors.count("data workers can prepare ") == 7
    elsewhere, steps = steps_of(errors)
    assert elsewhere > steps // 10


KEPT = (
    FITS
    + """
import gc, weakref
from stretto_programs.lanes.feed import Stream
class Counts(keras.callbacks.Callback):
    def on_train_batch_begin(self, step, logs):
        gc.collect()
        print("streams", sum(type(each) is Stream for each in gc.get_objects()), file=sys.stderr)
class Stops(Counts):
    def on_train_batch_end(self, step, logs):
        self.model.stop_training = step == 3
data = raw().map(parsed).batch(60)
model = fit("epochs", data, epochs=3, callbacks=[Counts()])
fit("stopped", data.repeat(), model, epochs=2, steps_per_epoch=9, callbacks=[Stops()])
fit("after it", data, model, epochs=2, callbacks=[Counts()])
models, sets = [], []
for place in range(6):
    model = made() if place % 2 else model
    own = raw().map(parsed).batch(60)
    fit("a data set of its own", own, model)
    fit("a data set of all", data, model)
    models.append(weakref.ref(model)), sets.append(weakref.ref(own))
del own
gc.collect()
print("kept", sum(each() is not None for each in models), sum(each() is not None for each in sets), file=sys.stderr)
"""
)


@pytest.mark.night
def test_passes_data_sets_and_models_that_are_over_are_let_go(tmp_path: Path) -> None:
    with running(tmp_path / "run", KEPT, "--data-workers", "1") as program:
        status, _, errors = program.ended()
    assert status == 0, errors
    assert "data workers can prepare " in errors
    counts = [int(each) for each in re.findall(r"^streams (\d+)$", errors, re.M)]
    assert len(counts) == 3 * 10 + 4 + 2 * 10
    assert max(counts) <= 2, "a pass, and the one before it until the feed is asked again"
    assert "\nkept 1 0\n" in errors, "the model that the program has"


FAILS = (
    FITS
    + """
from stretto_programs.tensorflow.datasets import Datasets
begin, passes = Datasets.begin, []
def second_fails(*given):
    passes.append(given)
    if len(passes) == 2:
        raise RuntimeError("no pass")
    return begin(*given)
Datasets.begin = second_fails
data = raw().shuffle(50, seed=2).map(parsed).shuffle(20, seed=3).batch(32)
fit("shuffled", data, epochs=4)
print([label.numpy().tolist() for _, label in data.take(1)])
"""
)


def test_a_pass_that_cannot_begin_leaves_the_program_as_it_is(tmp_path: Path) -> None:
    _, errors = compared(tmp_path, FAILS)
    assert "nothing moves to data workers any more: RuntimeError: no pass" in errors

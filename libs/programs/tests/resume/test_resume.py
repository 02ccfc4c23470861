"""`stretto run --resume`: a program that is killed and run again ends with the variables of the program run whole.

Each program runs whole and alone, then with data workers and `--resume`: killed with SIGKILL some steps behind a
checkpoint, and started again, until it ends. Both tell all variables to the last bit.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from program_harness import alone, running, steps_of
from program_texts import FITS, LOOPS

pytestmark = pytest.mark.slow

AT = """
def at(step):
    if str(step) in os.environ.get("MEETS", "").split():
        meet(step)
"""
KILLED_LOOPS = (
    LOOPS.replace("def step(", "def function_step(")
    + AT
    + """
step, epoch = tf.Variable(0, dtype=tf.int64), tf.Variable(0)
checkpoint = tf.train.Checkpoint(rows=rows, step=step, epoch=epoch)
manager = tf.train.CheckpointManager(checkpoint, os.environ["SAVED"], 2)
endless = iter(raw().map(parsed).shuffle(50, seed=4).repeat().batch(32))
checkpoint.restore(manager.latest_checkpoint)
numbers = iter(tf.data.Dataset.range(200).shuffle(30, seed=8))
data = raw(300).shuffle(100, seed=3).map(parsed).batch(16)
validation = raw(160).map(parsed).shuffle(20, seed=9).batch(16)

@tf.function
def cheap(iterator):
    rows.assign_add(tf.cast(next(iterator), tf.float32) * 1e-6 * tf.ones_like(rows))

def trained(saves=True):
    step.assign_add(1)
    if saves and int(step) % 7 == 0:
        manager.save()
    at(int(step))

while int(step) < 60:
    function_step(endless)
    cheap(numbers)  # of which nothing moves
    trained()
while int(epoch) < 3:
    for words, label in data:
        element_step(words, label)
        trained()
    for words, label in validation:
        element_step(words, label)
        trained(saves=False)
    epoch.assign_add(1)
tell("variables", int(step), int(epoch))
print(next(numbers).numpy(), [label.numpy().tolist() for _, label in data.take(1)])
print(sorted(each for each in os.listdir(os.environ["SAVED"]) if each.endswith(".index")))
"""
)
KILLED_FIT = (
    FITS
    + AT
    + """
data = raw(640).shuffle(100, seed=3).map(parsed).batch(32).prefetch(2)
model = made()
class Meets(keras.callbacks.Callback):
    def on_train_batch_end(self, step, logs):
        at(int(self.model.optimizer.iterations))
backup = keras.callbacks.BackupAndRestore(os.environ["SAVED"], save_freq=7, delete_checkpoint=False)
model.fit(data, epochs=3, verbose=0, callbacks=[backup, Meets()])
tell("variables", model)
repeated = raw().map(parsed).shuffle(80, seed=3).repeat().batch(32)
backup = keras.callbacks.BackupAndRestore(os.environ["SAVED"] + "-2", save_freq=7, delete_checkpoint=False)
model.fit(repeated, epochs=4, steps_per_epoch=15, verbose=0, callbacks=[backup, Meets()])
tell("variables", model)
print([label.numpy().tolist() for _, label in data.take(1)])
"""
)
CASES = (
    LOOPS
    + """
import keras, numpy as np
SECOND, saved = os.path.exists(os.environ["SAVED"]), os.environ["SAVED"]
def named(name):
    print(name, file=sys.stderr, flush=True)
def taken(iterator, count):
    return [int(tf.reshape(next(iterator), [])) for _ in range(count)]
def case(name, first, second, checkpointed=False):
    \"""Take 5 elements, save, take 2; in the second run: restore, and take 3.\"""
    named(name)
    step = tf.Variable(0)
    if checkpointed:
        iterator = iter(second if SECOND else first)
        checkpoint = tf.train.Checkpoint(step=step, iterator=iterator)
    else:
        checkpoint = tf.train.Checkpoint(step=step)
    if SECOND:
        checkpoint.read(f"{saved}/{name}").assert_consumed()
    if not checkpointed:
        iterator = iter(second if SECOND else first)
    print(name, taken(iterator, 3) if SECOND else taken(iterator, 5), end=" ")
    if not SECOND:
        checkpoint.write(f"{saved}/{name}")
        print(taken(iterator, 2), end=" ")
        checkpoint.read(f"{saved}/{name}")
        print(taken(iterator, 1), end=" ")
    print()

def plus(number):
    return number + 1
numbers = tf.data.Dataset.range(30)
case("plain", numbers.map(plus), numbers.map(plus))
case("in-the-checkpoint", numbers.map(plus), numbers.map(plus), checkpointed=True)
even = numbers.filter(lambda number: number % 3 < 3)
case("shorter-of-unknown-length", even, numbers.filter(lambda number: number % 30 < 4))
tf.random.set_seed(None)
case("unseeded", numbers.shuffle(30), numbers.shuffle(30))
case("random", numbers.map(lambda number: number + tf.cast(tf.random.uniform([]), tf.int64)).batch(1), numbers)
case("cached", numbers.shuffle(9, seed=1).cache(), numbers.shuffle(9, seed=1).cache())

named("validation")
train, validation, twin = (
    tf.data.Dataset.from_tensor_slices(list(range(*each))).batch(4) for each in ((100,), (1000, 1040), (100, 200))
)
checkpoint = tf.train.Checkpoint(step=tf.Variable(0))
if SECOND:
    checkpoint.read(f"{saved}/validation").assert_consumed()
    keras.layers.Normalization(axis=None).adapt(train)
    keras.Sequential([keras.Input(()), keras.layers.Identity()]).predict(train, verbose=0)
    print("validation", int(next(iter(validation))[0]), int(next(iter(train))[0]))
else:
    iterator = iter(train)
    taken_before = [next(iterator) for _ in range(7)]
    validated = [*validation]
    checkpoint.write(f"{saved}/validation")
    validated = [*twin]
    checkpoint.write(f"{saved}/twins")

named("fit")
class Stops(keras.callbacks.Callback):
    def on_train_batch_end(self, step, logs):
        if not SECOND and int(self.model.optimizer.iterations) == 17:
            raise KeyboardInterrupt
def fitted(*callbacks):
    keras.utils.set_random_seed(3)
    keys = keras.Input((3,))
    model = keras.Model(keys, keras.layers.Dense(1)(keras.layers.Dropout(0.3)(keys)))
    model.compile("adam", "mse")
    rows = np.arange(120.0, dtype=np.float32).reshape(40, 3) / 100
    model.fit(rows, rows[:, 0], batch_size=4, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
    return hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.variables)).hexdigest()
try:
    backup = keras.callbacks.BackupAndRestore(f"{saved}/backup", save_freq=4, delete_checkpoint=False)
    resumed = fitted(backup, Stops())
except KeyboardInterrupt:
    pass
else:
    print("fit", resumed == fitted())
"""
)


@pytest.mark.parametrize(
    ("text", "kills", "places"),
    [
        pytest.param(KILLED_LOOPS, (25, 101), 4, id="loops", marks=pytest.mark.night),
        pytest.param(KILLED_FIT, (31, 88), 3, id="fit"),
    ],
)
def test_a_program_killed_and_run_again_ends_with_the_variables_of_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kills: tuple[int, int], places: int
) -> None:
    monkeypatch.setenv("SAVED", str(tmp_path / "whole-saved"))
    expected = alone(tmp_path / "whole", text)
    monkeypatch.setenv("SAVED", str(tmp_path / "saved"))
    told = ""
    for count, kill in enumerate(kills, 1):
        folder = tmp_path / f"killed-{kill}"
        monkeypatch.setenv("MEETS", f"{kill - 6} {kill}")
        with running(folder, text, "--resume", "--data-workers", str(count), meet=True) as program:
            program.meet_lanes(kill - 6, count)
            program.meet(kill)
            program.kill()
        told += (folder / "stderr").read_text()
    later = kills[-1] + 4
    monkeypatch.setenv("MEETS", f"{later}")
    with running(tmp_path / "ended", text, "--resume", "--data-workers", "2", meet=True) as program:
        program.meet_lanes(later, 2)
        _, out, errors = program.ended()
    assert out == expected, errors
    assert (told + errors).count(" goes on behind ") == places
    assert "anew" not in told + errors
    assert steps_of(errors)[1] > 0, "data workers stood ready; on a busy machine home may be faster for so few steps"


@pytest.mark.night
def test_what_stands_in_the_way_is_named_and_the_data_begin_where_they_do_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: a program runs twice with `--resume`, and takes elements of many data sets of which nothing moves."""
    monkeypatch.setenv("SAVED", str(tmp_path / "saved"))
    with running(tmp_path / "first", CASES, "--resume", "--data-workers", "1") as program:
        _, first, errors = program.ended()
    assert "plain [1, 2, 3, 4, 5] [6, 7] [8] " in first, errors
    assert "in-the-checkpoint [1, 2, 3, 4, 5] [6, 7] [6] " in first
    assert "no place is kept for Range → Shuffle: its shuffle has no fixed seed" in errors
    assert "no place is kept for TensorSlice → Batch: another data set has its operations and length" in errors
    with running(tmp_path / "second", CASES, "--resume", "--data-workers", "1") as program:
        status, out, errors = program.ended()
    assert status == 0, errors
    found = dict(line.rstrip().split(" ", 1) for line in out.splitlines())
    told = dict(re.findall(r"^([a-z-]+)\n((?:.*\n)*?)(?=[a-z-]+\n|\Z)", errors, re.M))
    assert found.pop("fit") == "True", errors
    assert "goes on behind 6 elements" in told["fit"]
    assert found["plain"] == found["in-the-checkpoint"] == "[6, 7, 8]"
    assert "goes on behind 5 elements" in told["plain"]
    assert found["validation"] == "1000 28", told["validation"]
    assert "stretto: resume" not in told["in-the-checkpoint"]
    for name, reason in {
        "shorter-of-unknown-length": "it has 4 elements, of which 5 were trained",
        "unseeded": "Range → Shuffle begins anew: its shuffle has no fixed seed",
        "random": "RandomUniform, which may give other elements",
        "cached": "goes on behind 5 elements",
    }.items():
        assert reason in told[name], name
    assert found["shorter-of-unknown-length"] == "[0, 1, 2]"

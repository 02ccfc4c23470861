"""`python -m stretto_programs.run` on training loops of TensorFlow 2 without Keras `fit`: the numbers of the program.

Each program runs alone and with data workers; both outputs tell all variables to the last bit, and what was taken.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from program_harness import FREE, alone, compared, running, steps_of
from program_texts import LOOPS
from stretto_programs.tensorflow.plans import PREPARED_MAX

pytestmark = pytest.mark.slow

PROGRAM = """
data = raw().shuffle(100, seed=3).map(parsed).batch(32).prefetch(2)
iterator = iter(data)
assert isinstance(iterator, tf.data.Iterator) and iterator.element_spec == data.element_spec
for _ in range(4):
    loss = step(iterator)
meet(4)
try:
    while True:
        loss = step(iterator)
except tf.errors.OutOfRangeError as error:
    tell("function", float(loss), str(error).splitlines()[0])
for _ in range(2):
    for words, label in data:
        element_step(words, label)
    tell("elements", words.shape, words.device, texts([words]))
meet(5)

@tf.function
def rated(iterator, rate, twice=False):
    traces.append("rated")
    words, label = iterator.get_next()
    return train(words, label, rate * 2 if twice else rate), {"label": label, "nothing": None}
iterator = iter(data)
for place in range(10):
    loss, more = rated(iterator, tf.constant(0.1 + place))
for place in range(3):
    rated(iterator, tf.constant(0.1), twice=True)
tell("arguments", float(loss), more["label"].numpy(), more["nothing"])

class Trainer(tf.Module):
    @tf.function
    def step(self, iterator):
        return train(*next(iterator))
trainer, iterator = Trainer(), iter(data)
for _ in range(9):
    trainer.step(iterator)
tell("method")

@tf.function
def placed(iterator):
    return train(*next(iterator))
iterator = iter(data)
with tf.distribute.OneDeviceStrategy("cpu:0").scope():
    for _ in range(9):
        placed(iterator)
tell("one device")

endless = raw().map(parsed).shuffle(50, seed=4).repeat().batch(32)
one = iter(endless)
for _ in range(40):
    step(one)
tell("without end")
two = iter(endless)
step(two), step(one)
tell("without end, twice")

one, two = iter(data), iter(data)
for _ in range(9):
    step(two), step(one)
tell("two at once")
for (one, _), (two, _) in zip(data, data.map(lambda words, label: (tf.strings.upper(words), label))):
    print(texts([one, two]), texts([two]))
for place, (words, label) in enumerate(data):
    if place == 5:
        break
    element_step(words, label)
tell("left", texts(next(iter(data))))

iterator = iter(data)
element_step(*next(iterator))
step(iterator), step(iterator)
tell("taken in turns", texts(iterator.get_next()))
held = iter(data)
step(held)
@tf.function
def captures():
    return train(*next(held))
step(iter(data)), captures(), step(held)
tell("captured")
optional = held.get_next_as_optional()
tell("optional", texts(optional.get_value()), texts(next(held)))

validation = raw(300).map(parsed).batch(16)
for _ in range(2):
    print(sum(float(tf.reduce_sum(tf.strings.to_number(tf.strings.substr(words, 2, 2)))) for words, _ in validation))
    print(len(list(raw(300).map(parsed).batch(16).take(9).as_numpy_iterator())))
tell("traces", sorted(traces))
"""
ERRORS = """
def checked(number):
    with tf.control_dependencies([tf.debugging.assert_none_equal(number % 130, tf.constant(37, tf.int64))]):
        return parsed(tf.identity(number))
data = raw().map(checked).batch(32)
iterator, errors = iter(data), 0
while True:
    try:
        step(iterator)
    except tf.errors.InvalidArgumentError as error:
        errors += 1
    except tf.errors.OutOfRangeError:
        break
    tell("step", errors)
iterator = iter(data)
while True:
    try:
        element = next(iterator)
    except tf.errors.InvalidArgumentError as error:
        print("the error of an element")
    except StopIteration:
        break
    print(texts(element), element[1].numpy()[:3])
try:
    iterator.get_next()
except tf.errors.OutOfRangeError as error:
    print(str(error).splitlines()[0])
@tf.function
def failing(iterator):
    words, label = next(iterator)
    rows.assign_add(tf.ones_like(rows))
    with tf.control_dependencies([tf.debugging.assert_less(label[0], tf.constant(1, tf.int64))]):
        return train(words, label)
iterator = iter(raw().map(parsed).skip(1).batch(31))
for _ in range(6):
    try:
        failing(iterator)
    except tf.errors.InvalidArgumentError:
        tell("the error of the step")
"""
VARIED = """
def named(name):
    print(name, file=sys.stderr, flush=True)
def stepped(name, data, count=9, function=step):
    named(name)
    iterator = iter(data)
    for _ in range(count):
        function(iterator)
    tell(name)
data = raw().map(parsed).batch(32)
named("checkpoint")
iterator = iter(data)
checkpoint = tf.train.Checkpoint(iterator=iterator, rows=rows)
for _ in range(5):
    step(iterator)
path = checkpoint.save("saved")
step(iterator)
checkpoint.restore(path)
tell("checkpoint", texts(next(iterator)))
@tf.function
def whole(data):
    for words, label in data:
        train(words, label)
named("graph loop")
whole(data), whole(data)
tell("graph loop")
@tf.function
def several(iterator):
    for _ in tf.range(3):
        train(*next(iterator))
stepped("loop of a function", data, 4, several)
@tf.function
def pair(iterator):
    train(*next(iterator))
    train(*next(iterator))
stepped("two places", data, 4, pair)
@tf.function(jit_compile=True)
def shrink(label):
    rows.assign_sub(0.001 * rows * tf.cast(label[0], tf.float32))
@tf.function
def compiled(iterator):
    shrink(next(iterator)[1])
stepped("jit", data, 4, compiled)
def numbers():
    yield from range(600)
signature = tf.TensorSpec([], tf.int64)
stepped("generator", tf.data.Dataset.from_generator(numbers, output_signature=signature).map(parsed).batch(32))
calls = 0
def counted(number):
    global calls
    calls += 1
    return number + calls
def python(number):
    return parsed(tf.ensure_shape(tf.py_function(counted, [number], tf.int64), []))
stepped("python", raw().map(python).batch(32))
offset = tf.Variable(1, dtype=tf.int64)
stepped("variable", raw().map(lambda number: parsed(number + offset)).batch(32))
stepped("short", raw(200).map(parsed).batch(32), 5)
stepped("several shuffles", raw().shuffle(9, seed=1).map(parsed).shuffle(9, seed=2).batch(32))
stepped("cheap", raw().map(lambda number: (tf.strings.as_string([number]), number % 2)).batch(4))
named("a variable beside")
@tf.function
def with_variable(iterator, variable):
    variable.assign_sub(0.001 * variable)
    return train(*next(iterator))
iterator = iter(data)
for _ in range(4):
    with_variable(iterator, rows)
tell("a variable beside")
named("eagerly")
tf.config.run_functions_eagerly(True)
iterator = iter(data)
for _ in range(4):
    step(iterator)
tell("eagerly")
"""
REASONS = {
    "checkpoint": "the program checkpoints the iterator of its data set",
    "graph loop": "tf.function: nothing moves to data workers: the function loops over a data set itself",
    "loop of a function": "the step takes elements within a loop or a condition of its graph",
    "two places": "the step takes elements at 2 places",
    "jit": "XLA compiles the step, or a part of it",
    "generator": "GeneratorDataset, which must not run ahead of the training",
    "python": "PyFunc, which must not run ahead of the training",
    "variable": "uses a variable or a table, which must not be read ahead of the training",
    "several shuffles": "it draws orders at several places",
    "cheap": "of a step",
    "a variable beside": "it takes values beside its iterator for which nobody can tell one graph",
}
RANDOM = """
import random
sums = tf.Variable(0, dtype=tf.int64)
def hashed(number):
    return tf.strings.to_hash_bucket_fast(tf.strings.as_string(number), 1000), number
def more(one, two):
    return one + 1, two * 2
def checked(one, two):
    with tf.control_dependencies([tf.debugging.assert_none_equal(two % 23, tf.constant(5, tf.int64))]):
        return tf.identity(one), two
@tf.function
def summed(iterator):
    one, two = next(iterator)
    keys = tf.strings.to_hash_bucket_fast(tf.strings.as_string(one), 99991)
    sums.assign(sums * 7 + tf.reduce_sum(keys * (two + 1)))
    return one
def pipeline(draw):
    data, names, has_words, has_batch = raw(draw.randint(30, 60)), [], False, False
    for _ in range(draw.randint(2, 7)):
        name = draw.choice("shuffle map map batch repeat take skip prefetch shard".split())
        if name == "shuffle":
            each = draw.choice([None, False])
            data = data.shuffle(draw.randint(2, 20), seed=draw.choice([None, 3, 4]), reshuffle_each_iteration=each)
        elif name == "map":
            data = data.map(more if has_words else hashed, num_parallel_calls=draw.choice([None, 2]))
            has_words = True
        elif name == "batch" and not has_batch:
            data, has_batch = data.batch(draw.randint(2, 5), drop_remainder=draw.random() < 0.3), True
        elif name == "repeat":
            data = data.repeat(draw.choice([None, 2, 3]))
        elif name == "take":
            data = data.take(draw.randint(8, 40))
        elif name == "skip":
            data = data.skip(draw.randint(1, 3))
        elif name == "prefetch":
            data = data.prefetch(draw.choice([1, 3]))
        elif name == "shard":
            data = data.shard(2, draw.randint(0, 1))
        names.append(name)
    data = data if has_words else data.map(hashed)
    data = data.map(checked) if draw.random() < 0.3 else data
    return data if has_batch or draw.random() < 0.4 else data.batch(draw.randint(2, 5)), names
def act(draw, data, iterators, action):
    if action == "new" or not iterators:
        iterators.append(iter(data if draw.random() < 0.8 else data.take(20)))
    iterator, count = draw.choice(iterators), draw.randint(1, 12)
    if action == "take":
        for _ in range(count):
            print([each.numpy().tolist() for each in iterator.get_next()])
    elif action == "step":
        for _ in range(count):
            print(summed(iterator).numpy().tolist(), sums.numpy())
    elif action == "drop":
        iterators.remove(iterator)
    elif action == "optional" and draw.random() < 0.3:
        print(bool(iterator.get_next_as_optional().has_value()))
    elif action == "loop":
        for place, element in enumerate(data):
            print([each.numpy().tolist() for each in element])
            if place == count:
                break
for case in range(FIRST, FIRST + 40):
    draw = random.Random(case)
    data, names = pipeline(draw)
    print("case", case, *names)
    iterators = []
    for _ in range(draw.randint(6, 16)):
        action = draw.choice("new take take step drop optional loop".split())
        try:
            act(draw, data, iterators, action)
        except tf.errors.OutOfRangeError:
            print("the end")
        except tf.errors.InvalidArgumentError:
            print("the error of an element")
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of the loops alone."""
    found = alone(tmp_path_factory.mktemp("loops") / "alone", LOOPS + PROGRAM)
    assert found.endswith("['element_step', 'element_step', 'rated', 'rated', 'step']\n")
    return found


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.night), 2])
def test_variables_elements_and_traces_are_those_of_the_program_alone(tmp_path: Path, out: str, count: int) -> None:
    with running(tmp_path / "run", LOOPS + PROGRAM, "--data-workers", str(count), meet=True) as program:
        program.meet_lanes(4, count)
        program.meet_lanes(5, count)
        *ended, errors = program.ended()
    assert ended == [0, out], errors
    for name in ("step", "rated", "placed"):
        assert re.search(rf"tf.function {name}: data workers can prepare Map, .*StringToHash", errors)
    assert "loop over a data set: data workers can prepare Map: " in errors
    elsewhere, steps = steps_of(errors)
    assert steps > 200
    assert elsewhere > steps // 10


def test_errors_come_at_their_steps_and_what_follows_them_is_the_same(tmp_path: Path) -> None:
    out, errors = compared(tmp_path, LOOPS + ERRORS)
    assert out.count("the error of an element") == 5
    assert "loop over a data set: data workers can prepare Map: " in errors
    assert "the rest of an iteration is prepared at home: InvalidArgumentError at an element" in errors


@pytest.mark.night
def test_programs_of_many_kinds_keep_their_numbers_and_reasons_are_told(tmp_path: Path) -> None:
    # TensorFlow keeps a reference to the loop of a data set from its import on: it is hooked while that is imported
    _, errors = compared(tmp_path, LOOPS + VARIED, warm=None)
    told: dict[str, str] = {}
    for line in errors.splitlines():
        if line in {*REASONS, "short", "eagerly"}:
            told[(name := line)] = ""
        elif line.startswith("stretto: ") and told:
            told[name] += line
    for name, reason in REASONS.items():
        assert reason in told[name], name
    assert told["short"] == ""
    assert "loop over a data set: data workers can prepare Map: " in told["eagerly"]


@pytest.mark.parametrize("first", [0, 1000])
@pytest.mark.night
def test_any_pipeline_and_any_use_of_its_iterators_gives_the_same_elements(tmp_path: Path, first: int) -> None:
    """Forty random programs in one, with free crossings, so that all that may move does."""
    text = LOOPS + RANDOM.replace("FIRST", str(first))
    _, errors = compared(tmp_path, text, free=FREE)
    assert errors.count("data workers can prepare ") >= 5
    assert steps_of(errors)[0] > 100


MANY = """
data = raw(100)
for epoch in range(40):
    for words, label in data.shuffle(50, seed=epoch).map(lambda number: parsed(number)).batch(5):
        pass
    tell("elements", texts([words]))
    if epoch == 20:
        first = iter(mapped := raw().map(parsed).batch(5))
        next(first)
for _ in range(100):
    print(texts(next(first)))
for words, label in mapped:
    print(texts([words]))
import gc
gc.collect()
from stretto_programs.splitting.dataset_preparation import DatasetPreparation
print("prepared", sum(type(each) is DatasetPreparation for each in gc.get_objects()), file=sys.stderr)
"""


@pytest.mark.night
def test_a_map_that_is_made_for_each_epoch_is_forgotten_after_some(tmp_path: Path) -> None:
    _, errors = compared(tmp_path, LOOPS + MANY)
    assert "is not used any more" not in errors
    assert steps_of(errors)[0] > 100
    found = re.search(r"^prepared (\d+)$", errors, re.M)
    assert found is not None
    assert 1 <= int(found[1]) <= PREPARED_MAX + 2


THREADS = """
import threading
sys.setswitchinterval(1e-6)
data = raw(300).shuffle(50, seed=3).map(parsed).batch(10)
next(iter(data))
iterators = [iter(data) for _ in range(12)]
start = threading.Barrier(len(iterators))
found = {}
def take(place):
    start.wait()
    found[place] = [texts(element) for element in iterators[place]]
threads = [threading.Thread(target=take, args=[place]) for place in range(len(iterators))]
for each in threads:
    each.start()
for each in threads:
    each.join()
for place in range(len(iterators)):
    print(place, *found[place])
"""


def test_iterators_of_several_threads_have_the_orders_that_they_were_made_with(tmp_path: Path) -> None:
    _, errors = compared(tmp_path, LOOPS + THREADS)
    assert "loop over a data set: data workers can prepare Map: " in errors
    assert steps_of(errors)[1] >= 12 * 30

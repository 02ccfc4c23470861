"""Keras models as strangers have them: each kind trains as plain Keras does, or is refused with the reason."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stretto.errors import DataError, ModelRefused

pytestmark = pytest.mark.slow

keras = pytest.importorskip("keras")

import stretto  # noqa: E402
from adapted_kinds import REFUSED, TAKEN, Measured, functional, layers  # noqa: E402
from planted import ITEMS, USERS, Kind, Task, columns, document_table, named, rows_of  # noqa: E402
from stretto.batches.preparation import arrays_of  # noqa: E402
from stretto.build import make_program  # noqa: E402
from stretto.engine.layout import UNKNOWN, Layout  # noqa: E402
from stretto.engine.locked_store import LockedStore  # noqa: E402
from stretto.keras.adapt import restore  # noqa: E402
from stretto.keras.objective import CompiledMetrics  # noqa: E402
from stretto.keras.tables import start_of  # noqa: E402
from stretto.model import one_step  # noqa: E402
from stretto.model.evaluate import auc, log_loss  # noqa: E402
from stretto.model.example_batch import Leaf, array_of, parts_of  # noqa: E402
from stretto.model.form import reading_of_json, reading_to_json  # noqa: E402
from stretto.model.one_step import compare_steps  # noqa: E402
from stretto.model.program import Options, Program  # noqa: E402
from stretto.model.reading import Prepared  # noqa: E402
from stretto.optimizers import Adagrad, Adam, Clipping, Constant, RowWiseAdagrad, Warmup  # noqa: E402
from stretto.trial.local import train_locally  # noqa: E402
from stretto_parameters import InputRefused  # noqa: E402
from stretto_pipeline.arrays import difference  # noqa: E402

DOCUMENT = Path(__file__).parents[2] / "ADAPT.md"
RATE = 0.5


def program_of(kind: Kind, **options: Any) -> Program:
    return make_program(Task(kind), Options(**{"optimizer": "sgd", "learning_rate": RATE, **options}))


def built(kind: Kind, given: Any) -> Any:
    """Return the user's own model with the initial values that the program has."""
    import random

    random.seed(0)
    np.random.seed(0)
    keras.utils.set_random_seed(0)
    model = kind.build()
    random.seed(0)
    model(as_fit_takes(given)[0])
    for layer in embedding_layers(model):
        layer.build()  # one that is called by the loss alone
    return model


def as_fit_takes(given: Any) -> tuple[Any, Any, Any]:
    """Return what model.fit takes: texts as arrays of texts, ragged data padded."""
    import tensorflow as tf

    parts = parts_of(given, "the test")

    def dense(value: Any) -> Any:
        if isinstance(value, tf.RaggedTensor):
            value = value.to_tensor()
        elif isinstance(value, tf.SparseTensor):
            value = tf.sparse.to_dense(value)
        elif isinstance(value, list) and isinstance(value[0], list):
            value = tf.ragged.constant(value).to_tensor()
        elif getattr(value, "dtype", None) == np.dtype(object):
            value = tf.constant(value.tolist())
        return tf.convert_to_tensor(value)

    inputs = parts.inputs
    if isinstance(inputs, dict):
        inputs = {name: dense(value) for name, value in inputs.items()}
    elif isinstance(inputs, list) and not isinstance(inputs[0], list):
        inputs = [dense(value) for value in inputs]
    else:
        inputs = dense(inputs)
    return inputs, parts.labels, parts.weights


def embedding_layers(model: Any) -> list[Any]:
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]


def remote_layers(program: Program, model: Any) -> dict[tuple[int, int], Any]:
    """Return the layers of another instance of the model whose rows are remote in the program, by table and field."""
    paths = [layer.__dict__.get("_stretto_original") for layer in embedding_layers(program.model)]
    same = {path.path: layer for path, layer in zip(paths, embedding_layers(model), strict=True) if path is not None}
    return {(each.table, each.field): same[each.layer] for each in program.embeddings}


def original_tables(program: Program, model: Any) -> dict[tuple[int, int], np.ndarray]:
    return {place: layer.embeddings.numpy() for place, layer in remote_layers(program, model).items()}


def initial_of(program: Program, keys: Any) -> list[np.ndarray]:
    """Return what the rows of a batch are added to."""
    tables = {
        (each.table, each.field): np.zeros((each.ids, each.dimension), np.float32)
        if each.initial is None
        else each.initial
        for each in program.embeddings
    }
    return rows_of(program, keys, tables)


def dense_of(program: Program, model: Any) -> np.ndarray:
    """Return the other trained variables of a model as one vector."""
    remote = [layer._embeddings for layer in remote_layers(program, model).values()]
    others = [v for v in model.trainable_variables if not any(v is each for each in remote)]
    return np.concatenate([np.zeros(0, np.float32), *(variable.numpy().reshape(-1) for variable in others)])


BY_DAY = {
    *("functional", "widths", "shared", "lists", "strings", "feature space", "nested", "subclassed", "pairs", "tied"),
    *("normal", "frozen", "outputs", "sample weights"),
}
"""Kinds of models of ``make test``: one of each way in which a step may differ from Keras'."""


MADE_BY_LAYERS = {
    "strings", "hashed", "words", "crossed", "buckets", "feature space", "distributed", "subclassed layer", "no tables"
}  # fmt: skip
"""Kinds of models of which a data worker builds its own: their layers make ids, or what a step is fed with."""


@pytest.mark.parametrize(
    "name", [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.night) for name in TAKEN]
)
def test_a_step_is_that_of_keras(name: str):
    """Weights of the batch's rows and of the dense layers after one step of SGD are those after `fit` on one batch.

    What a data worker prepares without the model, where layers prepare no ids, is the same batch to the last bit.
    """
    kind = TAKEN[name]
    program: Any = program_of(kind)
    batch = program.read(40, 24)
    keys = program.index(batch)
    reading = reading_of_json(reading_to_json(program.reading))
    assert (reading is None) == (name in MADE_BY_LAYERS)
    if reading is not None:
        elsewhere = reading.reader(Task(kind)).prepare(40, 24)
        assert not difference(arrays_of(Prepared(batch, keys)), arrays_of(elsewhere))
    model = built(kind, kind.read(0, 16))
    initial = initial_of(program, keys)
    before = rows_of(program, keys, original_tables(program, model))
    dense, state = program.initial_dense(), program.initial_state()
    np.testing.assert_array_equal(dense, dense_of(program, model))

    found = program.step([a - b for a, b in zip(before, initial, strict=True)], keys, dense, state, batch)
    inputs, labels, weights = as_fit_takes(kind.read(40, 24))
    if type(model).compute_loss is not keras.Model.compute_loss:
        model.compile(keras.optimizers.SGD(RATE))
    elif not model.compiled:
        model.compile(keras.optimizers.SGD(RATE), keras.losses.BinaryCrossentropy(from_logits=True))
    loss = model.train_on_batch(inputs, labels, sample_weight=weights, return_dict=True)["loss"]

    if name not in ("regularized", "drawing"):  # the loss of Keras has the penalty of rows that are not in the batch
        assert found.loss == pytest.approx(float(loss), rel=1e-5)
    after = rows_of(program, keys, original_tables(program, model))
    assert found.rows or name == "no tables"
    for gradient, old, new in zip(found.rows, before, after, strict=True):
        assert np.abs(gradient).max() > 0
        np.testing.assert_allclose(old - RATE * gradient, new, atol=1e-6)
    np.testing.assert_allclose(dense - RATE * found.dense, dense_of(program, model), atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_layer_and_reason(name: str):
    kind = REFUSED[name]
    with pytest.raises(ModelRefused, match=f"(?s){kind.refused}"):
        compare_steps(program_of(kind))


def test_a_failure_within_a_graph_is_told_in_a_line_with_its_place():
    class Failing(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.users = layers.Embedding(USERS, 1)

        def call(self, given: Any) -> Any:
            import tensorflow as tf

            score = self.users(given["user"])
            return score + tf.zeros((99, 1))[: tf.shape(score)[0] + 1] if tf.is_symbolic_tensor(score) else score

    with pytest.raises(ModelRefused) as refusal:
        program_of(Kind("", Failing, named("user")))
    told = str(refusal.value)
    assert re.search(
        r"samples: InvalidArgumentError: Incompatible shapes: .*\[17,1\].* \(File .*test_adapted.py.*in call\)$", told
    )


@pytest.mark.night
@pytest.mark.parametrize("name", ["subclassed", "widths", "masked", "strings", "outputs"])
def test_training_reaches_the_auc_of_keras(name: str):
    """Some hundred steps on data with a planted signal."""
    kind = TAKEN[name]
    samples, held_out, size = 40_000, 4000, 100
    trained = train_locally(
        Task(kind, optimizer=keras.optimizers.Adagrad(0.2)),
        samples,
        batch_size=size,
        evaluate_samples=held_out,
        pipeline=False,
    )
    assert trained.quality is not None
    model = built(kind, kind.read(0, 16))
    loss = getattr(model, "_compile_loss", None)
    if loss is None:
        model.compile(keras.optimizers.Adagrad(0.2), keras.losses.BinaryCrossentropy(from_logits=True))
    else:
        config = model.get_compile_config()
        model.compile(keras.optimizers.Adagrad(0.2), loss=config["loss"], loss_weights=config["loss_weights"])
    for start in range(0, samples, size):
        inputs, labels, weights = as_fit_takes(kind.read(start, size))
        model.train_on_batch(inputs, labels, sample_weight=weights)
    inputs, labels, _ = as_fit_takes(kind.read(samples, held_out))
    output = model(inputs)
    if isinstance(output, dict):
        output, labels = output["buy"], labels["buy"]  # the first in the order of Keras
    expected = auc(np.asarray(labels), np.asarray(output).reshape(-1))
    assert expected > 0.7
    assert trained.quality.auc == pytest.approx(expected, abs=0.002)


@pytest.mark.parametrize(
    ("optimizer", "regularizer", "error"),
    [
        ("Adagrad", None, 1e-5),
        ("RMSprop", None, 1e-4),
        ("RMSprop", keras.regularizers.L2(0.0), 1e-4),
        ("Adam", None, 0.02),
        (partial(keras.optimizers.SGD, momentum=0.9), None, 1e-5),
    ],
)
def test_one_worker_trains_as_fit_does(optimizer: Any, regularizer: Any, error: float):
    """Some ids are rare, and go on moving; others are in a batch many times, and Keras adds up the squares of each.
    Dropout draws the same.

    With a regulariser Keras has a dense gradient, and takes the square of the sum. error: of predictions.
    """
    make = getattr(keras.optimizers, optimizer) if isinstance(optimizer, str) else optimizer
    draw = np.random.default_rng(4)
    samples, held_out, size = 3_000, 500, 50
    ids = {"user": draw.integers(0, 800, samples + held_out), "city": draw.integers(0, 3, samples + held_out)}
    labels = (draw.random(len(ids["user"])) < 0.2 + 0.3 * (ids["user"] % 2) + 0.2 * ids["city"]).astype(np.float32)

    class Cities:
        def build(self) -> Any:
            keras.utils.set_random_seed(6)
            inputs = {name: keras.Input((), name=name, dtype="int64") for name in ids}
            tables = [
                keras.layers.Embedding(
                    count, 4, embeddings_initializer="random_normal", embeddings_regularizer=regularizer
                )(inputs[name])
                for name, count in (("user", 800), ("city", 3))
            ]
            kept = keras.layers.Dropout(0.2)(keras.ops.concatenate(tables, -1))
            model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(kept))
            model.compile(make(0.01), "binary_crossentropy")
            return model

        def read(self, start: int, length: int) -> Any:
            part = slice(start, start + length)
            return {name: of[part] for name, of in ids.items()}, labels[part]

    trained = train_locally(Cities(), samples, batch_size=size, evaluate_samples=held_out)
    model = Cities().build()
    inputs, wanted = Cities().read(0, samples)
    model.fit(inputs, wanted, batch_size=size, shuffle=False, verbose=0)
    inputs, _ = Cities().read(samples, held_out)
    found, expected = (np.asarray(each(inputs)) for each in (trained.model(), model))
    assert found == pytest.approx(expected, abs=error)


@pytest.mark.parametrize("name", ["strings", "normal", "subclassed"])
def test_the_trained_model_is_the_users_own_with_its_tables(name: str, tmp_path: Path):
    """The model predicts what the evaluation saw, also once it is saved and loaded."""
    kind = TAKEN[name]
    trained = train_locally(Task(kind), 4000, batch_size=100, evaluate_samples=500)
    inputs, labels, _ = as_fit_takes(kind.read(4000, 500))
    model = trained.model()
    score = 1 / (1 + np.exp(-np.asarray(model(inputs)).reshape(-1)))
    assert log_loss(np.asarray(labels), score) == pytest.approx(trained.quality.loss, rel=1e-5)
    if name != "subclassed":
        model.save(tmp_path / "model.keras")
        np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(inputs), model(inputs))


def test_metrics_of_the_compiled_model_are_exact():
    kind = TAKEN["outputs"]
    trained = train_locally(Task(kind), 2000, batch_size=100, evaluate_samples=500)
    assert set(trained.quality.metrics) == {"click_accuracy", "click_auc", "buy_accuracy"}
    assert 0.5 < trained.quality.metrics["click_accuracy"] <= 1


def test_metrics_that_the_model_computes_are_those_of_keras():
    kind = TAKEN["measured"]
    trained = train_locally(Task(kind), 1000, batch_size=100, evaluate_samples=5000)
    quality = trained.quality
    inputs, labels, _ = as_fit_takes(kind.read(1000, 5000))
    model = trained.model()
    expected = model.evaluate(inputs, labels, batch_size=500, verbose=0, return_dict=True)
    assert set(quality.metrics) == {"rmse", "first_users", "mae"}
    assert quality.metrics == pytest.approx({name: expected[name] for name in quality.metrics}, rel=1e-5)
    assert quality.loss == pytest.approx(expected["loss"], rel=1e-5)
    assert quality.loss_name == "loss mse"


def test_means_that_the_model_computes_add_up_for_several_workers():
    program: Any = program_of(TAKEN["measured"])
    metrics = program.metrics()
    try:
        for start in (0, 100):
            batch = program.read(start, 100)
            keys = program.index(batch)
            rows = [np.zeros((len(of.stored), 4), np.float32) for of in keys.tables]
            metrics.add(program.judge(rows, keys, program.initial_dense(), program.initial_state(), batch))
        sums = metrics.sums()
    finally:
        metrics.close()
    users = columns(0, 200)["user"]
    assert set(sums) == {"first_users", "mae"}  # the root of a mean is none
    assert sums["first_users"] == ((users < 30).sum(), 200)


def test_metrics_that_look_rows_up_are_left_out(caplog: pytest.LogCaptureFixture):
    kind = Kind("", lambda: Measured(looks_up=True), TAKEN["measured"].read)
    quality = train_locally(Task(kind), 1000, batch_size=100, evaluate_samples=500).quality
    assert set(quality.metrics) == {"mae"}
    assert "the compiled metrics alone: compute_metrics of the model" in caplog.text


def test_regression_has_its_own_loss_and_no_auc():
    task = Task(TAKEN["regression"])
    # not in a pipeline, where the result depends on the order of steps
    trained = train_locally(task, 4000, batch_size=100, evaluate_samples=500, pipeline=False)
    assert np.isnan(trained.quality.auc)
    assert 0 < trained.quality.loss < columns(4000, 500)["stars"].var() / 2
    assert trained.quality.metrics["mae"] > 0


def test_a_model_of_pairs_learns_by_the_loss_of_its_call_alone():
    task = Task(TAKEN["pairs"], optimizer=keras.optimizers.Adagrad(0.5))
    quality = train_locally(task, 30_000, batch_size=100, evaluate_samples=500).quality
    assert np.isnan(quality.auc)
    assert quality.loss < 0.5  # log 2 before training


def test_activity_that_is_penalised_is_no_loss():
    """A model that is compiled with an optimizer alone has binary cross-entropy beside the penalty."""

    def build() -> Any:
        user = keras.Input((), name="user", dtype="int64")
        x = layers.Embedding(USERS, 4)(user)
        model = keras.Model(user, layers.Dense(1)(layers.Dense(4, activity_regularizer="l2")(x)))
        model.compile("sgd")
        return model

    assert not program_of(Kind("", build, TAKEN["own loss"].read)).has_own_loss


def test_ids_that_are_computed_are_those_of_their_lookup_beside_a_table_of_positions():
    class Sequences(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.items, self.places = layers.Embedding(ITEMS, 4), layers.Embedding(3, 4)
            self.score = layers.Dense(1)

        def call(self, given: Any) -> Any:
            seen = self.items(given["seen"]) + self.places(keras.ops.arange(3))
            item = self.items(keras.ops.reshape(given["item"], (-1,)))
            other = self.items(given["other"])
            return self.score(keras.ops.concatenate([keras.ops.mean(seen, axis=1), item, other], axis=1))

    class Clicks:
        def build(self) -> Any:
            return Sequences()

        def read(self, start: int, length: int) -> Any:
            place = np.arange(start, start + length)
            seen = (place[:, None] + np.arange(3)) % ITEMS
            label = (place % 2).astype(np.float32)
            return {"seen": seen, "item": place % 11, "other": place % 7, "label": label}

    quality = train_locally(Clicks(), 1000, batch_size=100, evaluate_samples=100).quality
    assert np.isfinite(quality.loss)


def test_binary_cross_entropy_of_fractions_is_no_binary_output():
    class Shares:
        def build(self) -> Any:
            user = keras.Input((), name="user", dtype="int64")
            share = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Embedding(USERS, 4)(user))
            model = keras.Model(user, share)
            model.compile("adam", "binary_crossentropy")
            return model

        def read(self, start: int, length: int) -> Any:
            user = np.arange(start, start + length) % USERS
            return {"user": user, "label": (user % 5 / 4).astype(np.float32)}

    quality = train_locally(Shares(), 1000, batch_size=100, evaluate_samples=500).quality
    assert np.isnan(quality.auc)


@pytest.mark.parametrize(("column", "value", "named"), [("user", USERS, "60.*0 to 59"), ("item", -1, "-1.*0 to 39")])
def test_ids_outside_a_table_are_named(column: str, value: int, named: str):
    def read(start: int, length: int) -> Any:
        found = TAKEN["functional"].read(start, length)
        if start >= 100:
            found[column][3] = value
        return found

    program = program_of(Kind("", functional, read))
    with pytest.raises(DataError, match=f"sample 103: layer {column}s has no row {named}"):
        program.read(100, 20)


def test_a_hashed_text_among_the_first_samples_is_refused_with_the_remedy():
    def read(start: int, length: int) -> Any:
        found = TAKEN["functional"].read(start, length)
        return {**found, "user": found["user"] + 2**47}

    with pytest.raises(ModelRefused, match=r"no row 1407\d+: its ids are 0 to 59; .*Hashing.*StringLookup$") as refused:
        program_of(Kind("", functional, read))
    assert "\x1b" not in str(refused.value)


def test_ratings_that_are_whole_at_first_keep_their_fractions_later():
    def read(start: int, length: int) -> Any:
        found = TAKEN["regression"].read(start, length)
        stars = [1, 2] * (length // 2) if start < 100 else [0.5, 1.5] * (length // 2)
        return {**found, "label": stars} if isinstance(found, dict) else (found[0], stars)

    program = program_of(Kind("", TAKEN["regression"].build, read))
    assert program.read(100, 4)["label"].tolist() == [0.5, 1.5, 0.5, 1.5]


@pytest.mark.parametrize(
    ("given", "kind", "named"),
    [([1.0, 0.5], "int64", "sample 101.*0.5"), ([1, 300], "uint8", "101.*300"), ([1, np.nan], "int64", "101.*nan")],
)
def test_a_number_that_the_type_of_an_input_does_not_have_is_refused(given: list[float], kind: str, named: str):
    with pytest.raises(DataError, match=named):
        array_of(given, Leaf("age", ("age",), kind, ()), "a batch", 100)
    assert array_of([1.0, 2.0], Leaf("age", ("age",), kind, ()), "a batch").tolist() == [1, 2]


def test_lists_of_several_lengths_are_padded_in_the_type_of_all():
    leaf = Leaf("shares", ("shares",), "float32", (None,))
    assert array_of([[1, 2], [0.5]], leaf, "a batch").tolist() == [[1, 2], [0.5, 0]]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([[1], [[1], [2, 3]]], "sample 101: 'tags' is a list of lists of several lengths"),
        ([[[1, 2]], [[1]]], r"sample 101: 'tags' is of shape \(1, 1\)"),
        ([[1], 2], "sample 101: 'tags' is a single value"),
        ([1, [2]], "sample 101: 'tags' is a list"),
    ],
)
def test_lists_that_make_no_array_are_refused_with_their_sample(given: list[Any], named: str):
    with pytest.raises(DataError, match=named):
        array_of(given, Leaf("tags", ("tags",), "int64", (None,)), "a batch", 100)


@pytest.mark.parametrize("method", ["result", "reset_state"])
def test_a_metric_that_raises_is_the_users_fault_and_the_next_evaluation_begins(method: str):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse", metrics=[lambda label, output: output])
    model.evaluate(np.ones((2, 1)), np.ones((2, 1)), verbose=0)

    def fail(*_: Any) -> Any:
        raise RuntimeError("division of users")

    compiled = model._compile_metrics
    healthy = getattr(compiled, method)
    setattr(compiled, method, fail)
    told = rf"{method}\(\).*division of users"
    with pytest.raises(ModelRefused, match=told), closing(CompiledMetrics(model)) as metrics:
        metrics.results()
    setattr(compiled, method, healthy)
    with closing(CompiledMetrics(model)) as metrics:
        assert set(metrics.results())


@pytest.mark.parametrize("compared", [2**26, 300_000])
def test_weights_that_were_restored_are_never_drawn_again(compared: int, monkeypatch: pytest.MonkeyPatch):
    """Weights of a large table are not compared with its initialiser's; restored weights may have the same range."""
    monkeypatch.setattr("stretto.keras.tables._COMPARED_FLOATS", compared)
    drawn = np.random.default_rng(1).uniform(-0.05, 0.05, (40_000, 8)).astype(np.float32)
    layer = layers.Embedding(40_000, 8, embeddings_initializer=keras.initializers.RandomUniform(-0.05, 0.05, seed=3))
    layer.build()
    layer.set_weights([drawn])
    assert start_of(layer, drawn, is_restored=True).values is drawn
    fresh = np.asarray(layer.embeddings_initializer((40_000, 8), dtype="float32"))
    assert start_of(layer, fresh).values is None


def drawn(seed: int | None) -> Kind:
    """Return a kind of model whose initial weights are another in every process unless they have a seed."""

    def build() -> Any:
        model = functional()
        model.get_layer("users").set_weights([np.random.default_rng(seed).normal(size=(USERS, 6))])
        return model

    return Kind("", build)


def test_initial_weights_that_differ_between_processes_are_refused():
    one, other = (program_of(drawn(None)).layout for _ in range(2))
    server = LockedStore(0, UNKNOWN, 2**30)
    server.adopt(one)
    with pytest.raises(InputRefused, match="seed what build\\(\\) draws"):
        server.adopt(other)
    server = LockedStore(0, UNKNOWN, 2**30)
    for _ in range(2):
        server.adopt(program_of(drawn(3)).layout)
    assert Layout.from_dict(one.to_dict()) == one


def test_an_image_without_digests_of_initial_weights_is_taken():
    known = program_of(drawn(3)).layout
    old = replace(known, tables=tuple(replace(each, base="") for each in known.tables))
    assert old != known
    assert all("base" not in table for table in old.to_dict()["tables"])
    server = LockedStore(0, UNKNOWN, 2**30)
    server.adopt(Layout.from_dict(old.to_dict()))
    server.adopt(known)


def test_inputs_with_other_names_are_listed():
    with pytest.raises(DataError, match=r"\['user', 'label2'\].*inputs \['item', 'price', 'user'\]"):
        program_of(
            Kind(
                "",
                functional,
                lambda start, length: {
                    "user": columns(start, length)["user"],
                    "label2": np.zeros(length),
                    "label": np.zeros(length),
                },
            )
        )


def test_gradients_of_each_layer_are_clipped_as_those_of_a_variable_of_its_own():
    """Layers that share a table are clipped apart. Keras takes the norm before it adds up rows that occur twice."""
    kind = TAKEN["functional"]
    program: Any = make_program(Task(kind, optimizer=keras.optimizers.SGD(RATE, clipnorm=1e-3)), Options())
    batch = program.read(40, 24)
    keys = program.index(batch)
    model = built(kind, kind.read(0, 16))
    before = rows_of(program, keys, original_tables(program, model))
    found = program.step(before, keys, program.initial_dense(), program.initial_state(), batch)
    inputs, labels, _ = as_fit_takes(kind.read(40, 24))
    model.compile(keras.optimizers.SGD(RATE, clipnorm=1e-3), keras.losses.BinaryCrossentropy(from_logits=True))
    model.train_on_batch(inputs, labels)
    after = rows_of(program, keys, original_tables(program, model))
    np.testing.assert_allclose(RATE * found.rows[0], before[0] - after[0], rtol=1e-4, atol=1e-8)
    assert 0 < np.linalg.norm(found.rows[0]) < 2**0.5 * 1e-3


def test_layers_of_different_rules_share_no_table():
    given = {"dense": "sgd", "rows": "adagrad", "users": RowWiseAdagrad(0.1)}
    program = make_program(Task(TAKEN["functional"], optimizer=given), Options())
    rules = {each.layer: program.layout.tables[each.table].optimizer for each in program.embeddings}
    assert rules == {"users": RowWiseAdagrad(0.1), "items": Adagrad(0.05)}
    assert len(program.layout.tables) == 2


def test_a_step_by_another_rule_than_the_one_of_keras_is_refused(monkeypatch: pytest.MonkeyPatch):
    """The comparison covers many steps of each rule: Keras' own, the reference where Keras has none, a limit of both.
    RowWiseAdagrad and Adam with a warm-up are those of MLPerf's dlrm_v4_hstu."""
    monkeypatch.setattr(one_step, "STEPS", 12)
    warm = keras.optimizers.schedules.CosineDecay(0.0, 1000, warmup_target=0.02, warmup_steps=8)
    both = {"rows": keras.optimizers.Adagrad(0.1), "dense": keras.optimizers.Adam(warm)}
    own = {"rows": RowWiseAdagrad(0.1), "dense": keras.optimizers.Adam(warm)}
    words = {"users": Adagrad(0.1), "rows": "ftrl", "dense": Adam(Warmup(Constant(0.02), 2000))}
    for given in (both, own, words):
        for clipping in (None, Clipping(global_norm=0.02), Clipping(value=0.001)):
            program = make_program(Task(TAKEN["functional"], optimizer=given, clipping=clipping), Options())
            assert compare_steps(program) == ""
    for place, told in enumerate(("the rows of layer", "the parameter")):
        program = make_program(Task(TAKEN["functional"], optimizer=both), Options())
        changed = [*program.updates.rules]
        changed[place] = replace(changed[place], given=keras.optimizers.Adam(0.021))
        program.updates = replace(program.updates, rules=tuple(changed))
        with pytest.raises(ModelRefused, match=f"differs from one of Keras alone .*: {told}"):
            compare_steps(program)


def test_decay_of_weights_is_refused_of_the_table_that_has_it():
    """The rows of users are differences to initial values, those of items are none."""
    with pytest.raises(ModelRefused, match=r"layer users has initial values of its own.*AdamW"):
        make_program(Task(TAKEN["normal"], optimizer={"dense": "sgd", "rows": "sgd", "users": "adamw"}), Options())
    given = {"dense": "adamw", "rows": "adamw", "users": "sgd"}
    assert len(make_program(Task(TAKEN["normal"], optimizer=given), Options()).layout.tables) == 2


def test_texts_never_enter_the_step():
    program: Any = program_of(TAKEN["strings"])
    batch = program.read(0, 8)
    assert not [name for name, value in batch.items() if getattr(value, "dtype", None) == np.dtype(object)]


def test_tables_of_equal_width_share_one_of_the_store():
    program = program_of(TAKEN["functional"])
    assert [table.dimension for table in program.layout.tables] == [6]
    assert [(each.layer, each.field) for each in program.embeddings] == [("users", 0), ("items", 1)] or [
        (each.layer, each.field) for each in program.embeddings
    ] == [("items", 0), ("users", 1)]


def test_the_memory_of_tables_is_given_back_and_restored(tmp_path: Path):
    kind = TAKEN["nested"]
    program: Any = program_of(kind)
    assert all(layer._embeddings.numpy().shape[0] == 0 for layer in program._adapted._lookups)
    tables = {
        each.layer: np.full((each.ids, each.dimension), number + 1, np.float32)
        for number, each in enumerate(program.embeddings)
    }
    assert len(tables) == 2
    with pytest.raises(ModelRefused, match="no weights"):
        restore(program.model, {})
    restore(program.model, tables)
    program.model.save(tmp_path / "model.keras")
    model = keras.models.load_model(tmp_path / "model.keras")
    given = {"user": np.zeros(2, np.int64), "item": np.ones(2, np.int64)}
    np.testing.assert_array_equal(model(given), program.model(given))
    found = sorted(
        float(each.embeddings.numpy()[0, 0]) for each in model._flatten_layers() if hasattr(each, "embeddings")
    )
    assert found == [1.0, 2.0]


MEMORY = """
import gc
import keras, numpy as np, psutil
from stretto.model.program import Options
from stretto.build import make_program

class Task:
    def build(self):
        ids = keras.Input((1,), name="ids", dtype="int64")
        text = keras.Input((1,), name="text", dtype="string")
        rows = [keras.layers.Embedding(500_000, 64)(ids), keras.layers.Embedding(9, 2)(keras.layers.Hashing(9)(text))]
        x = keras.layers.Flatten()(keras.layers.Concatenate()(rows))
        model = keras.Model([ids, text], keras.layers.Dense(1)(x))
        print(resident())
        return model

    def read(self, start, length):
        ids = np.arange(start, start + length)
        return {"ids": ids, "text": ids.astype(str), "label": ids % 2}

def resident():
    gc.collect()
    return psutil.Process().memory_info().rss

program = make_program(Task(), Options())
program.warm()
print(resident())
"""


@pytest.mark.night
def test_a_worker_does_not_hold_a_table_of_the_servers():
    """TensorFlow gives memory back only without oneDNN, whose allocator keeps it for later tensors."""
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0", "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run([sys.executable, "-c", MEMORY], env=environment, capture_output=True, text=True, check=True)
    built, ready = map(int, done.stdout.split())
    assert built - ready > 0.8 * 500_000 * 64 * 4


def test_decay_of_weights_is_refused_where_differences_are_kept():
    with pytest.raises(ModelRefused, match=r"layer users has initial values of its own.*AdamW"):
        make_program(Task(TAKEN["normal"]), Options(optimizer="adamw"))


def test_the_public_function_adapts_whatever_the_inputs_are_called():
    def build() -> Any:
        rows = keras.Input((2,), name="rows", dtype="int64")
        return stretto.adapt(keras.Model(rows, layers.Dense(1)(layers.Flatten()(layers.Embedding(ITEMS, 3)(rows)))))

    def read(start: int, length: int) -> Any:
        found = columns(start, length)
        return {"rows": np.stack([found["item"], found["item"]], axis=1), "label": found["label"]}

    assert len(program_of(Kind("", build, read)).embeddings) == 1


def test_the_example_of_the_document_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    task, trial = (block.split("```")[0] for block in DOCUMENT.read_text().split("```python\n")[1:3])
    (tmp_path / "ranking.py").write_text(task)
    monkeypatch.syspath_prepend(str(tmp_path))
    exec(compile(trial, DOCUMENT.name, "exec"), {})
    found = re.search(r"metrics={'auc': ([0-9.]+)}", capsys.readouterr().out)
    assert float(found.group(1)) > 0.95


def test_the_document_lists_what_was_tried():
    table = document_table(TAKEN, REFUSED)
    assert table in DOCUMENT.read_text(), f"the table of {DOCUMENT.name} is to be\n{table}"

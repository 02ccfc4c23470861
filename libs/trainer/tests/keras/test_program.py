"""Models: examples learn, models that cannot be trained are refused with a remedy, results equal those of Keras."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from clicks import readme_code, write_clicks
from criteo_file import write_criteo
from stretto.errors import DataError, ModelRefused
from stretto.readers.synthetic import Synthetic
from stretto_wire.jobspec.spec import JobSpec, ModelSpec, UpdateRule

pytestmark = pytest.mark.slow

keras = pytest.importorskip("keras")

from stretto.build import make_program, options_of  # noqa: E402
from stretto.examples.dcn import DCN  # noqa: E402
from stretto.examples.wide_deep import WideDeep  # noqa: E402
from stretto.examples.xdeepfm import XDeepFM  # noqa: E402
from stretto.model.entry_point import instantiate, load  # noqa: E402
from stretto.model.program import Options, Program, Rows  # noqa: E402
from stretto.optimizers import Clipping, RowWiseAdagrad  # noqa: E402
from stretto.trial.local import train_locally  # noqa: E402
from stretto_parameters.optimizers import OPTIMIZERS, SGD, Adagrad, Adam, AdamW, Ftrl, Moving, RMSprop  # noqa: E402
from stretto_parameters.optimizers.schedules import Cosine, Exponential, Warmup  # noqa: E402


class Task:
    """The smallest task: 3 fields of 4 floats, 2 numbers; ``build`` comes from the test."""

    def __init__(self, build: Any = None, **attributes: Any) -> None:
        self._build = build or functional
        for name, value in attributes.items():
            setattr(self, name, value)

    def build(self) -> Any:
        return self._build()

    def read(self, start: int, length: int) -> dict[str, Any]:
        place = np.arange(start, start + length)
        label = (place % 3 == 0).astype(np.float32)
        return {
            "label": label,
            "numeric": np.stack([label + 0.1 * (place % 5), place % 2], axis=1).astype(np.float32),
            "categorical": np.stack([place % 3, place % 7, place % 11], axis=1).astype(np.int64),
        }


def program_of(task: Any, **options: Any) -> Program:
    return make_program(task, Options(**options))


def rows_for(program: Any, keys: Any, seed: int | None = None) -> tuple[np.ndarray, ...]:
    """Return rows of ones, or of random values, for each table."""
    shapes = [(len(of), table.dimension) for of, table in zip(keys.tables, program.layout.tables, strict=True)]
    random = np.random.default_rng(seed)
    return tuple(
        np.ones(shape, np.float32) if seed is None else random.normal(size=shape).astype(np.float32) for shape in shapes
    )


def inputs() -> tuple[Any, Any]:
    return keras.Input((3, 4), name="rows"), keras.Input((2,), name="numeric")


def functional(*layers: Any, activation: str | None = None) -> Any:
    rows, numeric = inputs()
    x = keras.layers.Concatenate()([keras.layers.Flatten()(rows), numeric])
    for layer in layers:
        x = layer(x)
    return keras.Model([rows, numeric], keras.layers.Dense(1, activation=activation)(x))


# --- the examples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [WideDeep, DCN, XDeepFM])
def test_the_examples_learn(model: type):
    arguments = {"seed": 4, "categories": 3000, "hidden": "32"}
    trained = train_locally(
        model, 25_000, arguments=arguments, evaluate_samples=8000, embedding_dim=8, learning_rate=0.1
    )
    assert trained.steps == -(-25_000 // 512)
    assert trained.quality.samples == 8000
    assert trained.quality.auc > 0.6  # untrained: 0.5 +- 0.01; a batch's loss would be noise


def test_an_example_reads_a_file_of_criteo_format(tmp_path: Path):
    write_criteo(Synthetic(4, categories=3000), str(tmp_path / "day.tsv"), 0, 3000)
    arguments: dict[str, Any] = {"data": str(tmp_path / "day.tsv"), "hidden": "8"}
    trained = train_locally(WideDeep, 2048, arguments=arguments, evaluate_samples=900)
    generated = train_locally(
        WideDeep, 2048, arguments={"seed": 4, "categories": 3000, "hidden": "8"}, evaluate_samples=900
    )
    # the pull of a batch runs beside the step before, so two runs differ in the last digits
    assert trained.quality.loss == pytest.approx(generated.quality.loss, rel=0.02)


def test_the_example_of_the_readme_works(tmp_path: Path):
    code = readme_code("import keras, numpy as np, stretto\nfrom")
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    arguments = {"data": write_clicks(tmp_path)}
    options: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.02, "evaluate_samples": 1000}
    trained = train_locally(names["Clicks"], 5000, arguments=arguments, batch_size=50, **options)
    assert trained.quality.auc > 0.75


def test_adam_learns():
    trained = train_locally(Task(), 3000, batch_size=100, optimizer="adam", learning_rate=0.02, evaluate_samples=500)
    assert trained.quality.auc > 0.95


# --- a step is what Keras computes ---------------------------------------------------------------------------


def test_gradients_are_those_of_the_keras_model():
    import tensorflow as tf

    program = program_of(Task(lambda: functional(keras.layers.Dense(5, activation="tanh", kernel_regularizer="l2"))))
    batch = program.read(10, 8)
    keys = program.index(batch)
    rows = rows_for(program, keys, 1)
    found = program.step(rows, keys, program.initial_dense(), program.initial_state(), batch)

    model = program.model
    table = tf.Variable(rows[0])
    with tf.GradientTape() as tape:
        output = model([tf.gather(table, keys.tables[0].inverse), tf.constant(batch["numeric"])], training=True)
        loss = keras.losses.BinaryCrossentropy(from_logits=True)(batch["label"][:, None], output) + sum(model.losses)
    of_rows, *of_dense = tape.gradient(loss, [table, *model.trainable_variables])
    np.testing.assert_allclose(found.loss, float(loss), rtol=1e-5)
    np.testing.assert_allclose(found.rows[0], tf.convert_to_tensor(of_rows).numpy(), rtol=1e-4, atol=1e-6)
    flat = np.concatenate([gradient.numpy().reshape(-1) for gradient in of_dense])
    np.testing.assert_allclose(found.dense, flat, rtol=1e-4, atol=1e-6)
    probability = program.predict(rows, keys, program.initial_dense(), program.initial_state(), batch)
    np.testing.assert_allclose(probability, tf.sigmoid(output).numpy()[:, 0], rtol=1e-5)


def test_a_sigmoid_at_the_end_and_a_compiled_loss_are_understood():
    probability = program_of(Task(lambda: functional(activation="sigmoid")))
    logit = program_of(Task(functional))
    batch = logit.read(0, 16)
    keys = logit.index(batch)
    rows = rows_for(logit, keys)
    dense, state = logit.initial_dense(), logit.initial_state()
    a, b = (p.step(rows, keys, dense, state, batch) for p in (probability, logit))
    assert a.loss == pytest.approx(b.loss, rel=1e-4)
    np.testing.assert_allclose(*(p.predict(rows, keys, dense, state, batch) for p in (probability, logit)), rtol=1e-5)

    def compiled() -> Any:
        model = functional(activation="sigmoid")
        model.compile(optimizer="adam", loss="mse")
        return model

    squared = program_of(Task(compiled))
    assert isinstance(squared.layout.optimizer, Adam)
    predicted = squared.predict(rows, keys, dense, state, batch)
    loss = squared.step(rows, keys, dense, state, batch).loss
    assert loss == pytest.approx(float(np.mean((predicted - batch["label"]) ** 2)), rel=1e-4)


def test_batch_normalisation_keeps_its_moments_on_the_servers():
    program = program_of(Task(lambda: functional(keras.layers.BatchNormalization(momentum=0.5))))
    assert program.layout.state_size == 2 * 14
    batch = program.read(0, 64)
    keys = program.index(batch)
    rows, state = rows_for(program, keys), program.initial_state()
    delta = program.step(rows, keys, program.initial_dense(), state, batch).state_delta
    assert delta[0] == pytest.approx(0.5)  # moving mean of a constant 1, half way from 0
    trained = train_locally(
        Task(lambda: functional(keras.layers.BatchNormalization())), 4000, batch_size=100, evaluate_samples=500
    )
    assert trained.quality.auc > 0.9
    moments = trained.model().layers[-2].moving_mean.numpy()
    assert np.abs(moments).max() > 0.05


def test_dropout_draws_anew_in_every_step():
    program = program_of(Task(lambda: functional(keras.layers.Dropout(0.5))))
    batch = program.read(0, 64)
    keys = program.index(batch)
    rows = rows_for(program, keys)
    losses = {program.step(rows, keys, program.initial_dense(), program.initial_state(), batch).loss for _ in range(4)}
    assert len(losses) == 4


def test_every_process_builds_the_same_start():
    a, b = program_of(Task(), seed=5), program_of(Task(), seed=5)
    assert a.layout == b.layout
    np.testing.assert_array_equal(a.initial_dense(), b.initial_dense())
    assert not np.array_equal(a.initial_dense(), program_of(Task(), seed=6).initial_dense())


# --- refusals ------------------------------------------------------------------------------------------------


def two_outputs() -> Any:
    rows, numeric = inputs()
    return keras.Model([rows, numeric], [keras.layers.Dense(1)(numeric), keras.layers.Flatten()(rows)])


def flat_rows() -> Any:
    rows = keras.Input((12,), name="rows")
    return keras.Model(rows, keras.layers.Dense(1)(rows))


def own_table() -> Any:
    rows, numeric = inputs()
    words = keras.Input((1,), name="words")
    table = keras.layers.Flatten()(keras.layers.Embedding(2_000_000, 8)(words))
    x = keras.layers.Concatenate()([keras.layers.Flatten()(rows), numeric, table])
    return keras.Model([rows, numeric, words], keras.layers.Dense(1)(x))


def half_precision() -> Any:
    return functional(keras.layers.Dense(3, dtype="float16"))


def sequential() -> Any:
    return keras.Sequential([keras.Input((3, 4), name="rows"), keras.layers.Flatten(), keras.layers.Dense(1)])


def text_input() -> Any:
    rows, numeric = inputs()
    city = keras.Input((1,), name="city", dtype="string")
    hashed = keras.layers.Flatten()(keras.layers.Lambda(lambda text: keras.ops.ones_like(text, "float32"))(city))
    x = keras.layers.Concatenate()([keras.layers.Flatten()(rows), numeric, hashed])
    return keras.Model([rows, numeric, city], keras.layers.Dense(1)(x))


def failing() -> Any:
    raise ValueError("no such layer")


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (two_outputs, "2 outputs; expected one"),
        (lambda: functional(), None),
        (flat_rows, r"expected \(None, fields, dimension\)"),
        (own_table, "2000000 x 8 floats.*rows"),
        (half_precision, "float16; parameters are float32"),
        (sequential, r"keras.Sequential.*keras.Model\(model.inputs, model.outputs\)"),
        (text_input, "'city' has type string.*hash_strings"),
        (failing, "build\\(\\) failed: ValueError: no such layer"),
        (lambda: "a model", "gave str; expected a keras.Model"),
    ],
)
def test_models_that_cannot_be_trained(build: Any, named: str | None):
    if named is None:
        program_of(Task(build))
        return
    with pytest.raises(ModelRefused, match=f"(?s){named}"):
        program_of(Task(build))


def test_the_functional_model_of_a_sequential_one_is_taken():
    def build() -> Any:
        model = sequential()
        return keras.Model(model.inputs, model.outputs)

    program: Any = program_of(Task(build))
    assert program.tables["rows"] == Rows(3, 4)
    assert program.layout.dense_size == 13


def used_optimizer() -> Any:
    optimizer = keras.optimizers.Adam()
    optimizer.build([keras.Variable(np.zeros(2, np.float32))])
    return optimizer


def test_a_job_may_name_every_optimizer_of_the_store():
    """The names stand in the job's schema and in the store."""
    assert set(get_args(UpdateRule)) == set(OPTIMIZERS)


def test_a_job_may_name_a_rule_of_rows_and_one_of_dense_parameters():
    rules = {"rows": "rowwise-adagrad", "dense": {"name": "adam", "learning_rate": 0.001}}
    model = {"entry": "m:M", "optimizer": rules, "learning_rate": 0.2}
    job = JobSpec.parse({"name": "a", "model": model, "dataset": {"samples": 5}})
    layout = make_program(Task(), options_of(job)).layout
    assert (layout.tables[0].optimizer, layout.optimizer) == (RowWiseAdagrad(0.2), Adam(0.001))
    assert program_of(Task(optimizer="sgd"), optimizer=options_of(job).optimizer).updates.rules[0].told()[:3] == "SGD"


def schedule(name: str, *arguments: Any, **options: Any) -> Any:
    return getattr(keras.optimizers.schedules, name)(*arguments, **options)


def excluding() -> Any:
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (lambda: "lamb", "'lamb' is not supported: use sgd, adagrad"),
        (lambda: keras.optimizers.Nadam(), "Nadam is not supported"),
        (used_optimizer, "used already.*fresh one"),
        (lambda: keras.optimizers.Adam(schedule("PolynomialDecay", 0.1, 10)), "PolynomialDecay: give a number, Expo"),
        (lambda: keras.optimizers.Ftrl(schedule("CosineDecay", 0.1, 10)), "Ftrl reaches 0"),
        (lambda: keras.optimizers.Adam(amsgrad=True), "amsgrad=True"),
        (lambda: keras.optimizers.Adam(weight_decay=0.1), "weight_decay=0.1"),
        (lambda: keras.optimizers.RMSprop(centered=True), "centered=True"),
        (lambda: keras.optimizers.SGD(use_ema=True), "use_ema=True"),
        (excluding, "exclude_from_weight_decay"),
        (lambda: object(), "neither a name nor a Keras optimizer"),
    ],
)
def test_optimizers_that_the_servers_do_not_have(optimizer: Any, named: str):
    with pytest.raises(ModelRefused, match=named):
        program_of(Task(optimizer=optimizer()))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (lambda: "RMSprop", RMSprop(0.05)),
        (lambda: "rowwise-adagrad", RowWiseAdagrad(0.05)),
        (lambda: RowWiseAdagrad(Cosine(0.3, 1000)), RowWiseAdagrad(Cosine(0.3, 1000))),
        (lambda: keras.optimizers.Adam(0.25, beta_1=0.8), Adam(0.25, 0.8)),
        (lambda: keras.optimizers.AdamW(0.25), AdamW(0.25, weight_decay=0.004)),
        (lambda: keras.optimizers.Adagrad(0.25, initial_accumulator_value=0.2), Adagrad(0.25, 0.2)),
        (lambda: keras.optimizers.SGD(0.25, momentum=0.5, nesterov=True), SGD(0.25, 0.5, True)),
        (lambda: keras.optimizers.Ftrl(0.25, beta=0.5), Ftrl(0.25, beta=0.5)),
        (
            lambda: keras.optimizers.SGD(schedule("ExponentialDecay", 0.1, 20, 0.7, staircase=True)),
            SGD(Exponential(0.1, 0.7, 2000, True)),
        ),
        (lambda: keras.optimizers.SGD(schedule("CosineDecay", 0.1, 20, alpha=0.2)), SGD(Cosine(0.1, 2000, 0.2))),
        (
            lambda: keras.optimizers.Adam(schedule("CosineDecay", 0.0, 20, warmup_target=0.5, warmup_steps=5)),
            Adam(Warmup(Cosine(0.5, 2000), 500, 0.0)),
        ),
    ],
)
def test_an_optimizer_is_the_stores_of_the_same_figures(given: Any, expected: Any):
    """Steps, of a schedule and of rows, become samples: those of a batch, 100 here. The formulas agree
    (libs/parameters/tests)."""
    layout = program_of(Task(optimizer=given()), batch_size=100).layout
    assert getattr(layout.optimizer, "step_samples", None) == (100 if isinstance(expected, Moving) else None)
    assert layout.optimizer == layout.tables[0].optimizer == expected


@pytest.mark.parametrize(
    ("option", "limits"),
    [
        ("clipvalue", Clipping(value=1e-3)),
        ("clipnorm", Clipping(norm=1e-3)),
        ("global_clipnorm", Clipping(global_norm=1e-3)),
    ],
)
def test_gradients_are_clipped_as_keras_clips_them(option: str, limits: Clipping):
    """A table counts as one variable with the gradient of the batch's unique rows: all others are 0."""
    plain = program_of(Task())
    batch = plain.read(0, 32)
    keys = plain.index(batch)
    values = (rows_for(plain, keys, 2), keys, plain.initial_dense(), plain.initial_state(), batch)
    whole, optimizer = plain.step(*values), keras.optimizers.SGD(**{option: 1e-3})
    tensors = [
        keras.ops.convert_to_tensor(each) for each in (*whole.rows, whole.dense[:14].reshape(14, 1), whole.dense[14:])
    ]
    expected = [np.asarray(each) for each in optimizer._clip_gradients(tensors)]
    for task in (Task(optimizer=optimizer), Task(clipping=limits)):
        found = program_of(task).step(*values)
        np.testing.assert_allclose(found.rows[0], expected[0], rtol=1e-5)
        np.testing.assert_allclose(found.dense, np.concatenate([each.reshape(-1) for each in expected[1:]]), rtol=1e-5)
        assert found.loss == whole.loss
    with pytest.raises(ModelRefused, match="beside"):
        program_of(Task(optimizer=optimizer, clipping=limits))
    with pytest.raises(ModelRefused, match=r"clipping = 1: give stretto\.optimizers\.Clipping"):
        program_of(Task(clipping=1))


def test_each_rule_clips_the_gradients_of_its_own_variables_as_keras_does():
    whole, first, second = (
        program_of(Task(optimizer=given), learning_rate=0.1)
        for given in (
            "sgd",
            {"rows": keras.optimizers.SGD(clipnorm=1e-3), "dense": keras.optimizers.Adam(global_clipnorm=2e-3)},
            {"rows": keras.optimizers.SGD(), "dense": keras.optimizers.Adam(clipvalue=1e-3)},
        )
    )
    batch = whole.read(0, 32)
    keys = whole.index(batch)
    values = (rows_for(whole, keys, 2), keys, whole.initial_dense(), whole.initial_state(), batch)
    found = whole.step(*values)
    dense = [keras.ops.convert_to_tensor(each) for each in (found.dense[:14].reshape(14, 1), found.dense[14:])]
    for program, rows in ((first, {"clipnorm": 1e-3}), (second, {})):
        options = {"global_clipnorm": 2e-3} if rows else {"clipvalue": 1e-3}
        expected = keras.optimizers.SGD(**options)._clip_gradients(dense)
        clipped = keras.optimizers.SGD(**rows)._clip_gradients([keras.ops.convert_to_tensor(found.rows[0])])
        step = program.step(*values)
        np.testing.assert_allclose(step.dense, np.concatenate([np.reshape(each, -1) for each in expected]), rtol=1e-5)
        np.testing.assert_allclose(step.rows[0], clipped[0], rtol=1e-5)
        assert not np.allclose(step.dense, found.dense)


def two_tables() -> Any:
    users, cities = keras.Input((1, 6), name="rows_user"), keras.Input((2, 3), name="rows_city")
    x = keras.layers.Concatenate()([keras.layers.Flatten()(users), keras.layers.Flatten()(cities)])
    return keras.Model([users, cities], keras.layers.Dense(1)(x))


def two_keys(batch: Any) -> Any:
    return {"rows_city": batch["categorical"][:, 1:], "rows_user": batch["categorical"][:, :1]}


@pytest.mark.parametrize("options", [{}, {"row_weights": "bfloat16", "transfer": "bfloat16"}])
def test_tables_of_different_width_learn(options: Any):
    trained = train_locally(
        Task(two_tables, keys=two_keys), 6000, batch_size=100, learning_rate=0.2, evaluate_samples=500, **options
    )
    assert [table.dimension for table in trained.program.layout.tables] == [3, 6]
    assert trained.quality.auc > 0.95


def test_half_precision_changes_the_loss_by_little():
    """Values of 8 bits of precision, on the servers and on the way: Wide & Deep within 1 % of its loss."""
    losses = {}
    wire = {"pull": "bfloat16", "push": "int8"}
    for options in ({}, {"row_weights": "bfloat16"}, {"transfer": "bfloat16"}, {"wire": wire}):
        arguments = {"seed": 4, "categories": 3000, "hidden": "32"}
        trained = train_locally(
            WideDeep, 20_000, arguments=arguments, evaluate_samples=8000, embedding_dim=8, learning_rate=0.1,
            pipeline=False, **options,  # type: ignore[arg-type]
        )  # fmt: skip
        losses[str(options)] = trained.quality.loss
    exact = losses.pop("{}")
    assert all(0 < abs(each - exact) < 0.01 * exact for each in losses.values()), (exact, losses)


def test_embedding_dim_of_the_specification_must_be_the_models():
    with pytest.raises(ModelRefused, match=r"model\.embedding_dim = 8.*4 floats per row"):
        program_of(Task(), embedding_dim=8, is_dimension_stated=True)


def spec(entry: str, **arguments: Any) -> ModelSpec:
    return ModelSpec(entry=entry, arguments=arguments)


@pytest.mark.parametrize(
    ("entry", "arguments", "named"),
    [
        ("no_such_module:Model", {}, "no module 'no_such_module'; set model.path"),
        ("needing_entry:Model", {}, "no module 'no_such_package'; put .* a package into model.requirements"),
        ("stretto.examples.dcn:Nothing", {}, "has no 'Nothing'"),
        ("broken_entry:Model", {}, "failed on import: ZeroDivisionError"),
        ("stretto.examples.dcn:DCN", {"colour": "red"}, "model.arguments.colour is not an argument"),
        ("stretto.examples.dcn:DCN", {"hidden": "many"}, "hidden = 'many'"),
        ("stretto.readers.synthetic:Synthetic", {}, "has no method build"),
        ("stretto.model.keys:VALUE_BITS", {"a": 1}, "cannot be given to an object"),
    ],
)
def test_entries_that_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, arguments: Any, named: str
):
    (tmp_path / "broken_entry.py").write_text("1 / 0\n")
    (tmp_path / "needing_entry.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("broken_entry", None)
    with pytest.raises(ModelRefused, match=named):
        load(spec(entry, **arguments))


def test_a_folder_of_the_model_that_does_not_exist_is_named(tmp_path: Path):
    missing = ModelSpec(entry="no_such_module:Model", path=str(tmp_path / "absent"))
    with pytest.raises(ModelRefused, match=r"model\.path = .*/absent does not exist where the pods run; set it"):
        load(missing)
    there = ModelSpec(entry="no_such_module:Model", path=str(tmp_path))
    with pytest.raises(ModelRefused, match=r"'no_such_module'; set model\.path to the folder that holds it"):
        load(there)


def test_embedding_dim_reaches_the_entry():
    assert load(ModelSpec(entry="stretto.examples.dcn:DCN", embedding_dim=24)).embedding_dim == 24
    assert instantiate(WideDeep, {"embedding_dim": 9}, 24).embedding_dim == 9


# --- data ----------------------------------------------------------------------------------------------------


def reading(**changes: Any) -> Any:
    def read(start: int, length: int) -> dict[str, Any]:
        batch = Task().read(start, length)
        for name, value in changes.items():
            batch[name] = value(batch[name]) if callable(value) else value
        return batch

    return read


def spoil(values: Any) -> Any:
    values[5, 1] = np.nan
    return values


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (reading(label=lambda v: v[1:]), r"read\(100, 20\): 'label' has shape \(19,\), expected 20 samples"),
        (reading(numeric=lambda v: v[:, :1]), r"'numeric' has shape \(20, 1\), the model wants"),
        (reading(numeric=spoil), "sample 105: 'numeric' is not finite"),
        (
            reading(label=lambda v: v * 5),
            r"sample 102: 'label' = 5; give 0 or 1, or the task's own loss\(label, output\)",
        ),
        (reading(numeric=lambda v: v.astype(str)), "'numeric' has type <U"),
        (lambda start, length: {"label": np.zeros(length)}, "input 'numeric' is missing"),
        (lambda start, length: [1], "gave list; expected a dict"),
        (lambda start, length: 1 / 0, r"read\(100, 20\) failed: ZeroDivisionError"),
    ],
)
def test_batches_that_are_wrong_are_named(read: Any, named: str):
    program = program_of(Task(read=read))
    with pytest.raises(DataError, match=named):
        program.read(100, 20)


def test_a_loss_of_the_users_takes_any_label():
    program = program_of(Task(read=reading(label=lambda v: v * 5), loss=lambda label, output: (label - output) ** 2))
    assert set(program.read(100, 20)["label"]) == {0, 5}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        (lambda batch: batch["categorical"][:, :2], r"expected int64 \(20, 3\)"),
        (lambda batch: batch["numeric"], "gave float32"),
        (lambda batch: batch["nothing"], "failed: KeyError"),
        (lambda batch: {"rows_of_others": batch["categorical"]}, r"ids for \['rows_of_others'\]; the model's tables"),
    ],
)
def test_keys_that_are_wrong_are_named(keys: Any, named: str):
    program = program_of(Task(keys=keys))
    with pytest.raises(DataError, match=named):
        program.index(program.read(100, 20))


def test_a_loss_that_is_not_finite_is_never_pushed():
    program = program_of(Task(loss=lambda label, output: output * float("nan")))
    batch = program.read(0, 8)
    keys = program.index(batch)
    with pytest.raises(ModelRefused, match=r"the loss is nan.*learning_rate"):
        program.step(rows_for(program, keys), keys, program.initial_dense(), program.initial_state(), batch)

"""The store against Keras and against the engine that it replaces. Only this file imports TensorFlow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stretto_parameters import Clipping, Layout, Own, Push, Store, Table
from stretto_parameters.optimizers import SGD, Adagrad, Adam, AdamW, Ftrl, Optimizer, RMSprop
from stretto_parameters.optimizers.schedules import Cosine, Exponential, Warmup

pytestmark = pytest.mark.slow
STEPS = 300
SIZE = 40
BATCH = 32

PAIRS: dict[str, tuple[Optimizer, str, dict[str, Any]]] = {
    "sgd": (SGD(0.1), "SGD", {"learning_rate": 0.1}),
    "momentum": (SGD(0.1, 0.9), "SGD", {"learning_rate": 0.1, "momentum": 0.9}),
    "nesterov": (SGD(0.1, 0.9, True), "SGD", {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True}),
    "adagrad": (Adagrad(0.05), "Adagrad", {"learning_rate": 0.05}),
    "adagrad-epsilon": (Adagrad(0.05, epsilon=0.1), "Adagrad", {"learning_rate": 0.05, "epsilon": 0.1}),
    "adam": (Adam(0.01), "Adam", {"learning_rate": 0.01}),
    "adamw": (AdamW(0.01, weight_decay=0.1), "AdamW", {"learning_rate": 0.01, "weight_decay": 0.1}),
    "rmsprop": (RMSprop(0.01), "RMSprop", {"learning_rate": 0.01}),
    "rmsprop-momentum": (RMSprop(0.01, momentum=0.9), "RMSprop", {"learning_rate": 0.01, "momentum": 0.9}),
    "ftrl": (Ftrl(0.1), "Ftrl", {"learning_rate": 0.1}),
    "ftrl-all": (
        Ftrl(0.1, l1=0.01, l2=0.02, l2_shrinkage=0.03, beta=0.1),
        "Ftrl",
        {
            "learning_rate": 0.1,
            "l1_regularization_strength": 0.01,
            "l2_regularization_strength": 0.02,
            "l2_shrinkage_regularization_strength": 0.03,
            "beta": 0.1,
        },
    ),
}


def trained(optimizer: Optimizer, start: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Push gradients to a dense vector and to one row; return both after the last."""
    layout = Layout((Table(SIZE, optimizer, initial_scale=0.0),), SIZE, buckets=2, slices=3, optimizer=optimizer)
    store = Store(layout, 2**30)
    store.set_own(range(layout.columns), Own.MINE)
    padded = np.zeros(3 * layout.slice_length, np.float32)
    padded[:SIZE] = start
    store.seed(padded.reshape(3, -1), np.zeros(0, np.float32))
    key = np.array([9], np.uint64)
    for step, gradient in enumerate(gradients):
        padded = np.zeros(3 * layout.slice_length, np.float32)
        padded[:SIZE] = gradient
        answer = store.push(
            Push(
                *(1, 0, BATCH * step, BATCH * (step + 1), 0),
                *(np.ones(layout.columns, np.bool_), [key], [gradient[None]], padded.reshape(3, -1)),
                np.zeros(0, np.float32),
            )
        )
        assert answer.applied == layout.columns
    found = store.pull([key], np.arange(3))
    return found.slices.reshape(-1)[:SIZE], found.rows[0][0]


def keras_trained(name: str, options: dict[str, Any], start: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    import keras
    import tensorflow as tf

    variable = keras.Variable(start)
    optimizer = getattr(keras.optimizers, name)(**options)
    optimizer.build([variable])

    @tf.function  # one graph of all steps: a step of no graph takes ten times as long
    def train(steps: Any) -> None:
        for gradient in steps:
            optimizer.apply([gradient], [variable])

    train(tf.constant(gradients))
    return np.asarray(variable)


@pytest.mark.parametrize("name", PAIRS)
def test_an_optimizer_equals_that_of_keras(name: str) -> None:
    """Dense vector and row, 300 steps. Other formulas differ by more than 1e-3 here (`..._would_be_seen`)."""
    ours, theirs, options = PAIRS[name]
    random = np.random.default_rng(5)
    start = random.normal(0, 0.5, SIZE).astype(np.float32)
    gradients = random.normal(0, 1, (STEPS, SIZE)).astype(np.float32)
    found = np.concatenate(trained(ours, start, gradients))  # a row starts from 0
    expected = keras_trained(theirs, options, np.append(start, 0 * start), np.tile(gradients, 2))
    assert found == pytest.approx(expected, abs=2e-5, rel=2e-5)


def rarely(random: np.random.Generator) -> np.ndarray:
    """Return gradients of which most steps, the last ones too, have none: [steps, size]."""
    gradients = random.normal(0, 1, (STEPS, SIZE)).astype(np.float32)
    gradients[random.random(STEPS) < 0.95] = 0
    gradients[-20:-5], gradients[-5:] = 1, 0
    return gradients


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("adam", 0.02),
        ("adamw", 0.02),
        *((name, 1e-5) for name in ("momentum", "nesterov", "rmsprop", "rmsprop-momentum")),
    ],
)
def test_a_row_makes_the_steps_that_it_missed(name: str, error: float) -> None:
    """Keras changes each row of a table in each step, by its momentum alone where the batch does not have it.

    Adam's closed form takes the squares of one moment for all missed steps; the others are exact.
    """
    ours, theirs, options = PAIRS[name]
    scaled = [rarely(np.random.default_rng(8)) * np.float32(scale) for scale in (1e-4, 1.0)]
    both = keras_trained(theirs, options, np.zeros(2 * SIZE, np.float32), np.concatenate(scaled, axis=1))
    for gradients, expected in zip(scaled, np.split(both, 2), strict=True):
        shared, lazy = (pushed_rarely(replace(ours, step_samples=each), gradients) for each in (BATCH, 0))
        assert shared == pytest.approx(expected, rel=error, abs=error * float(np.abs(expected).max()))
        assert np.abs(lazy - expected).max() > 5 * error * np.abs(expected).max()


def pushed_rarely(optimizer: Optimizer, gradients: np.ndarray) -> np.ndarray:
    """Push the gradients that are not 0 for one row, and batches without it for the others; return the row."""
    layout = Layout((Table(SIZE, optimizer, initial_scale=0.0),), SIZE, buckets=2, slices=3, optimizer=optimizer)
    store = Store(layout, 2**30)
    store.set_own(range(layout.columns), Own.MINE)
    store.seed(np.zeros((3, layout.slice_length), np.float32), np.zeros(0, np.float32))
    claim, slices = np.ones(layout.columns, np.bool_), np.zeros((3, layout.slice_length), np.float32)
    key, none = np.array([9], np.uint64), np.zeros(0, np.uint64)
    for step, gradient in enumerate(gradients):
        keys, rows = (key, gradient[None]) if gradient.any() else (none, np.zeros((0, SIZE), np.float32))
        batch = (1, 0, BATCH * step, BATCH * (step + 1), 0)
        assert store.push(Push(*batch, claim, [keys], [rows], slices, np.zeros(0, np.float32))).applied
    return store.pull([key], np.arange(3)).rows[0][0]


def test_a_formula_that_is_slightly_another_one_would_be_seen() -> None:
    random = np.random.default_rng(5)
    start = random.normal(0, 0.5, SIZE).astype(np.float32)
    gradients = random.normal(0, 1, (STEPS, SIZE)).astype(np.float32)
    theirs = keras_trained("RMSprop", {"learning_rate": 0.01}, start, gradients)
    others = (RMSprop(0.01, rho=0.89), Adam(0.01), RMSprop(0.01, epsilon=1e-2))
    assert min(np.abs(trained(other, start, gradients)[0] - theirs).max() for other in others) > 1e-3


def test_a_schedule_by_samples_equals_that_of_keras_by_steps() -> None:
    import keras

    schedules = keras.optimizers.schedules
    pairs = [
        (Exponential(0.1, 0.7, 20 * BATCH), schedules.ExponentialDecay(0.1, 20, 0.7)),
        (Exponential(0.1, 0.7, 20 * BATCH, True), schedules.ExponentialDecay(0.1, 20, 0.7, staircase=True)),
        (Cosine(0.1, 150 * BATCH, 0.1), schedules.CosineDecay(0.1, 150, alpha=0.1)),
        (
            Warmup(Cosine(0.1, 100 * BATCH), 50 * BATCH, first=0.2),
            schedules.CosineDecay(0.02, 100, warmup_target=0.1, warmup_steps=50),
        ),
    ]
    for ours, theirs in pairs:
        for step in (0, 1, 19, 20, 49, 50, 99, 160, 400):
            assert ours.rate(step * BATCH) == pytest.approx(float(theirs(step)), rel=1e-5, abs=1e-8), (ours, step)
    random = np.random.default_rng(6)
    start = random.normal(0, 0.5, SIZE).astype(np.float32)
    gradients = random.normal(0, 1, (STEPS, SIZE)).astype(np.float32)
    expected = keras_trained("Adam", {"learning_rate": pairs[-1][1]}, start, gradients)
    assert trained(Adam(pairs[-1][0]), start, gradients)[0] == pytest.approx(expected, abs=2e-5)


def test_clipping_equals_that_of_keras() -> None:
    import keras

    random = np.random.default_rng(7)
    gradients = [random.normal(0, 2, shape).astype(np.float32) for shape in ((4, 5), (7,))]
    tensors = [keras.ops.convert_to_tensor(each) for each in gradients]
    for ours, option in (
        (Clipping(value=0.3).apply(gradients), "clipvalue"),
        (Clipping(norm=0.3).apply(gradients), "clipnorm"),
        (Clipping(global_norm=0.3).apply(gradients), "global_clipnorm"),
    ):
        theirs = keras.optimizers.SGD(**{option: 0.3})._clip_gradients(tensors)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine == pytest.approx(np.asarray(other), rel=1e-5)

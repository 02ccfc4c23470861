"""Generated Keras models: each trains as plain Keras does, or is refused with a remedy; none differs in silence."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from stretto.errors import ModelRefused

pytestmark = pytest.mark.slow

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")

from generated import BATCH, ERROR, Samples, trained  # noqa: E402
from stretto.optimizers import Clipping  # noqa: E402

layers, ops, optimizers = keras.layers, keras.ops, keras.optimizers


class Averaging(layers.Layer):
    """Keeps a moving mean of what it sees, and takes it off."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")

    def call(self, given: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(given, axis=0))
        return given - self.mean


class Annealing(layers.Layer):
    """Grows with the steps that it has counted."""

    def build(self, shape: Any) -> None:
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="int32", name="steps")

    def call(self, given: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign(self.steps + 1)
        return given * (1 + 0.1 * ops.cast(self.steps, "float32"))


class Clamping(layers.Layer):
    """Puts its weights into a range by assigning them."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones", name="scale")

    def call(self, given: Any) -> Any:
        self.scale.assign(ops.clip(self.scale, 0.0, 0.9))
        return given * self.scale


class Forgetful(layers.Layer):
    """Looks up another id while it is trained."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = table

    def call(self, ids: Any, training: bool = False) -> Any:
        return self.table(ids * 0 if training else ids)


def normal(draw: random.Random) -> Any:
    return keras.initializers.RandomNormal(0, 0.3, seed=draw.randrange(10**6))


def between(draw: random.Random, x: Any) -> Any:
    """Return a layer's output, of one of many kinds."""
    units = draw.choice((3, 5))
    seed = draw.randrange(1000)
    constraint = draw.choice((*[None] * 16, keras.constraints.NonNeg(), keras.constraints.MaxNorm(0.5)))
    kernel = {"kernel_initializer": normal(draw), "kernel_constraint": constraint}
    if draw.random() < 0.3:
        kernel["kernel_regularizer"] = draw.choice((keras.regularizers.L2(0.01), keras.regularizers.L1L2(0.01, 0.01)))
    kinds = (
        lambda: layers.Dense(units, "tanh", **kernel)(x),
        lambda: layers.Dense(units, "gelu", **kernel)(x),
        lambda: layers.BatchNormalization()(layers.Dense(units, use_bias=False, **kernel)(x)),
        lambda: layers.LayerNormalization()(layers.Dense(units, **kernel)(x)),
        lambda: layers.Dropout(0.3, seed=seed)(x),
        lambda: layers.GaussianNoise(0.1, seed=seed)(x),
        lambda: layers.Dense(units, activity_regularizer=keras.regularizers.L2(0.1), **kernel)(x),
        lambda: layers.SpectralNormalization(layers.Dense(units, kernel_initializer=normal(draw)))(x),
        lambda: Averaging()(x),
        lambda: Annealing()(x),
        lambda: Clamping()(x),
    )
    return draw.choices(kinds, [4] * 9 + [1] * 2)[0]()


def optimizer(draw: random.Random) -> Any:
    """Return an optimizer with options, some of which nobody but Keras applies."""
    rate: Any = draw.choice((0.01, 0.05))
    if draw.random() < 0.2:
        schedules = optimizers.schedules
        rate = draw.choice(
            (
                schedules.ExponentialDecay(rate, 2, 0.5),
                schedules.CosineDecay(rate, 10, 0.1),
                schedules.CosineDecay(rate / 10, 10, warmup_target=rate, warmup_steps=3),
                schedules.PiecewiseConstantDecay([1], [rate, rate / 10]),
            )
        )
    limits = (("clipnorm", 0.02), ("clipvalue", 0.002), ("global_clipnorm", 0.02))
    options: dict[str, Any] = dict([draw.choice(limits)])
    if draw.random() < 0.4:
        options = {}
    if draw.random() < 0.08:
        rare = (
            ("use_ema", True),
            ("gradient_accumulation_steps", 2),
            ("loss_scale_factor", 8.0),
            ("weight_decay", 0.1),
        )
        options |= dict([draw.choice(rare)])
    kinds: tuple[Any, ...] = (
        lambda: optimizers.SGD(rate, momentum=draw.choice((0.0, 0.9)), nesterov=draw.random() < 0.5, **options),
        lambda: optimizers.Adagrad(rate, **options),
        lambda: optimizers.Adam(rate, amsgrad=draw.random() < 0.08, **options),
        lambda: optimizers.AdamW(rate, **options),
        lambda: optimizers.RMSprop(rate, momentum=draw.choice((0.0, 0.9)), centered=draw.random() < 0.08, **options),
        lambda: optimizers.Ftrl(rate, l2_shrinkage_regularization_strength=draw.choice((0.0, 0.1)), **options),
        lambda: draw.choice((optimizers.Adadelta, optimizers.Adamax, optimizers.Nadam, optimizers.Lion))(
            rate, **options
        ),
    )
    weights = (3, 3, 4, 2, 3, 2, 1)
    return draw.choices(kinds, weights)[0]()


class Generated(Samples):
    """A model of a seed."""

    def build(self) -> Any:
        draw = random.Random(self.seed)
        inputs = {name: keras.Input((2,), name=name, dtype="int64") for name in self.sizes}
        parts: list[Any] = []
        width, is_kept = draw.choice((2, 4)), draw.random() < 0.3
        for name, size in self.sizes.items():
            penalty = draw.choice((None, None, None, keras.regularizers.L2(0.01)))
            start = draw.choice((normal(draw), "ones")) if is_kept else "uniform"
            options = {"embeddings_initializer": start, "embeddings_regularizer": penalty}
            options |= {"trainable": draw.random() < 0.9, "name": name + "_rows"}
            table = layers.Embedding(size, draw.choice((width, 3)), **options)
            looked = Forgetful(table)(inputs[name]) if draw.random() < 0.05 else table(inputs[name])
            parts.append(layers.Flatten()(looked) if draw.random() < 0.7 else layers.GlobalAveragePooling1D()(looked))
        x = layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
        for _ in range(draw.choice((0, 1, 2))):
            x = between(draw, x)
        units, activation, loss = {
            "binary": (1, "sigmoid", "binary_crossentropy"),
            "stars": (1, None, draw.choice(("mse", keras.losses.Huber()))),
            "class": (3, "softmax", "sparse_categorical_crossentropy"),
        }[self.target]
        model = keras.Model(inputs, layers.Dense(units, activation, kernel_initializer=normal(draw))(x))
        model.compile(optimizer(draw), loss, weighted_metrics=[] if self.target == "class" else ["mae"])
        return model


def _weights(model: Any) -> dict[str, Any]:
    """Return the variables of a model by path, but not the seeds of its layers."""
    return {each.path: each.numpy() for each in model.weights if "seed_generator" not in each.path}


@pytest.mark.parametrize("first", [pytest.param(n, marks=[pytest.mark.night] if n else []) for n in range(0, 100, 10)])
def test_a_generated_model_trains_as_keras_does_or_is_refused(first: int):
    refused: list[str] = []
    for seed in range(first, first + 10):
        task = Generated(seed)
        try:
            program, start = trained(task)
        except ModelRefused as error:
            refused.append(str(error))
            continue
        keras.utils.set_random_seed(0)
        plain = task.build()
        for name, rows in start.items():
            plain.get_layer(name).set_weights([rows])
        for begin in (0, BATCH):
            plain.train_on_batch(*task.read(begin, BATCH))
        found, expected = _weights(program.model), _weights(plain)
        for name, other in zip(found, expected, strict=True):
            rows = task.seen(name) if name.endswith("rows/embeddings") else slice(None)
            pair = (each[rows] if each.ndim else each for each in (found[name], expected[other]))
            np.testing.assert_allclose(*pair, rtol=1e-5, atol=ERROR, err_msg=f"{seed}: {name}")
    assert len(refused) < 9
    assert all(len(each) > 60 for each in refused)


class Divided(Generated):
    """A model of a seed with a rule for dense parameters, one for rows, and one for the rows of the first table."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        draw = random.Random(seed)
        self.optimizer = {name: optimizer(draw) for name in ("dense", "rows", "one_rows")}
        self.is_limited = not any(each.get_config()[limit] for each in self.optimizer.values() for limit in LIMITS)
        if self.is_limited:
            self.clipping = Clipping(global_norm=0.02)

    def build(self) -> Any:
        keras.utils.set_random_seed(self.seed)
        model = super().build()
        if not model.get_layer("one_rows").trainable:
            self.optimizer.pop("one_rows", None)
        return model

    def trained_by_keras(self, start: dict[str, Any]) -> Any:
        """Return the model after a step for each of the two batches, in a loop of one's own. start: first rows."""
        rules = {name: type(each).from_config(each.get_config()) for name, each in self.optimizer.items()}
        model = self.build()
        for name, rows in start.items():
            model.get_layer(name).set_weights([rows])
        for begin in (0, BATCH):
            inputs, labels, *weights = self.read(begin, BATCH)
            with tf.GradientTape() as tape:
                loss = model.compute_loss(inputs, labels, model(inputs, training=True), *weights)
            variables = model.trainable_variables
            found = tape.gradient(loss, variables)
            if self.is_limited:
                found = optimizers.SGD(global_clipnorm=0.02)._clip_gradients(found)
            of: dict[str, list[Any]] = {}
            for pair in zip(found, variables, strict=True):
                of.setdefault(self._rule_of(pair[1].path), []).append(pair)
            for name, pairs in of.items():
                rules[name].apply(*zip(*pairs, strict=True))
        return model

    def _rule_of(self, path: str) -> str:
        layer = path.partition("/")[0]
        return layer if layer in self.optimizer else "rows" if layer.endswith("_rows") else "dense"


LIMITS = ("clipnorm", "clipvalue", "global_clipnorm")


@pytest.mark.parametrize("first", [0, pytest.param(30, marks=[pytest.mark.night])])
def test_each_table_and_the_dense_parameters_train_by_their_own_rule_of_keras(first: int):
    compared: list[int] = []
    for seed in range(first, first + 30):
        task = Divided(seed)
        try:
            program, start = trained(task)
        except ModelRefused:
            continue
        compared.append(len(program.updates.rules))
        found, expected = _weights(program.model), _weights(task.trained_by_keras(start))
        for name, other in zip(found, expected, strict=True):
            rows = task.seen(name) if name.endswith("rows/embeddings") else slice(None)
            pair = (each[rows] if each.ndim else each for each in (found[name], expected[other]))
            np.testing.assert_allclose(*pair, rtol=1e-5, atol=ERROR, err_msg=f"{seed}: {name}")
    assert len(compared) > 3
    assert max(compared) == 3

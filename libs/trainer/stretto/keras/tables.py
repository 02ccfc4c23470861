"""How the rows of a Keras embedding layer begin, and what its regulariser adds to the loss."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..engine.layout import F32
from ..errors import ModelRefused
from ..model.tables import Start, start_of_values

_COMPARED_FLOATS = 2**26
"""Largest table, in floats, whose values are compared with its initialiser's, drawn again."""


def start_of(layer: Any, weights: F32, *, is_restored: bool = False) -> Start:
    """Return how rows of a layer begin: by the servers' own uniform distribution where the layer's is one.

    is_restored: the weights come from an earlier model, though they may look as if the initialiser had drawn them.
    """
    bounds = None if is_restored else _uniform_bounds(layer.embeddings_initializer, weights.shape)
    if bounds is not None and _is_fresh(layer.embeddings_initializer, weights, bounds):
        middle, half = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2
        return Start(float(np.float32(half)), np.broadcast_to(np.float32(middle), weights.shape) if middle else None)
    return start_of_values(weights)


def _uniform_bounds(initializer: Any, shape: tuple[int, ...]) -> tuple[float, float] | None:
    kind = type(initializer)
    if kind is keras.initializers.RandomUniform:
        return float(initializer.minval), float(initializer.maxval)
    if isinstance(initializer, keras.initializers.VarianceScaling) and initializer.distribution == "uniform":
        fan_in, fan_out = shape
        fan = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[initializer.mode]
        limit = sqrt(3.0 * initializer.scale / max(1.0, fan))
        return -limit, limit
    return None


def _is_fresh(initializer: Any, weights: F32, bounds: tuple[float, float]) -> bool:
    """Return whether the initialiser drew these weights: it draws the same values again."""
    if not isinstance(initializer.seed, int):
        return False
    if weights.size <= _COMPARED_FLOATS:
        return np.array_equal(np.asarray(initializer(weights.shape, dtype="float32")), weights)
    # too large to be drawn again beside the table: by its range and its variance
    low, high = bounds
    part = weights.reshape(-1)[: _COMPARED_FLOATS // 4]
    spread = abs(float(part.std()) / ((high - low) / sqrt(12.0)) - 1) < 0.01
    return low <= float(weights.min()) and float(weights.max()) <= high and spread


@dataclass(frozen=True, slots=True)
class Penalty:
    """The regularisation of a table's rows: l1 · sum |w| + l2 · sum w^2."""

    l1: float = 0.0
    l2: float = 0.0

    def of(self, rows: Any) -> Any:
        return self.l1 * tf.reduce_sum(tf.abs(rows)) + self.l2 * tf.reduce_sum(tf.square(rows))


def penalty_of(layer: Any, given: Any) -> Penalty | None:
    if given is None:
        return None
    if type(given) not in (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2):
        raise ModelRefused(
            f"layer {layer.name}: embeddings_regularizer {type(given).__name__} is no sum over rows, and a worker has "
            "those of a batch only; use L1, L2 or L1L2"
        )
    return Penalty(float(getattr(given, "l1", 0.0)), float(getattr(given, "l2", 0.0)))

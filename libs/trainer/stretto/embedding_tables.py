"""Tables of the parameter servers for the embedding layers of a model: keys, initial values, regularisation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from .engine.layout import F32
from .errors import ModelRefused
from .keys import VALUE_BITS

_COMPARED_FLOATS = 2**26
"""Floats of a table up to which its values are compared with those of its initialiser, drawn again."""
FIELDS_MAX = 2**15
_DIGESTED = 2**16
"""Values of a table, about, that its digest is of."""
_CLEAR = 1e-3
"""Share of the largest value from which on a sign is no matter of rounding."""


@dataclass(frozen=True, slots=True)
class Start:
    """The initial weights of a table: `values` (None: zeros) and a uniform part in +-scale."""

    scale: float
    values: F32 | None = None


def start_of(layer: Any, weights: F32, *, is_restored: bool = False) -> Start:
    """Return how rows of a layer begin: by the servers' own uniform distribution where the layer's is one.

    is_restored: the weights come from an earlier model, and may look like those of the initialiser.
    """
    bounds = None if is_restored else _uniform_bounds(layer.embeddings_initializer, weights.shape)
    if bounds is not None and _is_fresh(layer.embeddings_initializer, weights, bounds):
        middle, half = (bounds[0] + bounds[1]) / 2, (bounds[1] - bounds[0]) / 2
        return Start(float(np.float32(half)), _constant(middle, weights.shape) if middle else None)
    first = float(weights.flat[0])
    if weights[0, 0] == weights[-1, -1] and (weights == first).all():
        return Start(0.0, _constant(first, weights.shape) if first else None)
    return Start(0.0, weights)


def _constant(value: float, shape: tuple[int, ...]) -> F32:
    return np.broadcast_to(np.float32(value), shape)


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
    """Return whether the weights are those of the initialiser, which draws the same ones again."""
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


@dataclass(frozen=True, slots=True)
class TableLayer:
    """An embedding layer on the parameter servers."""

    layer: Any
    path: str
    start: Start
    penalty: Penalty | None

    @property
    def kind(self) -> tuple[Any, ...]:
        """Layers with the same one share a table of the store, and with it one gather of a step."""
        return (self.layer.output_dim, self.start.scale, self.penalty)


@dataclass(frozen=True, slots=True)
class Call:
    """A lookup of a table: the number of its event. shape: that of a sample's ids, None where it is not always the
    same."""

    event: int
    field: int
    ids_max: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Part:
    """Lookups that are gathered together, one after the other: those of a known number of ids a sample, or a single
    one. Lookups of equal shape are neighbours."""

    calls: tuple[Call, ...]

    @staticmethod
    def of(calls: Sequence[Call]) -> Part:
        shapes = list(dict.fromkeys(call.shape for call in calls))
        return Part(tuple(sorted(calls, key=lambda call: shapes.index(call.shape))))

    @property
    def is_fixed(self) -> bool:
        """True if the number of ids a sample is known."""
        return self.calls[0].shape is not None

    def runs(self) -> list[tuple[tuple[int, ...], tuple[Call, ...]]]:
        """Return the lookups of each shape."""
        shapes = dict.fromkeys(call.shape or () for call in self.calls)
        return [(shape, tuple(call for call in self.calls if call.shape == shape)) for shape in shapes]

    def keys(self, ids: Mapping[int, NDArray[Any]]) -> NDArray[np.int64] | None:
        """Return the keys of the lookups: flat, or of the single one in the shape of its ids; None if an id is outside
        its table."""
        if not self.is_fixed:
            call, single = self.calls[0], ids[self.calls[0].event]
            inside = not single.size or int(single.view(np.uint64).max()) < call.ids_max
            return single | np.int64(call.field << VALUE_BITS) if inside else None
        flat = np.concatenate([ids[call.event].reshape(-1) for call in self.calls])
        position = 0
        for _, calls in self.runs():
            end = position + sum(ids[call.event].size for call in calls)
            block = flat[position:end].reshape(len(calls), -1)
            # a negative id is a very large one
            if block.size and (block.view(np.uint64).max(axis=1) >= [call.ids_max for call in calls]).any():
                return None
            block |= np.array([[call.field << VALUE_BITS] for call in calls])
            position = end
        return flat


@dataclass(frozen=True, slots=True)
class Group:
    """A table of the store. layers: by the number that is part of their keys."""

    name: str
    layers: tuple[TableLayer, ...]
    parts: tuple[Part, ...]

    @property
    def dimension(self) -> int:
        return self.layers[0].layer.output_dim

    @property
    def penalty(self) -> Penalty | None:
        return self.layers[0].penalty

    @property
    def is_difference(self) -> bool:
        """True if rows are kept as differences to initial values."""
        return any(each.start.values is not None for each in self.layers)

    def digest(self) -> str:
        """Return that of the initial values, which every process makes for itself; "" if no layer has several.

        It is of the signs of some values: their last bits may differ between kinds of processors.
        """
        found = hashlib.blake2b(digest_size=16)
        is_any = False
        for number, layer in enumerate(self.layers):
            values = layer.start.values
            if values is not None and any(values.strides):  # one number has none
                is_any = True
                found.update(f"{number} {values.shape} ".encode())
                some = values.reshape(-1)[:: max(1, values.size // _DIGESTED)]
                clear = np.abs(some) > _CLEAR * np.abs(some).max(initial=0.0)
                found.update(np.where(clear, np.sign(some), 0).astype(np.int8).tobytes())
        return found.hexdigest() if is_any else ""

    def initial(self, keys: NDArray[np.int64]) -> F32 | None:
        """Return what the rows of keys are added to; None if that is 0."""
        if not self.is_difference:
            return None
        fields, ids = keys >> VALUE_BITS, keys & ((1 << VALUE_BITS) - 1)
        found = np.zeros((len(keys), self.dimension), np.float32)
        for number, layer in enumerate(self.layers):
            if layer.start.values is not None:
                at = fields == number
                found[at] = layer.start.values[ids[at]]
        return found

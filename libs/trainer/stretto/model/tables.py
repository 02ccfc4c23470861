"""Tables of the parameter servers for the embedding layers of a model: keys, initial values, what of them is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from stretto_parameters.keys import restore as keys_of_stored
from stretto_parameters.keys import store

from ..engine.layout import F32, KeyBatch
from ..errors import DataError, ModelRefused
from .keys import VALUE_BITS
from .program import EmbeddingRows, Rows

FIELDS_MAX = 2**15
_DIGESTED = 2**16
"""Values of a table, about, that its digest covers."""
_CLEAR = 1e-3
"""Share of the largest value below which a sign may be a matter of rounding."""


@dataclass(frozen=True, slots=True)
class Start:
    """The initial weights of a table: `values` (None: zeros), and a part that the servers draw (`Table`)."""

    scale: float
    values: F32 | None = None
    distribution: Literal["uniform", "normal"] = "uniform"


def start_of_values(weights: F32) -> Start:
    """Return how rows begin that have exactly these weights; one number stands for a constant table."""
    first = float(weights.flat[0])
    if weights[0, 0] == weights[-1, -1] and (weights == first).all():
        return Start(0.0, np.broadcast_to(np.float32(first), weights.shape) if first else None)
    return Start(0.0, weights)


@dataclass(frozen=True, slots=True)
class TableLayer:
    """An embedding layer on the parameter servers: `ids` rows of `dimension` floats.

    owner: the object whose rows they are, a layer or a parameter. penalty: of its rows; equal penalties are ==.
    rule: the number of their update rule.
    """

    owner: Any
    path: str
    ids: int
    dimension: int
    start: Start
    penalty: Any = None
    fixed: tuple[int, F32] | None = None
    """The id of a row that is never trained, and its weights."""
    parameters: tuple[str, ...] = ()
    """Names of the table in the model's own file format, where that keeps tables by names."""
    rule: int = 0

    @property
    def kind(self) -> tuple[Any, ...]:
        """Layers with the same one share a table of the store, and with it one gather of a step."""
        return (self.dimension, self.start.distribution, self.start.scale, self.penalty, self.rule)


@dataclass(frozen=True, slots=True)
class Call:
    """A lookup of a table. event: its number among the events; shape: of a sample's ids, None where it varies."""

    event: int
    field: int
    ids_max: int
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Part:
    """Lookups that are gathered together, one after the other: all with a known number of ids a sample, or a single
    lookup without. Lookups of equal shape are neighbours."""

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
class Lookups:
    """The rows that a batch looks up. parts: of each table; paths: of the layers of each table; leads: the events whose
    ids have the samples as their first dimension."""

    parts: tuple[tuple[Part, ...], ...]
    paths: tuple[tuple[str, ...], ...]
    leads: frozenset[int]

    def keys(self, found: Mapping[int, Any], start: int) -> dict[str, NDArray[np.int64]]:
        """Return the keys of a batch by name. found: ids by event; start: the number of the batch's first sample.

        Raises DataError for an id out of range.
        """
        batch: dict[str, NDArray[np.int64]] = {}
        for number, parts in enumerate(self.parts):
            for place, part in enumerate(parts):
                keys = part.keys(found)
                if keys is None:
                    raise self._outside(number, part, found, start)
                batch[f"keys {number}.{place}"] = keys
        return batch

    def _outside(self, table: int, part: Part, found: Mapping[int, Any], start: int) -> DataError:
        for call in part.calls:
            ids = found[call.event]
            bad = np.argwhere((ids < 0) | (ids >= call.ids_max))
            if len(bad):
                path = self.paths[table][call.field]
                where = f"sample {start + int(bad[0, 0])}" if call.event in self.leads else "a batch"
                return DataError(
                    f"{where}: layer {path} has no row {int(ids[tuple(bad[0])])}: its ids are 0 to "
                    f"{call.ids_max - 1}; raise its input_dim, or map the values into it (keras.layers.Hashing)"
                )
        raise AssertionError("some id is outside its table")

    def ids(self, batch: Mapping[str, Any]) -> list[NDArray[np.int64]]:
        """Return the keys of a batch in each table, one after the other where it has several."""
        found: list[NDArray[np.int64]] = []
        for number, parts in enumerate(self.parts):
            keys = [batch[f"keys {number}.{place}"] for place in range(len(parts))]
            flat = [each.reshape(-1) for each in keys]
            found.append(keys[0] if len(keys) == 1 else np.concatenate([np.zeros(0, np.int64), *flat]))
        return found


@dataclass(frozen=True, slots=True)
class Fed:
    """All that a step is fed with. values: an input by its number, or else an event; -1: none. direct: by event, the
    input that it is, and the types that the input is cast to."""

    lookups: Lookups
    values: tuple[tuple[int, int], ...]
    direct: Mapping[int, tuple[int, tuple[str, ...]]]

    def batch(self, leaves: Sequence[Any], found: Mapping[int, Any], start: int) -> dict[str, Any]:
        """Return the keys and the values of a batch by name. found: values of events. Raises DataError."""
        values = (leaves[leaf] if leaf >= 0 else found[event] for leaf, event in self.values)
        keys = self.lookups.keys(found, start)
        return {**keys, **{f"fed {number}": value for number, value in enumerate(values)}}


def cast_leaves(direct: Mapping[int, tuple[int, tuple[str, ...]]], leaves: Sequence[Any]) -> dict[int, Any]:
    """Return the values of events that are inputs, but for their types."""
    values: dict[int, Any] = {}
    for event, (leaf, kinds) in direct.items():
        values[event] = leaves[leaf]
        for kind in kinds:
            values[event] = values[event].astype(kind, copy=False)
    return values


@dataclass(frozen=True, slots=True)
class Group:
    """A table of the store. layers: by the number that is part of their keys."""

    name: str
    layers: tuple[TableLayer, ...]
    parts: tuple[Part, ...] = ()

    @property
    def dimension(self) -> int:
        return self.layers[0].dimension

    @property
    def penalty(self) -> Any:
        return self.layers[0].penalty

    @property
    def is_difference(self) -> bool:
        """True if rows are kept as differences to initial values."""
        return any(each.start.values is not None for each in self.layers)

    def digest(self) -> str:
        """Return a digest of the initial values, which every process makes for itself; "" if no layer has several.

        The digest covers the signs of some values: their last bits may differ between kinds of processors.
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


class Tables:
    """The tables of the store for some layers."""

    def __init__(
        self, layers: Sequence[TableLayer], parts: Callable[[Sequence[TableLayer]], tuple[Part, ...]] = lambda _: ()
    ) -> None:
        """Divide layers into tables. parts: returns the lookups of layers that share a table. Raises ModelRefused."""
        groups: list[Group] = []
        for kind in dict.fromkeys(each.kind for each in layers):
            members = tuple(each for each in layers if each.kind == kind)
            if len(members) >= FIELDS_MAX:
                raise ModelRefused(f"{len(members)} embedding layers of one width: at most {FIELDS_MAX - 1}")
            groups.append(Group(f"rows_{len(groups)}", members, parts(members)))
        self.groups = tuple(groups)
        self.embeddings = tuple(
            EmbeddingRows(
                each.path, table, number, each.ids, group.dimension, each.start.values, each.fixed, each.parameters
            )
            for table, group in enumerate(groups)
            for number, each in enumerate(group.layers)
        )

        self._fixed = [
            (each.table, store(np.array([each.fixed[0] | each.field << VALUE_BITS]))[0], each.fixed[1])
            for each in self.embeddings
            if each.fixed is not None
        ]

    @property
    def rows(self) -> dict[str, Rows]:
        """The rows of each table by its name."""
        return {
            group.name: Rows(
                None,
                group.dimension,
                group.layers[0].start.scale,
                is_difference=group.is_difference,
                base=group.digest(),
                distribution=group.layers[0].start.distribution,
                rule=group.layers[0].rule,
            )
            for group in self.groups
        }

    def no_ids(self) -> list[NDArray[np.int64]]:
        """Return the keys of a batch without samples."""
        return [np.zeros(0, np.int64) for _ in self.groups]

    def whole(self, rows: Sequence[F32], keys: KeyBatch) -> list[F32]:
        """Return the weights of rows, some of which are kept as differences to the initial ones."""
        found: list[F32] = []
        for group, table, values in zip(self.groups, keys.tables, rows, strict=True):
            initial = group.initial(keys_of_stored(table.stored)) if group.is_difference else None
            found.append(values if initial is None else values + initial)
        for number, place, weights in self.fixed(keys):
            found[number] = found[number].copy()
            found[number][place] = weights
        return found

    def fixed(self, keys: KeyBatch) -> list[tuple[int, int, F32]]:
        """Return the rows of a batch that are never trained: table, place among the unique rows, and weights."""
        found: list[tuple[int, int, F32]] = []
        for table, stored, weights in self._fixed:
            place = int(np.searchsorted(keys.tables[table].stored, stored))
            if place < len(keys.tables[table]) and keys.tables[table].stored[place] == stored:
                found.append((table, place, weights))
        return found

    def places(self, keys: KeyBatch) -> list[tuple[int, NDArray[np.intp]]]:
        """Return for each layer its table, and where its rows are among the unique ones of it."""
        found: list[tuple[int, NDArray[np.intp]]] = []
        for number, (group, table) in enumerate(zip(self.groups, keys.tables, strict=True)):
            fields = keys_of_stored(table.stored) >> VALUE_BITS
            found.extend((number, np.flatnonzero(fields == field)) for field in range(len(group.layers)))
        return found

    def kept(self, keys: KeyBatch, weights: Callable[[Any], F32]) -> list[F32]:
        """Return the rows of keys as the servers would have them: differences to the initial ones where these are kept.

        weights: returns the weights of an owner, [ids, dimension].
        """
        found: list[F32] = []
        for group, table in zip(self.groups, keys.tables, strict=True):
            numbers = keys_of_stored(table.stored)
            fields, ids = numbers >> VALUE_BITS, numbers & ((1 << VALUE_BITS) - 1)
            values = np.zeros((len(numbers), group.dimension), np.float32)
            for number, each in enumerate(group.layers):
                at = fields == number
                values[at] = weights(each.owner)[ids[at]]
            initial = group.initial(numbers)
            found.append(values if initial is None else values - initial)
        return found

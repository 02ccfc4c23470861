"""The tables of an export: inputs whose keys the task gives, or the embedding layers of an adapted model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from stretto_messages.values import BUCKETS
from stretto_parameters.keys import store

from ..engine.layout import F32, I64, Layout, Table
from ..errors import ExportRefused
from ..model.keys import VALUE_BITS
from ..model.program import EmbeddingRows, Program
from .checkpoint_source import Checkpoint, Rows, initial_rows

_IDS_AT_ONCE = 2**20


@dataclass(frozen=True, slots=True)
class Change:
    """The difference of two exports in a bucket: the rows that are new or others, and the keys without a row now."""

    rows: Rows
    gone: I64


class ExportedTable(ABC):
    """A table of an export, read bucket by bucket."""

    key: Literal["key", "id"]
    """A key of the task's `keys`, or an id of the layer. A key without a row has its initial weights."""

    name: str

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Floats of a row."""

    @property
    @abstractmethod
    def table(self) -> Table:
        """The table of the layout in which the rows are."""

    @abstractmethod
    def count(self) -> int:
        """Return how many rows it has at most."""

    @abstractmethod
    def rows(self, bucket: int) -> Rows:
        """Return its rows of a bucket. Raises CheckpointError."""

    @abstractmethod
    def changed(self, bucket: int, since: frozenset[str]) -> Rows | None:
        """Return its rows of a bucket that changed after the images with these digests, None if that is not known."""


@dataclass(frozen=True, slots=True)
class KeyTable(ExportedTable):
    """The rows of an input that a task gives keys for."""

    name: str  # pyrefly: ignore[bad-override]
    checkpoint: Checkpoint
    number: int

    key = "key"

    @property
    def table(self) -> Table:
        return self.checkpoint.layout.tables[self.number]

    @property
    def dimension(self) -> int:
        return self.table.dimension

    def count(self) -> int:
        return self.checkpoint.count(self.number)

    def rows(self, bucket: int) -> Rows:
        return self.checkpoint.rows(self.number, bucket)

    def changed(self, bucket: int, since: frozenset[str]) -> Rows | None:
        return self.checkpoint.changed(self.number, bucket, since)


@dataclass(frozen=True, slots=True)
class LayerTable(ExportedTable):
    """An embedding layer of an adapted model: every id has a row, trained or not."""

    name: str  # pyrefly: ignore[bad-override]
    checkpoint: Checkpoint
    layer: EmbeddingRows

    key = "id"

    @property
    def table(self) -> Table:
        return self.checkpoint.layout.tables[self.layer.table]

    @property
    def dimension(self) -> int:
        return self.layer.dimension

    def count(self) -> int:
        return self.layer.ids

    def rows(self, bucket: int) -> Rows:
        trained = self._own(self.checkpoint.rows(self.layer.table, bucket))
        ids = self._ids(bucket)
        absent = np.isin(ids, trained.keys, assume_unique=True, invert=True)
        weights = np.empty((len(ids), self.dimension), np.float32)
        weights[~absent] = trained.weights
        weights[absent] = self._initial(ids[absent])
        return Rows(ids, weights)

    def changed(self, bucket: int, since: frozenset[str]) -> Rows | None:
        found = self.checkpoint.changed(self.layer.table, bucket, since)
        return None if found is None else self._own(found)

    def _own(self, rows: Rows) -> Rows:
        """Return the rows of this layer, by their ids, among the rows of its table."""
        ids = rows.keys & (2**VALUE_BITS - 1)
        mine = (rows.keys >> VALUE_BITS == self.layer.field) & (ids < self.layer.ids)
        return Rows(ids[mine], self.layer.whole(ids[mine], rows.weights[mine, : self.dimension]))

    def _initial(self, ids: I64) -> F32:
        keys = ids | (self.layer.field << VALUE_BITS)
        return self.layer.whole(ids, initial_rows(self.table, keys)[:, : self.dimension])

    def _ids(self, bucket: int) -> I64:
        """Return the ids whose rows are in a bucket."""
        shift, wanted = np.uint64(self.checkpoint.layout.shift), np.uint64(bucket)
        found: list[I64] = []
        for begin in range(0, self.layer.ids, _IDS_AT_ONCE):
            ids = np.arange(begin, min(begin + _IDS_AT_ONCE, self.layer.ids), dtype=np.int64)
            found.append(ids[store(ids | (self.layer.field << VALUE_BITS)) >> shift == wanted])
        return np.concatenate(found)


def tables_of(program: Program, checkpoint: Checkpoint) -> Sequence[ExportedTable]:
    """Return the tables of a job's model. Raises ExportRefused if another program was trained."""
    _check_same(program, checkpoint)
    if not program.embeddings:
        return [KeyTable(name, checkpoint, number) for number, name in enumerate(program.tables)]
    layers = [LayerTable(each.layer.replace("/", "."), checkpoint, each) for each in program.embeddings]
    if len({each.name for each in layers}) < len(layers):
        raise ExportRefused(
            f"the layers {[each.layer.layer for each in layers]} have no names of their own: rename one"
        )
    return layers


def all_rows(table: ExportedTable) -> Rows:
    """Return all rows of a table, in memory; rows of a layer in the order of their ids."""
    room = table.count()
    keys, weights = np.empty(room, np.int64), np.empty((room, table.dimension), np.float32)
    end = 0
    for bucket in range(BUCKETS):
        rows = table.rows(bucket)
        begin, end = end, end + len(rows.keys)
        at = rows.keys if table.key == "id" else slice(begin, end)
        keys[at], weights[at] = rows.keys, rows.weights
    return Rows(keys[:end], weights[:end])


def changes(table: ExportedTable, bucket: int, before: Rows) -> Change:
    """Compare a bucket with its rows in an earlier export."""
    now = table.rows(bucket)
    at = np.searchsorted(before.keys, now.keys)
    at[at == len(before.keys)] = 0
    is_known = before.keys[at] == now.keys if len(before.keys) else np.zeros(len(now.keys), np.bool_)
    is_other = ~is_known
    if is_known.any():
        bits, bits_before = now.weights[is_known].view(np.uint32), before.weights[at[is_known]].view(np.uint32)
        is_other[is_known] = (bits != bits_before).any(axis=1)
    gone = np.setdiff1d(before.keys, now.keys, assume_unique=True)
    return Change(Rows(now.keys[is_other], now.weights[is_other]), gone)


def _known_bases(one: Layout, other: Layout) -> tuple[list[str], list[str]]:
    """Return the digests that both know: checkpoints of an older version have none."""
    pairs = [(a.base, b.base) for a, b in zip(one.tables, other.tables, strict=False) if a.base and b.base]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _check_same(program: Program, checkpoint: Checkpoint) -> None:
    built, trained = program.layout, checkpoint.layout
    pairs = {
        "dense parameters": (built.dense_size, trained.dense_size),
        "floats of state": (built.state_size, trained.state_size),
        "floats per row": tuple([each.dimension for each in of.tables] for of in (built, trained)),
        "seeds of tables": tuple([each.seed for each in of.tables] for of in (built, trained)),
        "initial scales": tuple(
            [(each.distribution, each.initial_scale) for each in of.tables] for of in (built, trained)
        ),
        "digests of initial weights (seed what build() draws)": _known_bases(built, trained),
    }
    for what, (here, there) in pairs.items():
        if here != there:
            raise ExportRefused(
                f"model.entry builds another model than the job trained: {what} are {here} here and {there} in "
                f"checkpoint {checkpoint.id}; give the job's own code with --path, and its own arguments"
            )

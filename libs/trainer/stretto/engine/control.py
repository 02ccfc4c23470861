"""Control operations on one parameter server, local or remote: ownership, accounting, raw copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from ..errors import LayoutError
from .copies import bucket_copies, merging, slice_copies, snapshots
from .graph import build_finish
from .layout import DELETED_STORED, EMPTY_STORED, F32, I64, Bools, Layout, checksum
from .link import Link
from .memory import aligned_zeros
from .ownership import Own
from .state import (
    DEVICE,
    INITIAL_TABLE_SLOTS,
    Locked,
    State,
    build_state,
    clearing,
    dense_slot_shapes,
    now_us,
    ops,
    read,
    v1,
)

_ALL = np.int64(2**40)


@dataclass(frozen=True, slots=True)
class Applied:
    """Counters of the samples that one server applied.

    samples[columns] and fingerprints[columns] move with their column. per_shard counts the samples that the first
    dense slice applied for each shard with a live record (empty on servers that never owned that slice).
    """

    samples: I64
    fingerprints: I64
    per_shard: dict[int, int]


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since the server started: pushes applied, seconds in them (queueing included), pushes rejected.

    repeated_samples: samples of pushes that some column here had already and did not apply again.
    """

    updates: int
    update_seconds: float
    rejected: int
    repeated_samples: int


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """Pushes accepted from one worker and the age of the last one."""

    pushes: int
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class RawBucket:
    """The raw slots of one hash table, empty ones included: keys [n, 1], rows [n, row_floats]."""

    keys: I64
    rows: F32

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.rows.nbytes

    @staticmethod
    def empty(layout: Layout) -> RawBucket:
        return RawBucket(
            np.full((INITIAL_TABLE_SLOTS, 1), EMPTY_STORED),
            np.zeros((INITIAL_TABLE_SLOTS, layout.row_floats), np.float32),
        )

    def used(self) -> tuple[I64, F32]:
        """(stored keys, rows) of the slots in use."""
        keys = self.keys.reshape(-1)
        live = in_use(self.keys)
        return keys[live], self.rows[live]

    @staticmethod
    def spread(keys: I64, rows: F32) -> RawBucket:
        """Return the table with these raw keys; its slots in use hold `rows` [n, row_floats], in order."""
        raw_keys = aligned_zeros((len(keys), 1), np.int64)
        whole = aligned_zeros((len(keys), rows.shape[1]), np.float32)
        raw_keys[:, 0] = keys.reshape(-1)
        row = np.dtype((np.void, rows.itemsize * rows.shape[1]))  # a row is copied as one value
        whole.view(row)[np.flatnonzero(in_use(keys)), 0] = np.ascontiguousarray(rows).view(row)[:, 0]
        return RawBucket(raw_keys, whole)


def in_use(keys: I64) -> Bools:
    """Mark the slots that hold a row: [slots]."""
    flat = keys.reshape(-1)
    return (flat != EMPTY_STORED) & (flat != DELETED_STORED)


@dataclass(frozen=True, slots=True)
class RawSlices:
    """Dense slices `ids` with their optimiser slots, seeded marks, and the non-trainable state."""

    ids: I64
    values: list[F32]
    seeded: I64
    state: F32

    @property
    def nbytes(self) -> int:
        return sum(v.nbytes for v in self.values) + self.state.nbytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The progress of columns, and the requested dense slices, at one instant between two pushes.

    held_seconds: how long the copy held the mutex, which is the longest that a push waited for it. shards [n],
    records [n, columns + 2], samples and fingerprints [columns]. finished: the marks at that instant; empty if there
    were no more than the caller knew.
    """

    slices: RawSlices | None
    held_seconds: float
    shards: I64
    records: I64
    finished: I64
    samples: I64
    fingerprints: I64


class Control:
    """A control session on one server. Operations take the bucket as an argument, so each compiles only once."""

    def __init__(
        self, layout: Layout, address: str, server: int = -1, timeout_s: float = 30.0, local: bool = False
    ) -> None:
        """`local`: the server is in this process."""
        self.layout = layout
        self.address = address
        self.server = server
        self._local = local
        self._take: Callable[[I64, F32], None] | None = None
        graph = tf.Graph()
        with graph.as_default(), tf.device(DEVICE):
            nodes = _build(build_state(layout), self._taken)
        self._link = Link(graph, server, address, timeout_s)
        self._run = {name: self._link.callable(fetches, feeds) for name, (feeds, fetches) in nodes.items()}

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --- ownership ----------------------------------------------------------------------------------------

    def own(self) -> I64:
        """Return the state of each column: [columns] of Own."""
        return self._run["own"]()

    def columns(self) -> list[int]:
        """Return the columns that are MINE or FROZEN here."""
        return [int(c) for c in np.flatnonzero(self.own() != Own.NOT_MINE)]

    def set_own(self, columns: Iterable[int], to: Own, expect: Own | None = None, *, whole: bool = False) -> int:
        """Compare and set under the push mutex: once it returns, no push that read the old value is running.

        Returns how many columns changed: those whose state was `expect`, or all if it is None. whole: change all of
        them or none.
        """
        mask = self._mask(columns)
        return int(self._run["set_own"](mask, -1 if expect is None else int(expect), int(to), whole))

    def clear(self) -> None:
        """Drop all columns, rows and records, as before the first push."""
        self._run["clear"]()
        for bucket in np.flatnonzero(self.raw_sizes()):
            self.import_bucket(int(bucket), RawBucket.empty(self.layout))

    def _mask(self, columns: Iterable[int]) -> Any:
        chosen = np.fromiter(columns, np.int64)
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= self.layout.columns):
            raise LayoutError(f"columns {chosen.tolist()[:8]} are outside 0..{self.layout.columns - 1}")
        mask = np.zeros(self.layout.columns, np.bool_)
        mask[chosen] = True
        return mask

    # --- measures -----------------------------------------------------------------------------------------

    def sizes(self) -> I64:
        """Return the categories in each bucket owned here, 0 for the others: [buckets]."""
        sizes, own = self._run["sizes"]()
        return np.where(own[: self.layout.buckets] != Own.NOT_MINE, sizes, 0)

    def raw_sizes(self) -> I64:
        """Return the rows in each table, owned or not: [buckets]."""
        return self._run["sizes"]()[0]

    def categories(self) -> int:
        return int(self.sizes().sum())

    def raw_slots(self) -> I64:
        """Return the slots of each table, owned or not, empty ones included: [buckets]."""
        return self._run["slots"]()

    def slots(self) -> int:
        """Return the slots of all tables, empty ones included."""
        return int(self.raw_slots().sum())

    def dense_bytes(self) -> int:
        """Return the bytes of dense slices and their optimiser slots."""
        dense = sum(int(np.prod(shape)) for shape in dense_slot_shapes(self.layout))
        return 4 * (dense + self.layout.slices * self.layout.slice_length)

    def memory_bytes(self) -> int:
        """Return the bytes of hash tables (empty slots included) and dense slices."""
        return self.slots() * self.layout.row_bytes + self.dense_bytes()

    def progress_bytes(self) -> int:
        """Return the bytes of the records of live shards and of the marks of finished ones."""
        records, marks = self._run["progress_sizes"]()
        return 8 * (int(records) * (self.layout.columns + 3) + 2 * int(marks))

    def applied(self) -> Applied:
        samples, fingerprints, own = self._run["applied"]()
        shards, records = self.records()
        # the records of a column that has moved away are counted by its new owner
        if own[self.layout.buckets] == Own.NOT_MINE:
            shards = shards[:0]
        per_shard = {int(s): int(r[-1]) for s, r in zip(shards, records, strict=False)}
        mine = own != Own.NOT_MINE
        return Applied(np.where(mine, samples, 0), np.where(mine, fingerprints, 0), per_shard)

    def stats(self) -> Stats:
        updates, spent_us, rejected, repeated = (int(v) for v in self._run["stats"]())
        return Stats(updates, spent_us / 1e6, rejected, repeated)

    def workers(self) -> dict[int, WorkerSeen]:
        ids, seen, now = self._run["workers"]()
        return {
            int(w): WorkerSeen(int(count), max(0.0, (int(now) - int(last)) / 1e6))
            for w, (count, last) in zip(ids, seen, strict=True)
        }

    def checksum(self) -> int:
        """Return an order-free checksum of all keys, rows and slots owned here. Sums over servers are comparable."""
        total = 0
        own = self.own()
        for bucket in np.flatnonzero(own[: self.layout.buckets] != Own.NOT_MINE):
            total += checksum(*self.export_bucket(int(bucket)).used())
        ids = np.flatnonzero(own[self.layout.buckets :] != Own.NOT_MINE)
        raw = self.export_slices(ids)
        for part in raw.values:
            total += checksum(ids, part)
        if 0 in ids:
            total += checksum(np.array([-1]), raw.state[None])
        return total % 2**64

    # --- raw copies ---------------------------------------------------------------------------------------

    def export_bucket(self, bucket: int, limit: int | None = None) -> RawBucket:
        """Return raw slots of one table, at most `limit`. They may alias the live table: freeze it, or copy them."""
        keys, rows = self._run["export"](bucket, _ALL if limit is None else limit)
        return RawBucket(keys, rows)

    def import_bucket(self, bucket: int, raw: RawBucket) -> None:
        """Replace a table by raw slots. They must not be changed afterwards: the table may keep using their memory."""
        if raw.rows.shape != (len(raw.keys), self.layout.row_floats):
            raise LayoutError(
                f"bucket {bucket}: rows of shape {raw.rows.shape} for {len(raw.keys)} keys, "
                f"wanted {self.layout.row_floats} floats each"
            )
        self._run["import"](bucket, raw.keys.reshape(-1, 1), raw.rows)

    def export_slices(self, ids: I64) -> RawSlices:
        *values, seeded, state = self._run["get_slices"](np.asarray(ids, np.int64))
        return RawSlices(np.asarray(ids, np.int64), values, seeded, state)

    def import_slices(self, raw: RawSlices) -> None:
        """Write dense slices; the non-trainable state goes with slice 0."""
        self._run["set_slices"](raw.ids, *raw.values, raw.seeded, raw.state)

    def snapshot_bucket(self, bucket: int, take: Callable[[I64, F32], None], known_finished: int = 0) -> Snapshot:
        """Call `take` with the live table (keys [n, 1], rows) under the push mutex: pushes wait, none is rejected.

        Works in the server's own process only, one call at a time. `take` must not keep the arrays.
        """
        if not self._local:
            raise LayoutError("a bucket is copied in the process of its server: use ParameterServer.control")
        self._take = take
        try:
            held_us, _, *progress = self._run["snapshot_bucket"](bucket, known_finished)
        finally:
            self._take = None  # and with it the memory that it fills
        return Snapshot(None, int(held_us) / 1e6, *progress)

    def _taken(self, keys: I64, rows: F32) -> np.int64:
        assert self._take is not None
        self._take(keys, rows)
        return np.int64(len(keys))

    def snapshot_slices(self, ids: I64, known_finished: int = 0) -> Snapshot:
        """Copy dense slices with their progress, under the push mutex."""
        held_us, *taken = self._run["snapshot_slices"](ids, known_finished)
        *values, seeded, state, shards, records, marks, samples, fingerprints = taken
        held_s = int(held_us) / 1e6
        return Snapshot(RawSlices(ids, values, seeded, state), held_s, shards, records, marks, samples, fingerprints)

    # --- records ------------------------------------------------------------------------------------------

    def records(self) -> tuple[I64, I64]:
        """Return (shards [n], records [n, columns + 2]: offsets, attempt, samples of the first slice)."""
        return self._run["records"]()

    def merge_columns(self, columns: Iterable[int], shards: I64, records: I64, samples: I64, fingerprints: I64) -> None:
        """Take over the progress and the counters of `columns` from another server's records and counters."""
        self._run["merge"](self._mask(columns), shards, records, samples, fingerprints)

    def finished(self) -> I64:
        return self._run["finished"]()

    def finish(self, shards: Iterable[int]) -> None:
        """Delete the records of finished shards; a mark stays, so that a late push for them is refused."""
        self._run["finish"](np.fromiter(shards, np.int64))


def _build(state: State, take: Callable[[Any, Any], Any]) -> dict[str, tuple[list[Any], Any]]:
    """Build every operation: name -> (feeds, fetches)."""
    own_record = ops.LookupTableExportV2(table_handle=state.records, Tkeys=tf.int64, Tvalues=tf.int64)
    finished = ops.LookupTableExportV2(table_handle=state.finished, Tkeys=tf.int64, Tvalues=tf.int64)
    workers = ops.LookupTableExportV2(table_handle=state.workers, Tkeys=tf.int64, Tvalues=tf.int64)
    slots = [
        tf.shape(ops.LookupTableExportV2(table_handle=t, Tkeys=tf.int64, Tvalues=tf.float32)[0], tf.int64)[0]
        for t in state.tables
    ]
    sizes = tf.stack([ops.LookupTableSizeV2(table_handle=t) for t in state.tables])
    return {
        "own": ([], read(state.own)),
        "set_own": _set_own(state),
        "clear": clearing(state),
        "sizes": ([], [sizes, read(state.own)]),
        "slots": ([], tf.stack(slots)),
        "progress_sizes": ([], [ops.LookupTableSizeV2(table_handle=t) for t in (state.records, state.finished)]),
        "applied": ([], [read(state.samples), read(state.fingerprints), read(state.own)]),
        "stats": ([], read(state.stats)),
        "workers": ([], [*workers, now_us()]),
        "records": ([], list(own_record)),
        "finished": ([], finished[0]),
        "merge": merging(state),
        "finish": build_finish(state),
        **bucket_copies(state),
        **slice_copies(state),
        **snapshots(state, take),
    }


def _set_own(state: State) -> tuple[list[Any], Any]:
    mask = v1.placeholder(tf.bool, [state.layout.columns])
    expect = v1.placeholder(tf.int64, [])
    to = v1.placeholder(tf.int64, [])
    whole = v1.placeholder(tf.bool, [])
    with Locked(state, [mask, expect, to, whole]) as lock:
        own = read(state.own)
        fits = tf.less(expect, 0) | tf.equal(own, expect)
        change = mask & fits & (tf.reduce_all(fits | ~mask) | ~whole)
        write = ops.AssignVariableOp(resource=state.own, value=tf.where(change, to, own))
        answer = tf.reduce_sum(tf.cast(change, tf.int64))
    return [mask, expect, to, whole], lock.release(answer, [write])

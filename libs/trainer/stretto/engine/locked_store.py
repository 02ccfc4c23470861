"""Every operation on the columns of one server: the store under its lock, for threads of many connections.

A worker's pulls and pushes, and the control operations by which columns are owned, moved, counted and copied. What a
`Control` asks from elsewhere are the methods of this class. Pulls and copies share the lock, so they use as many cores
as there are; whatever changes the store has it alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from stretto_parameters import (
    Applied,
    Code,
    InputRefused,
    Own,
    Progress,
    Pulled,
    Push,
    RawBucket,
    RawSlices,
    Store,
)

from .codec import ServerStats, WorkerSeen
from .layout import F32, I64, U64, Layout
from .turns import SharedLock, Turn

Clock = Callable[[], float]


class Operations:
    """The columns of one server, in one life of it: from its start, or from when it was emptied, to the next time.

    Larger than 250 lines: each operation of the protocol once. A server that does not know the layout yet owns columns
    and holds nothing; `adopt` gives it the layout.
    """

    def __init__(
        self,
        index: int,
        layout: Layout,
        memory_bytes_max: int,
        clock: Clock = time.monotonic,
        *,
        emptied: tuple[Store, SharedLock] | None = None,
    ) -> None:
        """`emptied`: store and lock of the life before.

        turn: for whoever reads or changes much at one instant in this process.
        """
        self.server = index
        self._memory_bytes_max = memory_bytes_max
        self._clock = clock
        self._store, lock = emptied or (Store(layout, memory_bytes_max), SharedLock())
        self.turn = Turn(lock)
        self._lineage = 0
        self._update_s = 0.0

    def next_life(self) -> Operations:
        """Drop everything but the layout, end this life, and return the operations of the next one.

        Once it returns, no operation of this life changes or copies anything any more: each raises ServerEmptied.
        """
        with self.turn.alone():
            self._store.reset()
            self.turn.end()
            kept = self._store, self.turn.lock
        return Operations(self.server, self.layout, self._memory_bytes_max, self._clock, emptied=kept)

    @property
    def layout(self) -> Layout:
        """The layout of the job, or UNKNOWN."""
        return self._store.layout

    @property
    def knows_layout(self) -> bool:
        """True once a worker, another server or an image has given the layout."""
        return self.layout.dense_size > 0 or bool(self.layout.tables)

    def adopt(self, layout: Layout) -> None:
        """Take the layout of the job, once; columns that are owned stay so. Raises InputRefused for another one."""
        with self.turn.alone():
            if self._store.layout.agrees(layout):
                return
            if self.knows_layout:
                raise InputRefused(
                    f"the layout {layout.to_dict()} is not that of ps-{self.server}, {self.layout.to_dict()}: all pods "
                    "of a job build the same model; was the code changed while it runs? If `base` alone differs, seed "
                    "what build() draws for initial weights, which is another in every process"
                )
            if layout.columns != self.layout.columns:
                raise InputRefused(f"a layout of {layout.columns} columns, wanted {self.layout.columns}")
            store = Store(layout, self._memory_bytes_max)
            for state in (Own.MINE, Own.FROZEN):
                store.set_own(np.flatnonzero(self._store.own() == state), state)
            store.records = self._store.records
            self._store = store

    # --- training -----------------------------------------------------------------------------------------

    def pull(self, keys: Sequence[U64], slices: I64) -> Pulled:
        """Return the weights of keys, by table, and of slices."""
        with self.turn.shared():
            return self._store.pull(keys, slices)

    def push(self, push: Push) -> tuple[Code, int, int, I64]:
        """Apply one batch exactly once; return (code, columns applied, microseconds with the queue, own)."""
        begun = self._clock()
        with self.turn.alone():
            answer = self._store.push(push, int(begun * 1e6))
            spent_s = self._clock() - begun
            if answer.code is Code.APPLIED:
                self._update_s += spent_s
            return answer.code, answer.applied, int(spent_s * 1e6), answer.own

    def seed(self, slices: F32, state: F32) -> tuple[I64, I64]:
        """Offer initial values to slices that have none; return (seeded [slices], own [columns])."""
        with self.turn.alone():
            return self._store.seed(slices, state)

    def progress(self, shard: int, attempt: int) -> tuple[bool, I64, I64]:
        """Return (finished, own [columns], record [columns + 2]) of a shard, and refuse lower attempts from now on."""
        with self.turn.alone():
            return self._store.progress(shard, attempt)

    def finish(self, shards: Iterable[int] | I64) -> None:
        """Delete the records of finished shards; a mark stays, so that a late push for them is refused."""
        with self.turn.alone():
            self._store.finish(shards)

    # --- ownership ----------------------------------------------------------------------------------------

    def placement(self) -> tuple[I64, int]:
        """Return the state of each column: [columns] of Own, and the lineage of those that are owned."""
        with self.turn.shared():
            return self._store.own(), self._lineage

    def lineage(self) -> int:
        """Return the number of the return to a checkpoint that the columns come from; 0: none."""
        return self._lineage

    def set_lineage(self, lineage: int) -> None:
        """Take this lineage, before columns of it are owned."""
        with self.turn.alone():
            self._lineage = lineage

    def own(self) -> I64:
        """Return the state of each column: [columns] of Own."""
        return self._store.own()

    def columns(self) -> list[int]:
        """Return the columns that are MINE or FROZEN here."""
        return self._store.columns()

    def set_own(self, columns: Iterable[int], to: Own, expect: Own | None = None, *, whole: bool = False) -> int:
        """Compare and set under the lock: once it returns, no push that read the old value is running.

        Return how many columns changed: those whose state was `expect`, or all if it is None. whole: change all of
        them or none.
        """
        with self.turn.alone():
            return self._store.set_own(columns, Own(to), None if expect is None else Own(expect), whole=whole)

    def clear(self) -> None:
        """Drop all columns, rows and records, as before the first push."""
        with self.turn.alone():
            self._store.reset()
            self._update_s = 0.0

    # --- measures -----------------------------------------------------------------------------------------

    def sizes(self) -> I64:
        """Return the rows of each bucket owned here, over all tables; 0 for the others: [buckets]."""
        return self._store.sizes()

    def raw_sizes(self) -> I64:
        """Return the rows in each bucket, owned or not: [buckets]."""
        return self._store.raw_sizes()

    def categories(self) -> int:
        """Return the rows of all buckets owned here."""
        return self._store.categories()

    def memory_bytes(self) -> int:
        """Return the bytes that rows, entries, indices and dense slices take: pages that were touched."""
        return self._store.memory_bytes()

    def row_bytes(self) -> float:
        """Return the mean bytes of a row, with its entry and its share of the index."""
        return self._store.row_bytes()

    def image_bytes(self, since_epoch: int = 0) -> int:
        """Return the bytes that an image taken now would have: all rows, or those that changed after an epoch."""
        with self.turn.shared():
            size_bytes = self._store.dense_bytes() + self._store.progress_bytes()
        for bucket in (c for c in self.columns() if c < self.layout.buckets):
            with self.turn.shared():  # bucket by bucket: a push waits for one of them at most
                size_bytes += sum(
                    (len(self._store.changed_rows(bucket, table, since_epoch)) if since_epoch else rows) * (8 + of_row)
                    for table, (rows, of_row) in enumerate(self._store.table_sizes(bucket))
                )
        return size_bytes

    def applied(self) -> Applied:
        """Return the counters of the columns owned here."""
        with self.turn.shared():
            return self._store.applied()

    def stats(self) -> ServerStats:
        """Return the counters of pushes since the start."""
        stats = self._store.stats
        return ServerStats(stats.updates, self._update_s, stats.rejected, stats.repeated_samples)

    def workers(self) -> dict[int, WorkerSeen]:
        """Return what is known of each worker that pushed."""
        now_us = self._clock() * 1e6
        with self.turn.shared():
            seen = self._store.workers()
        return {worker: WorkerSeen(at.pushes, max(0.0, now_us - at.last_us) / 1e6) for worker, at in seen.items()}

    def checksum(self) -> int:
        """Return an order-free checksum of all keys, rows and slots owned here. Sums over servers are comparable."""
        with self.turn.shared():
            return self._store.checksum()

    # --- copies -------------------------------------------------------------------------------------------

    def known_layout(self) -> dict[str, Any] | None:
        """Return the layout as JSON-able values, None while nobody has given it."""
        return self.layout.to_dict() if self.knows_layout else None

    def next_epoch(self) -> int:
        """End an epoch; return it. Rows that change from now on are those that `since_epoch` of it finds."""
        with self.turn.alone():
            return self._store.next_epoch()

    def export_bucket(self, bucket: int, since_epoch: int = 0) -> tuple[RawBucket, ...]:
        """Copy the rows of a bucket, by table: all, or those that changed after an epoch."""
        with self.turn.shared():
            return self._store.export_bucket(bucket, since_epoch)

    def export_range(
        self, bucket: int, since_epoch: int, table: int, first: int, bytes_max: int
    ) -> tuple[tuple[RawBucket, ...], int, int]:
        """Copy some rows of a bucket, by table, from row `first` of `table` on; return them with the next place."""
        with self.turn.shared():
            return self._store.export_range(bucket, since_epoch, table, first, bytes_max)

    def import_bucket(self, bucket: int, raw: Sequence[RawBucket], *, replace: bool = True) -> None:
        """Write rows into a bucket: instead of those there, or over them."""
        with self.turn.alone():
            self._store.import_bucket(bucket, raw, replace=replace)

    def drop_bucket(self, bucket: int) -> None:
        """Drop the rows of a bucket and give their memory back."""
        with self.turn.alone():
            self._store.drop_bucket(bucket)

    def export_slices(self, ids: I64) -> RawSlices:
        """Copy dense slices with their slots, and the state."""
        with self.turn.shared():
            return self._store.export_slices(ids)

    def import_slices(self, raw: RawSlices) -> None:
        """Write dense slices; the state goes with slice 0."""
        with self.turn.alone():
            self._store.import_slices(raw)

    # --- records ------------------------------------------------------------------------------------------

    def records(self) -> tuple[I64, I64]:
        """Return (shards [n], records [n, columns + 2]: offsets, attempt, samples of the first slice)."""
        with self.turn.shared():
            at = self._store.records.progress(len(self._store.records.finished))
        return at.shards, at.records

    def all_progress(self, known_finished: int = 0) -> Progress:
        """Return the progress of all columns, with the marks that came after the first `known_finished`."""
        with self.turn.shared():
            return self._store.records.progress(known_finished, only_new=True)

    def merge_columns(self, columns: Iterable[int], progress: Progress) -> None:
        """Take over the progress and the counters of `columns` from another server."""
        with self.turn.alone():
            self._store.merge_columns(columns, progress)

    def finished(self) -> I64:
        """Return the finished shards that are marked here."""
        with self.turn.shared():
            return self._store.records.finished.array()

    # --- in the server's own process ----------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """The store; whoever uses it has its turn."""
        return self._store

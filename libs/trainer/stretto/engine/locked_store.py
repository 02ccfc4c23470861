"""The store of one server under its lock, for threads of many connections.

A worker pulls and pushes here, and here columns are owned, moved, counted and copied. What a `Control` asks from
elsewhere are the methods of this class. Pulls and copies share the lock, so they use as many cores as there are;
whatever changes the store has it alone.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from stretto_parameters import Code, InputRefused, Own, Progress, Pulled, Push, RawBucket, Store
from stretto_parameters.layout import RowFormat
from stretto_parameters.store import LOOKED_BYTES, checksum_of
from stretto_parameters.tiers import Filling, fill

from .codec import Frozen, Ranges, ServerStats, WorkerSeen
from .layout import I64, U64, Layout
from .spilling import Pulls, Spill, awake, counted_pull, look_ahead
from .turns import SharedLock, Turn

Clock = Callable[[], float]
P = ParamSpec("P")
R = TypeVar("R")


def _under(
    hold: Callable[[Turn], AbstractContextManager[None]], method: Callable[Concatenate[Store, P], R]
) -> Callable[Concatenate[LockedStore, P], R]:
    """Return a method that calls one of the store while the lock is held so."""

    @functools.wraps(method)
    def call(self: LockedStore, *args: P.args, **kwargs: P.kwargs) -> R:
        with hold(self.turn):
            return method(self.unlocked, *args, **kwargs)

    return call


def _no_lock(_: Turn) -> AbstractContextManager[None]:
    """Hold nothing, for a figure that is true at any moment: a report waits for no push."""
    return nullcontext()


def _import_ranges(store: Store, ranges: Sequence[tuple[int, Sequence[RawBucket], bool]]) -> None:
    """Write ranges of buckets, each as `Store.import_bucket` does: (bucket, rows, replace)."""
    for bucket, raw, replace in ranges:
        store.import_bucket(bucket, raw, replace=replace)


def _freeze_and_export(
    self: LockedStore, columns: Sequence[int], since_epoch: int, bytes_max: int, known_finished: int
) -> Frozen | None:
    """Freeze columns that are MINE, all or none; return what there is of them at that instant, None if of none.

    Dense slices come first, as many as the bytes allow, then the rows, if all of them find room. Columns that cannot be
    copied are not frozen either.
    """
    changed = list[int]()

    def freeze() -> None:
        changed.append(self.unlocked.set_own(columns, Own.FROZEN, Own.MINE, whole=True))

    try:
        with self.turn.shared(freeze):
            if changed != [len(columns)]:
                return None
            frozen, lacking = _begun_frozen(self.unlocked, columns, since_epoch, bytes_max, known_finished)
        fill(lacking)
    except BaseException:
        if changed == [len(columns)]:
            self.set_own(columns, Own.MINE, Own.FROZEN)
        raise
    return frozen


class LockedStore:
    """The columns of one server, in one life of it: from its start, or from when it was emptied, to the next time.

    Most methods are methods of `Store` under the lock. A server that does not know the layout yet owns columns and
    holds nothing; `adopt` gives it the layout.
    """

    def __init__(
        self,
        index: int,
        layout: Layout,
        memory_bytes_max: int,
        clock: Clock = time.monotonic,
        *,
        spill: Spill | None = None,
        emptied: tuple[Store, SharedLock] | None = None,
    ) -> None:
        """Begin a life with an empty store.

        spill: where rows go that find no room in memory; None: nowhere. emptied: store and lock of the life before, to
        go on with.
        """
        self.server = index
        self._memory_bytes_max = memory_bytes_max
        self._clock = clock
        self.unlocked, lock = emptied or (Store(layout, memory_bytes_max), SharedLock())
        """The store itself, for code that holds `turn`."""
        self.turn = Turn(lock)
        """The lock, for code of this process that reads or changes much at one instant."""
        self._spill = spill
        self.spill_fault = spill.prepare(self.unlocked) if spill else ""
        """Why rows that find no room in memory cannot go to the disk; "" if they can, or may not."""
        self.pulls = Pulls() if spill else None
        self._lineage = 0
        self._update_s = 0.0

    def next_life(self) -> LockedStore:
        """Drop everything but the layout, end this life, and return the store of the next life.

        Once it returns, every operation of the ended life raises ServerEmptied, and changes or copies nothing.
        """
        with self.turn.alone():
            self.unlocked.reset()
            self.turn.end()
            kept = self.unlocked, self.turn.lock
        return LockedStore(
            self.server, self.layout, self._memory_bytes_max, self._clock, spill=self._spill, emptied=kept
        )

    @property
    def layout(self) -> Layout:
        """The layout of the job, or UNKNOWN."""
        return self.unlocked.layout

    @property
    def knows_layout(self) -> bool:
        """True once a worker, another server or an image has given the layout."""
        return self.layout.dense_size > 0 or bool(self.layout.tables)

    def adopt(self, layout: Layout) -> None:
        """Take the layout of the job, once; columns that are owned stay so. Raises InputRefused for another one."""
        with self.turn.alone():
            if self.unlocked.layout.agrees(layout):
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
                store.set_own(np.flatnonzero(self.unlocked.own() == state), state)
            store.records = self.unlocked.records
            self.spill_fault = self._spill.prepare(store) if self._spill else ""
            self.unlocked = store

    # --- training -----------------------------------------------------------------------------------------

    def pull(self, keys: Sequence[U64], slices: I64, *, is_training: bool = False) -> Pulled:
        """Return the weights of keys, by table, and of slices. is_training: count the pull. Raises LogDamaged."""
        if is_training and self.pulls is not None:
            return counted_pull(self.turn, self._now, keys, slices, self.pulls)
        return awake(self.turn, self._now, self.turn.shared, lambda store: store.pull(keys, slices))

    def push(self, push: Push) -> tuple[Code, int, int, I64]:
        """Apply one batch exactly once; return (code, columns applied, microseconds with the queue, own).

        Raises LogDamaged.
        """
        begun = self._clock()

        def apply(store: Store) -> tuple[Code, int, int, I64]:
            answer = store.push(push, int(begun * 1e6))
            spent_s = self._clock() - begun
            if answer.code is Code.APPLIED:
                self._update_s += spent_s
            return answer.code, answer.applied, int(spent_s * 1e6), answer.own

        return awake(self.turn, self._now, self.turn.alone, apply, self.pulls)

    def hint(self, keys: Sequence[U64]) -> None:
        """Wake the rows of a batch that comes, by table; no number changes by that. Raises LogDamaged."""
        look_ahead(self.turn, self._now, keys, self.pulls)

    def cold_rows(self) -> int:
        """Return the number of rows on the disk."""
        return self.unlocked.cold_rows()

    def _now(self) -> Store:
        return self.unlocked

    seed = _under(Turn.alone, Store.seed)
    progress = _under(Turn.alone, Store.progress)
    finish = _under(Turn.alone, Store.finish)

    # --- ownership ----------------------------------------------------------------------------------------

    own = _under(_no_lock, Store.own)
    columns = _under(_no_lock, Store.columns)
    freeze_and_export = _freeze_and_export

    def placement(self) -> tuple[I64, int]:
        """Return the state of each column: [columns] of Own, and the lineage of the owned columns."""
        with self.turn.shared():
            return self.unlocked.own(), self._lineage

    def lineage(self) -> int:
        """Return the number of the return to a checkpoint that the columns come from; 0: none."""
        return self._lineage

    def set_lineage(self, lineage: int) -> None:
        """Take this lineage, before columns of it are owned."""
        with self.turn.alone():
            self._lineage = lineage

    def set_own(self, columns: Iterable[int], to: Own, expect: Own | None = None, *, whole: bool = False) -> int:
        """Compare and set under the lock: once it returns, no push that read the old value is running.

        Return how many columns changed: those whose state was `expect`, or all if it is None. whole: change all of
        them or none.
        """
        with self.turn.alone():
            return self.unlocked.set_own(columns, Own(to), None if expect is None else Own(expect), whole=whole)

    def clear(self) -> None:
        """Drop all columns, rows and records, as before the first push."""
        with self.turn.alone():
            self.unlocked.reset()
            self._update_s = 0.0

    # --- measures -----------------------------------------------------------------------------------------

    sizes = _under(_no_lock, Store.sizes)
    raw_sizes = _under(_no_lock, Store.raw_sizes)
    categories = _under(_no_lock, Store.categories)
    memory_bytes = _under(_no_lock, Store.memory_bytes)
    row_bytes = _under(_no_lock, Store.row_bytes)
    row_account = _under(_no_lock, Store.row_account)
    applied = _under(Turn.shared, Store.applied)

    def checksum(self) -> int:
        """Return the checksum of all that is owned here, at one instant if no row is cold. Raises LogDamaged."""
        if not self.cold_rows():
            with self.turn.shared():
                return self.unlocked.checksum()
        with self.turn.shared():
            total = self.unlocked.checksum(buckets=False)
        for bucket in (c for c in self.columns() if c < self.layout.buckets):  # no push waits for all these reads
            [rows], *_ = self.export_ranges([bucket])
            total += checksum_of(rows)
        return total % 2**64

    def image_bytes(self, since_epoch: int = 0) -> int:
        """Return the bytes of an image taken now: with all rows, or with the rows that changed after an epoch."""
        with self.turn.shared():
            size_bytes = self.unlocked.dense_bytes() + self.unlocked.progress_bytes()
        for bucket in (c for c in self.columns() if c < self.layout.buckets):
            with self.turn.shared():  # bucket by bucket: a push waits for one of them at most
                size_bytes += sum(
                    (len(self.unlocked.changed_rows(bucket, table, since_epoch)) if since_epoch else rows)
                    * (8 + bool(self.layout.rows.expire_samples) + of_row)
                    for table, (rows, of_row) in enumerate(self.unlocked.table_sizes(bucket))
                )
                size_bytes += self.unlocked.policy_bytes(bucket)
        return size_bytes

    def stats(self) -> ServerStats:
        """Return the counters of pushes since the start."""
        stats = self.unlocked.stats
        return ServerStats(stats.updates, self._update_s, stats.rejected, stats.repeated_samples)

    def workers(self) -> dict[int, WorkerSeen]:
        """Return what is known of each worker that pushed."""
        now_us = self._clock() * 1e6
        with self.turn.shared():
            seen = self.unlocked.workers()
        return {worker: WorkerSeen(at.pushes, max(0.0, now_us - at.last_us) / 1e6) for worker, at in seen.items()}

    # --- copies -------------------------------------------------------------------------------------------

    next_epoch = _under(Turn.alone, Store.next_epoch)
    export_bucket = _under(Turn.shared, Store.export_bucket)
    import_bucket = _under(Turn.alone, Store.import_bucket)
    drop_bucket = _under(Turn.alone, Store.drop_bucket)
    import_ranges = _under(Turn.alone, _import_ranges)
    expire = _under(Turn.alone, Store.expire)
    export_policy = _under(Turn.shared, Store.export_policy)
    import_policy = _under(Turn.alone, Store.import_policy)
    export_slices = _under(Turn.shared, Store.export_slices)
    import_slices = _under(Turn.alone, Store.import_slices)

    def export_ranges(
        self, buckets: Sequence[int], since_epoch: int = 0, table: int = 0, first: int = 0, bytes_max: int = 2**40
    ) -> Ranges:
        """Copy ranges of buckets at one instant, as `begun_ranges` says; their cold rows are read without the lock."""
        with self.turn.shared():
            found, at, begin, lacking = begun_ranges(self.unlocked, buckets, since_epoch, table, first, bytes_max)
        fill(lacking)
        return found, at, begin

    def known_layout(self) -> dict[str, Any] | None:
        """Return the layout as JSON-able values, None while nobody has given it."""
        return self.layout.to_dict() if self.knows_layout else None

    # --- records ------------------------------------------------------------------------------------------

    merge_columns = _under(Turn.alone, Store.merge_columns)

    def records(self) -> tuple[I64, I64]:
        """Return (shards [n], records [n, columns + 2]: offsets, attempt, samples of the first slice)."""
        with self.turn.shared():
            at = self.unlocked.records.progress(len(self.unlocked.records.finished))
        return at.shards, at.records

    def all_progress(self, known_finished: int = 0) -> Progress:
        """Return the progress of all columns, with the marks that came after the first `known_finished`."""
        with self.turn.shared():
            return self.unlocked.records.progress(known_finished, only_new=True)

    def finished(self) -> I64:
        """Return the finished shards that are marked here."""
        with self.turn.shared():
            return self.unlocked.records.finished.array()


def _begun_frozen(
    store: Store, columns: Sequence[int], since_epoch: int, bytes_max: int, known_finished: int
) -> tuple[Frozen, list[Filling]]:
    """Copy what a mover takes of columns that are frozen, but for the cold rows."""
    progress = store.records.progress(known_finished, only_new=True)
    buckets = [column for column in columns if column < store.layout.buckets]
    slices = [column - store.layout.buckets for column in columns if column >= store.layout.buckets]
    at_once = max(1, bytes_max // RowFormat.of_slices(store.layout).row_bytes)
    raw_slices = store.export_slices(np.array(slices[:at_once], np.int64)) if slices else None
    bytes_left = -1 if len(slices) > at_once else bytes_max - (raw_slices.nbytes if raw_slices else 0)
    rows, lacking = store.begin_changes(buckets, since_epoch, bytes_left) or (None, [])
    return Frozen(progress, raw_slices, rows), lacking


def begun_ranges(
    store: Store, buckets: Sequence[int], since_epoch: int, table: int, first: int, bytes_max: int
) -> tuple[list[tuple[RawBucket, ...]], int, int, list[Filling]]:
    """Copy ranges of buckets, by bucket and table, but for the cold rows: what `Store.export_range` copies of each.

    The first bucket is copied from (table, first) on, the others from their beginning, as far as the bytes go. Return
    the rows with the table and the row of the last bucket where its next range begins: (0, 0) if it is complete.
    """
    found: list[tuple[RawBucket, ...]] = []
    lacking: list[Filling] = []
    try:
        for bucket in buckets:
            raw, table, first, of_bucket = store.begin_range(bucket, since_epoch, table, first, bytes_max)
            found.append(raw)
            lacking += of_bucket
            looked_at_bytes = LOOKED_BYTES * sum(rows for rows, _ in store.table_sizes(bucket))
            bytes_max -= max(looked_at_bytes, sum(each.nbytes for each in raw))
            if table < len(raw):
                break
            table = first = 0
            if bytes_max <= 0:
                break
    except BaseException:
        for each in lacking:
            each.let_go()
        raise
    return found, table, first, lacking

"""The parameter store: the columns of one server. Arrays in, arrays out; no socket, no clock, no thread of its own.

Readers may call at the same time, a writer calls alone: the lock is the server's. Results are
copies. Arguments are checked before anything changes, and an update begins when nothing can fail any more: a push is
applied whole or not at all.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import checksums, kernels
from .errors import InputRefused
from .kernels import Kernels
from .layout import Layout, RowFormat
from .optimizers import Optimizer, schedules
from .parts import ABSENT, ARENAS, ASLEEP, INDEX_BYTES, STAMPS, TableParts, named, split
from .policy import PolicyState, RowAccount, Unseen, stamps_of
from .records import Bools, Claim, Code, Own, Progress, Records, check_word, judge
from .reference import Due, RowGradients
from .tiers import Filling, RowsAsleep, Tiers, fill

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

_ADDRESSES_MAX = 2**45
"""Addresses that all reservations may take, of the 2^47 of a process."""
_PART_BYTES_MAX = 2**40
_OFFSET_MAX = 2**48
LOOKED_BYTES = 2
"""Copied bytes that take as long as one entry that is looked at for a difference (measured)."""
_ANY = -1
"""A length of an array that is not prescribed."""


@dataclass(frozen=True, slots=True)
class Push:
    """One batch: samples start..stop of a shard, for the claimed columns.

    claim [columns]. keys: per table, stored keys strictly ascending as unsigned, of claimed buckets only; row_gradients
    [keys, dimension] per table. slice_gradients [claimed slices, slice_length]. state_delta [state_size] is added to
    the state if the first slice is applied. row_squares: like row_gradients, what an optimizer takes for their squares;
    None for a table, or no entry at all: the squares of its row_gradients. slice_squares: likewise, of slice_gradients.
    others: further batches that the gradients are the mean of; a column has all of them or none. Only slices may have
    several: rows are pushed by each worker for itself.
    """

    shard: int
    attempt: int
    start: int
    stop: int
    worker: int
    claim: Bools
    keys: Sequence[U64]
    row_gradients: Sequence[F32]
    slice_gradients: F32
    state_delta: F32
    row_squares: Sequence[F32 | None] = ()
    slice_squares: F32 | None = None
    others: Sequence[Claim] = ()


@dataclass(frozen=True, slots=True)
class PushAnswer:
    """The answer to a push. applied: columns that it changed; own [columns]."""

    code: Code
    applied: int
    own: I64


@dataclass(frozen=True, slots=True)
class Pulled:
    """The weights of keys, [keys, dimension] per table; of dense slices [n, slice_length]; the state; own [columns]."""

    rows: tuple[F32, ...]
    slices: F32
    state: F32
    own: I64


@dataclass(frozen=True, slots=True)
class RawBucket:
    """A table's rows of one bucket: stored keys [n], whole rows [n, words] as they are stored.

    stamps [n]: the period of the last change, where rows expire.
    """

    keys: U64
    rows: F32
    stamps: Bytes | None = None

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.rows.nbytes + (0 if self.stamps is None else self.stamps.nbytes)


@dataclass(frozen=True, slots=True)
class RawSlices:
    """Dense slices `ids` [n]: whole rows [n, words], the marks of seeded ones, and the state (it goes with slice 0)."""

    ids: I64
    rows: F32
    seeded: I64
    state: F32

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.state.nbytes


@dataclass(frozen=True, slots=True)
class Applied:
    """Counters of the samples that a server applied, 0 for columns that it does not own: [columns].

    per_shard: samples that the first dense slice applied, by shard with a live record; empty where that slice is not
    owned.
    """

    samples: I64
    fingerprints: I64
    per_shard: dict[int, int]


@dataclass(slots=True)
class Stats:
    """Counters since the start: pushes applied and rejected, rows made, samples that some column had already."""

    updates: int = 0
    rejected: int = 0
    repeated_samples: int = 0
    rows_made: int = 0


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """Pushes accepted from one worker, and the time of the last one as the caller gave it."""

    pushes: int
    last_us: int


class Store:
    """The columns of one parameter server.

    Larger than 250 lines: one state, and each operation of the protocol once.
    """

    def __init__(
        self, layout: Layout, memory_bytes_max: int, *, library: Kernels | None = None, multiplier: int = 0
    ) -> None:
        """`memory_bytes_max`: the most memory that the server may ever get; it is not reserved, only addresses are.

        multiplier: of the indices, odd; 0: a random one of this store, which nothing that it answers depends on.

        Raises LibraryRefused if the built kernels are not those of this version.
        """
        if memory_bytes_max < 2**20:
            raise InputRefused(f"memory_bytes_max = {memory_bytes_max} is less than 1 MiB: give the pod's limit")
        if (not multiplier % 2 and multiplier) or not 0 <= multiplier < 2**64:
            raise InputRefused(f"multiplier = {multiplier} must be odd and below 2^64")
        multiplier = multiplier or secrets.randbits(64) | 1
        self.layout = layout
        self.kernels: Kernels = kernels.load() if library is None else library
        parts = layout.buckets * len(layout.tables) * ARENAS
        part_bytes_max = min(memory_bytes_max, _PART_BYTES_MAX, _ADDRESSES_MAX // max(1, parts))
        self._tables = [
            TableParts(
                RowFormat.of_table(table), layout.buckets, part_bytes_max, multiplier=multiplier, shift=layout.shift
            )
            for table in layout.tables
        ]
        dense = RowFormat.of_slices(layout)
        self.tiers: Tiers | None = None
        """None: every row is hot, whatever memory that takes."""
        self._dense = TableParts(dense, layout.slices, max(dense.row_bytes, 2**12), multiplier=multiplier)
        self._own: I64 = np.zeros(layout.columns, np.int64)
        self._seeded: I64 = np.zeros(layout.slices, np.int64)
        self._bounds: U64 = np.arange(layout.buckets, dtype=np.uint64) << np.uint64(layout.shift)
        self._state: F32 = np.zeros(layout.state_size, np.float32)
        self.records = Records(layout.columns, layout.buckets)
        self._workers: dict[int, WorkerSeen] = {}
        self.stats = Stats()
        self.epoch = STAMPS
        self._policy = PolicyState(layout, self._tables, self.kernels)
        self._emptied: I64 = np.zeros(layout.buckets, np.int64)
        for column in range(layout.buckets, layout.columns):
            self._clear_slice(column - layout.buckets)

    # --- ownership ----------------------------------------------------------------------------------------

    def own(self) -> I64:
        """Return the state of each column: [columns] of Own."""
        return self._own.copy()

    def columns(self) -> list[int]:
        """Return the columns that are MINE or FROZEN here."""
        return np.flatnonzero(self._own != Own.NOT_MINE).tolist()

    def set_own(self, columns: Iterable[int], to: Own, expect: Own | None = None, *, whole: bool = False) -> int:
        """Compare and set; return how many columns changed: those whose state was `expect`, or all if it is None.

        whole: change all of them or none.
        """
        mask = self._mask(columns)
        fits = mask if expect is None else mask & (self._own == expect)
        if whole and fits.sum() != mask.sum():
            return 0
        self._own[fits] = to
        return int(fits.sum())

    def clear(self, columns: Iterable[int]) -> None:
        """Empty columns in place: rows, slices and progress go, memory is given back. Ownership stays as it is."""
        mask = self._mask(columns)
        for column in np.flatnonzero(mask).tolist():
            if column >= self.layout.buckets:
                self._clear_slice(column - self.layout.buckets)
            else:
                self.drop_bucket(column)
        if mask[self.layout.buckets]:
            self._state[:] = 0
        self.records.drop(mask)

    def reset(self) -> None:
        """Drop everything, as before the first push: columns, ownership, records, attempts, marks, counters."""
        self.clear(range(self.layout.columns))  # and of the log everything: no record is live
        self._own[:] = Own.NOT_MINE
        self.records.reset()
        self._workers.clear()
        self.stats = Stats()

    def _clear_slice(self, number: int) -> None:
        self._dense.clear(number)
        self._dense.grow(number, 1)
        self._dense.append(number, np.array([number], np.uint64), self.epoch)
        [row] = self._dense.rows(number)
        row[: self._dense.form.weight_words] = 0
        row[self._dense.form.weight_words :] = self._dense.form.slots
        self._seeded[number] = 0

    # --- values -------------------------------------------------------------------------------------------

    def seed(self, slices: F32, state: F32) -> tuple[I64, I64]:
        """Give initial values [slices, slice_length] to slices that are MINE and have none; return (seeded, own)."""
        layout = self.layout
        values = _array("slices", slices, np.float32, (layout.slices, layout.slice_length))
        extra = _array("state", state, np.float32, (layout.state_size,))
        fresh = (self._own[layout.buckets :] == Own.MINE) & (self._seeded == 0)
        for number in np.flatnonzero(fresh).tolist():
            self._dense.rows(number)[0, : layout.slice_length] = values[number]
            self._dense.entries(number)["epoch"] = self.epoch
        self._seeded[fresh] = 1
        if fresh[0]:
            self._state[:] = extra
        return self._seeded.copy(), self.own()

    def pull(self, keys: Sequence[U64], slices: I64) -> Pulled:
        """Return the weights of keys (per table, in any order) and of slices. A key without a row has its initial
        weights; nothing is made. Raises RowsAsleep."""
        wanted = self._keys(keys)
        ids = self._slice_ids(slices)
        places = self._places(wanted)
        self._check_awake(wanted, places)
        self._keep(places)
        return Pulled(
            tuple(self._weights(number, *each) for number, each in enumerate(zip(wanted, places, strict=True))),
            self._slices(ids),
            self._state.copy(),
            self.own(),
        )

    def check_pull(self, keys: Sequence[U64], slices: I64) -> None:
        """Raise InputRefused for a pull that would be refused."""
        self._keys(keys)
        self._slice_ids(slices)

    def with_rows(self, keys: Sequence[U64]) -> int:
        """Return how many of these keys, by table, have a row."""
        return sum(int(np.count_nonzero(places != ABSENT)) for places in self._places(self._keys(keys)))

    def _slices(self, ids: Sequence[int]) -> F32:
        out = np.empty((len(ids), self.layout.slice_length), np.float32)
        for to, number in zip(out, ids, strict=True):
            to[:] = self._dense.rows(number)[0, : self.layout.slice_length]
        return out

    def _places(self, keys: Sequence[U64]) -> list[U64]:
        found = [np.empty(len(each), np.uint64) for each in keys]
        for table, each, places in zip(self._tables, keys, found, strict=True):
            self.kernels.locate(table, each, places)
        return found

    def _check_awake(self, keys: Sequence[U64], places: Sequence[U64]) -> None:
        """Raise RowsAsleep if some row is cold; the hot ones stay so while cold ones are read."""
        if self.tiers is None:
            return
        found = [self.tiers.asleep(number, *each) for number, each in enumerate(zip(keys, places, strict=True))]
        if asleep := [each for each in found if each is not None]:
            self._keep(places)
            raise RowsAsleep(asleep)

    def _keep(self, places: Sequence[U64]) -> None:
        """Let the hand pass hot rows once before it takes them: a batch that asked for them comes for them again."""
        if self.tiers is not None:
            for table, each in zip(self._tables, places, strict=True):
                self.kernels.keep(table, each)

    def _weights(self, number: int, keys: U64, places: U64) -> F32:
        table = self._tables[number]
        out = np.empty((len(keys), table.form.width), np.float32)
        optimizer = self.layout.tables[number].optimizer
        due = due_of(optimizer, self.records.samples[: self.layout.buckets]) if optimizer.moves_rows_late else None
        self.kernels.gather(table, keys, places, out, due)
        return out

    # --- push ---------------------------------------------------------------------------------------------

    def push(self, push: Push, now_us: int = 0) -> PushAnswer:
        """Apply one batch exactly once: each claimed column whose record is at `start` moves to `stop`, those further
        are skipped. Raises InputRefused, StoreFull or RowsAsleep with nothing applied."""
        checked = self._checked(push)
        records = self.records
        offsets = records.offsets(push.shard)
        stale = records.is_stale(push.shard, push.attempt)
        code = judge(checked.claim, self._own, offsets, push.start, push.stop, stale)
        applied = checked.claim & (offsets == push.start)
        if code is Code.APPLIED and push.others:
            code = self._judge_others(checked, applied)
        if code is not Code.APPLIED:
            self.stats.rejected += 1
            return PushAnswer(code, 0, self.own())
        if not checked.claim.any():
            return PushAnswer(code, 0, self.own())
        located = [self._located(number, checked, applied) for number in range(len(self._tables))]
        self._check_awake([each.keys for each in located], [each.places for each in located])
        for number, (table, part) in enumerate(zip(self._tables, located, strict=True)):
            if self.tiers is not None:
                self.tiers.rouse(number, part.places)
            if part.absent:
                self._make_room(table, part.keys, part.places)
        optimizers = [table.optimizer for table in self.layout.tables]
        buckets = self.layout.buckets
        rates = [schedules.rates(each.schedule, records.samples[:buckets]) for each in optimizers]
        clocks = [each.clocks(records.samples[:buckets]) for each in optimizers]
        of_slices = self.layout.optimizer.dense
        dense_rates = schedules.rates(of_slices.schedule, records.samples[buckets:])
        dense_clocks = of_slices.clocks(records.samples[buckets:])
        before = records.samples[:buckets].copy()
        reached = before + (push.stop - push.start)
        reached[~applied[:buckets]] = reached[applied[:buckets]].max(initial=0)  # of no row here
        stamps = self._policy.stamps(reached)
        epoch = self.epoch + int(stamps.max())
        for number, (part, rate, clock) in enumerate(zip(located, rates, clocks, strict=True)):
            # from here on nothing can fail
            table = self._tables[number]
            self._policy.count(number, part.unseen)
            if len(part.keys):
                self.kernels.insert(table, part.keys, part.places, epoch)
                self.kernels.update(table, part.places, part.change, rate, clock, optimizers[number], epoch)
                self._policy.restamp(number, part.places, stamps, self.epoch)
        self._update_slices(checked, applied, dense_rates, dense_clocks)
        for claimed in (Claim(push.shard, push.attempt, push.start, push.stop), *push.others):
            records.account(*claimed, applied)
        self._policy.expire_due(before, records.samples[:buckets], self.epoch)
        self.stats.updates += 1
        self.stats.repeated_samples += (push.stop - push.start) * bool((checked.claim & ~applied).any())
        self.stats.rows_made += sum(part.absent for part in located)
        seen = self._workers.get(push.worker)
        self._workers[push.worker] = WorkerSeen(1 + (seen.pushes if seen else 0), now_us)
        return PushAnswer(code, int(applied.sum()), self.own())

    def _judge_others(self, push: Push, applied: Bools) -> Code:
        """Return the answer to the further batches of a push: each is to be applied to the columns of the first.

        A column that has one of them already would get its gradient again by the mean: GAP, each worker then pushes for
        itself, and the column takes what it lacks.
        """
        for other in push.others:
            offsets, stale = self.records.offsets(other.shard), self.records.is_stale(other.shard, other.attempt)
            code = judge(push.claim, self._own, offsets, other.start, other.stop, stale)
            if code is not Code.APPLIED:
                return code
            if ((push.claim & (offsets == other.start)) != applied).any():
                return Code.GAP
        return Code.APPLIED

    def _located(self, number: int, push: Push, applied: Bools) -> _Located:
        """Return the keys of applied buckets with their places."""
        table, keys = self._tables[number], push.keys[number]
        gradients, squares = push.row_gradients[number], push.row_squares[number]
        buckets = self.layout.buckets
        if (push.claim & ~applied)[:buckets].any():  # a repeated push: some buckets have it already
            chosen = applied[:buckets][(keys >> np.uint64(self.layout.shift)).astype(np.int64)]
            keys, gradients = keys[chosen], gradients[chosen]
            squares = None if squares is None else squares[chosen]
        places = np.empty(len(keys), np.uint64)
        absent, unseen = self.kernels.locate(table, keys, places), None
        if absent and (unseen := self._policy.unseen(number, keys, places)) is not None:
            absent -= int(np.count_nonzero(~unseen.kept))
            keys, places, gradients = keys[unseen.kept], places[unseen.kept], gradients[unseen.kept]
            squares = None if squares is None else squares[unseen.kept]
        return _Located(keys, RowGradients(gradients, squares), places, absent, unseen)

    def _make_room(self, table: TableParts, keys: U64, places: U64) -> None:
        """Make room for located keys that have no row. Rows of the other keys stay hot. Raises StoreFull."""
        absent = keys[places == ABSENT]
        more = np.bincount((absent >> np.uint64(self.layout.shift)).astype(np.int64), minlength=self.layout.buckets)
        if self.tiers is not None:
            self.tiers.hand.make_room(self._tables.index(table), more, places[places < ASLEEP])
        kernels.grow(self.kernels, table, more, more)

    def _update_slices(self, push: Push, applied: Bools, rates: F32, clocks: F32) -> None:
        layout = self.layout
        claimed = np.flatnonzero(push.claim[layout.buckets :])
        kept = applied[layout.buckets :][claimed]
        if kept.any():
            squares = None if push.slice_squares is None else push.slice_squares[kept]
            places = claimed[kept].astype(np.uint64) << np.uint64(32)
            by, optimizer = RowGradients(push.slice_gradients[kept], squares), layout.optimizer.dense
            self.kernels.update(self._dense, places, by, rates, clocks, optimizer, self.epoch)
        if applied[layout.buckets]:
            self._state += push.state_delta

    # --- tiers --------------------------------------------------------------------------------------------

    def cold_rows(self) -> int:
        """Return the number of rows on the disk, owned or not."""
        return 0 if self.tiers is None else sum(log.live for log in self.tiers.logs)

    def look_for(self, keys: Sequence[U64]) -> None:
        """Raise RowsAsleep if rows of keys, by table, are cold: a batch that comes will need them."""
        wanted = self._keys(keys)
        places = self._places(wanted)
        self._keep(places)
        self._check_awake(wanted, places)

    def spill_to(self, folder: Path | None, bytes_max: int, budget_bytes: int, *, warms: bool = False) -> None:
        """From now on keep the rows in so much memory, and those that find no room in a file in `folder`, or nowhere.

        bytes_max: of the files, one for each table. warms: memory may have rows rounded to bfloat16. Raises OSError.
        """
        if self.tiers is None and self._tables:
            epoch = (lambda: self.epoch) if warms else None
            self.tiers = Tiers(self._tables, self.kernels, folder, bytes_max, budget_bytes, epoch)
            self._policy.tiers = self.tiers
        elif self.tiers is not None:
            self.tiers.hand.budget_bytes = budget_bytes

    # --- progress -----------------------------------------------------------------------------------------

    def progress(self, shard: int, attempt: int) -> tuple[bool, I64, I64]:
        """Return (finished, own [columns], record [columns + 2]) of a shard as it was, and refuse lower attempts."""
        check_word("shard", shard)
        check_word("attempt", attempt)
        record = self.records.of(shard).copy()
        self.records.raise_attempt(shard, attempt)
        return shard in self.records.finished, self.own(), record

    def finish(self, shards: Iterable[int] | I64) -> None:
        """Delete the records of finished shards; a mark stays, so that a late push for them is refused."""
        if isinstance(shards, np.ndarray):
            self.records.finish(_array("shards", shards, np.int64, (_ANY,)))
            return
        chosen = list(shards)
        for shard in chosen:
            check_word("shard", shard)
        self.records.finish(chosen)

    def merge_columns(self, columns: Iterable[int], progress: Progress) -> None:
        """Take over the progress of columns, whose rows are here, and drop the rows that expired since they were
        copied."""
        mask = self._mask(columns)
        self.records.merge(mask, progress)
        for bucket in np.flatnonzero(mask[: self.layout.buckets]).tolist():
            self.expire(bucket, int(self.records.samples[bucket]), int(self.records.samples[bucket]))

    # --- raw copies ---------------------------------------------------------------------------------------

    def next_epoch(self) -> int:
        """End an epoch; return it. Rows that change from now on are those that `since_epoch` of it finds."""
        self.epoch += STAMPS
        return self.epoch - 1

    def export_bucket(self, bucket: int, since_epoch: int = 0) -> tuple[RawBucket, ...]:
        """Copy the rows of a bucket, by table: all of them, or those that changed after an epoch."""
        return self.export_range(bucket, since_epoch)[0]

    def export_range(
        self, bucket: int, since_epoch: int = 0, table: int = 0, first: int = 0, bytes_max: int = _PART_BYTES_MAX
    ) -> tuple[tuple[RawBucket, ...], int, int]:
        """Copy some rows of a bucket, by table: from row `first` of `table` on, about `bytes_max` bytes, one at least.

        Return them with the table and the row where the next range begins: (tables, 0) if this was the last one. Ranges
        one after the other have every row that was there before the first of them, but for those that took the place of
        an expired one since, which counts as a change. since_epoch: leave out rows that did not change after it.
        """
        found, at, begin, lacking = self.begin_range(bucket, since_epoch, table, first, bytes_max)
        fill(lacking)
        return found, at, begin

    def begin_range(
        self, bucket: int, since_epoch: int = 0, table: int = 0, first: int = 0, bytes_max: int = _PART_BYTES_MAX
    ) -> tuple[tuple[RawBucket, ...], int, int, list[Filling]]:
        """Copy a range but for its cold rows: these are filled in without the lock."""
        self._check_bucket(bucket)
        if table < 0 or first < 0:
            raise InputRefused(f"table = {table}, first = {first} of a range: neither is negative")
        found: list[RawBucket] = []
        lacking: list[Filling] = []
        at, begin, bytes_left = table, first, bytes_max
        for number, parts in enumerate(self._tables):
            chosen: I64 | slice = slice(0, 0)
            if number == at and (bytes_left > 0 or number == table):
                chosen, begin, used_bytes = _changed(parts, bucket, since_epoch, begin, bytes_left)
                bytes_left -= used_bytes
                if begin >= parts.size(bucket):
                    at, begin = number + 1, 0
            keys = parts.keys(bucket)[chosen].copy()
            stamps = stamps_of(parts, bucket, chosen) if self._policy.expires else None
            if self.tiers is not None and parts.is_tiered(bucket):
                rows = np.empty((len(keys), parts.form.words), np.float32)
                lacking.append(self.tiers.copied(number, *named(parts, [bucket], [chosen]), rows))
            else:
                rows = parts.rows(bucket)[chosen].copy()
            found.append(RawBucket(keys, rows, stamps))
        return tuple(found), at, begin, lacking

    def begin_changes(
        self, buckets: Sequence[int], since_epoch: int, bytes_max: int
    ) -> tuple[tuple[RawBucket, ...], list[Filling]] | None:
        """Copy the rows of all these buckets together that changed after an epoch, by table, but for the cold ones.

        None: they take more than `bytes_max`, or it would take as long to find them.
        """
        for bucket in buckets:
            self._check_bucket(bucket)
        bytes_left = bytes_max - LOOKED_BYTES * int(self.raw_sizes()[[*buckets]].sum())
        chosen: list[list[I64]] = []
        for table in self._tables if bytes_left >= 0 else ():
            chosen.append([np.flatnonzero(table.entries(bucket)["epoch"] > since_epoch) for bucket in buckets])
            bytes_left -= sum(map(len, chosen[-1])) * (8 + table.form.row_bytes)
        if bytes_left < 0:
            return None
        found: list[RawBucket] = []
        lacking: list[Filling] = []
        try:
            for number, (table, rows) in enumerate(zip(self._tables, chosen, strict=True)):
                places, entries = named(table, buckets, rows)
                words = np.empty((len(places), table.form.words), np.float32)
                stamps = (entries["epoch"] % STAMPS).astype(np.uint8) if self._policy.expires else None
                found.append(RawBucket(entries["key"].copy(), words, stamps))
                if self.tiers is None:
                    self.kernels.collect(table, places, words)
                else:
                    lacking.append(self.tiers.copied(number, places, entries, words))
        except BaseException:
            for each in lacking:
                each.let_go()
            raise
        return tuple(found), lacking

    def emptied_epoch(self, bucket: int) -> int:
        """Return the epoch in which rows of a bucket went, 0 if none ever did.

        Rows that changed after an epoch are a difference to the bucket at that epoch's end only if none went since.
        """
        self._check_bucket(bucket)
        return int(self._emptied[bucket])

    def changed_rows(self, bucket: int, table: int, since_epoch: int) -> I64:
        """Return the numbers of a table's rows of a bucket that changed after an epoch, valid until the next push."""
        return np.flatnonzero(self._bucket_of(bucket, table).entries(bucket)["epoch"] > since_epoch)

    def copy_keys(self, bucket: int, table: int, to: Bytes, rows: I64 | None = None) -> int:
        """Copy stored keys of a table's bucket into memory of exactly their bytes; return the copy's checksum.

        rows: their numbers, all if None.
        """
        source = self._bucket_of(bucket, table)
        count = source.size(bucket) if rows is None else len(rows)
        memory = _array("to", to, np.uint8, (8 * count,), write=True)
        keys = source.keys(bucket)
        memory.view(np.uint64)[:] = keys if rows is None else keys[rows]
        return checksums.of_block(memory)

    def copy_rows(self, bucket: int, table: int, to: Bytes, rows: I64 | None = None) -> int | Filling:
        """Copy rows of a table's bucket into memory of exactly their bytes; return the copy's checksum.

        rows: their numbers, all if None; their order is that of the keys that `copy_keys` gives. If some are cold, what
        is lacking is returned: it is filled in without the lock, and its checksum taken then.
        """
        source = self._bucket_of(bucket, table)
        count = source.size(bucket) if rows is None else len(rows)
        memory = _array("to", to, np.uint8, (count * source.form.row_bytes,), write=True)
        if self.tiers is not None and source.is_tiered(bucket):
            words = memory.view(np.float32).reshape(count, source.form.words)
            return self.tiers.copied(table, *named(source, [bucket], [slice(None) if rows is None else rows]), words)
        return self.kernels.copy(memory, source.raw_rows(bucket) if rows is None else _bytes(source.rows(bucket)[rows]))

    def copy_stamps(self, bucket: int, table: int, rows: I64 | None = None) -> Bytes:
        """Return the stamps of the rows whose keys `copy_keys` gives."""
        return stamps_of(self._bucket_of(bucket, table), bucket, slice(None) if rows is None else rows)

    def export_policy(self, bucket: int) -> Bytes:
        """Copy what the policy of rows counts in a bucket."""
        self._check_bucket(bucket)
        return self._policy.export(bucket)

    def import_policy(self, bucket: int, given: Bytes) -> None:
        """Replace what the policy of rows counts in a bucket by a copy. Raises InputRefused."""
        self._check_bucket(bucket)
        self._policy.load(bucket, _array(f"policy of bucket {bucket}", given, np.uint8, (_ANY,)))

    def expire(self, bucket: int, stamped_at: int, now: int) -> None:
        """Drop the rows of a bucket that expired until `now`, in samples, of a copy that was made at `stamped_at`."""
        self._check_bucket(bucket)
        self._policy.expire(bucket, stamped_at, now, self.epoch)

    def load_bucket(self, bucket: int, table: int, keys: U64, rows: Bytes, stamps: Bytes | None = None) -> int:
        """Replace a table's rows of a bucket by the rows of a copy; return the checksum of the bytes of the rows.

        Rows are copied once, and their checksum comes with that. If it is not the one that was expected, the caller
        drops the bucket (`drop_bucket`) before anything else reads it. Raises InputRefused or StoreFull.
        """
        target = self._bucket_of(bucket, table)
        stored = _array("keys", keys, np.uint64, (_ANY,))
        words = _array("rows", rows, np.uint8, (len(stored) * target.form.row_bytes,))
        if stamps is not None:
            stamps = _array("stamps", stamps, np.uint8, (len(stored),))
        self._empty(bucket, table)
        checksum = self._filled(table, bucket, stored, words)
        self._policy.stamp(target, bucket, slice(None), stamps, int(self.records.samples[bucket]))
        return checksum

    def _filled(self, table: int, bucket: int, stored: U64, words: Bytes) -> int:
        """Give an empty bucket rows; return the checksum of their bytes."""
        target = self._tables[table]
        if self.tiers is not None and not self.tiers.loading.fits(table, len(stored)):
            raw = words.view(np.float32).reshape(-1, target.form.words)
            self.tiers.loading.load(table, bucket, stored, raw, self.epoch)
            return checksums.of_block(words)
        target.grow(bucket, len(stored))
        self.kernels.adopt(target, bucket, stored, self.epoch)
        return self.kernels.copy(target.raw_rows(bucket), words)

    def drop_bucket(self, bucket: int) -> None:
        """Drop the rows of a bucket and give their memory back; its progress and its owner stay."""
        self._check_bucket(bucket)
        self._policy.clear(bucket)
        for number in range(len(self._tables)):
            self._empty(bucket, number)

    def _empty(self, bucket: int, number: int) -> None:
        if self.tiers is not None:
            self.tiers.forget(number, bucket)
        self._tables[number].clear(bucket)
        self._emptied[bucket] = self.epoch

    def _bucket_of(self, bucket: int, number: int) -> TableParts:
        self._check_bucket(bucket)
        if not 0 <= number < len(self._tables):
            raise InputRefused(f"table = {number} must be between 0 and {len(self._tables) - 1}")
        return self._tables[number]

    def import_bucket(self, bucket: int, raw: Sequence[RawBucket], *, replace: bool = True) -> None:
        """Write rows into a bucket: instead of those there, or (`replace` false) over them, as a difference.

        Raises InputRefused or StoreFull; with the former nothing is changed.
        """
        if not replace:
            self.import_changes([bucket], raw)
            return
        for number, each in enumerate(self._raws([bucket], raw)):  # in their order: no key has to be looked for
            self.load_bucket(bucket, number, each.keys, _bytes(each.rows), each.stamps)

    def import_changes(self, buckets: Sequence[int], raw: Sequence[RawBucket]) -> None:
        """Write rows of some of these buckets, by table, over the rows that are there.

        Raises InputRefused or StoreFull; with the former nothing is changed.
        """
        for number, each in enumerate(self._raws(buckets, raw)):
            self._overwrite(number, each)

    def _overwrite(self, number: int, raw: RawBucket) -> None:
        if not len(raw.keys):
            return
        table, places = self._tables[number], np.empty(len(raw.keys), np.uint64)
        if self.kernels.locate(table, raw.keys, places):
            self._make_room(table, raw.keys, places)
            self.kernels.insert(table, raw.keys, places, self.epoch)
        if self.tiers is None:
            self.kernels.install(table, places, raw.rows)
        else:
            self.tiers.overwrite(number, places, raw.rows)
        parts, rows = split(places)
        for bucket in np.unique(parts).tolist():
            of_bucket = parts == bucket
            stamps = None if raw.stamps is None else raw.stamps[of_bucket]
            table.entries(bucket)["epoch"][rows[of_bucket]] = self.epoch
            self._policy.stamp(table, bucket, rows[of_bucket], stamps, int(self.records.samples[bucket]))

    def _raws(self, buckets: Sequence[int], raw: Sequence[RawBucket]) -> list[RawBucket]:
        """Return rows of these buckets, by table, as kernels may read them. Raises InputRefused."""
        of = f"bucket {buckets[0]}" if len(buckets) == 1 else f"buckets {[*buckets[:8]]}"
        for bucket in buckets:
            self._check_bucket(bucket)
        if len(raw) != len(self._tables):
            raise InputRefused(f"{of}: {len(raw)} tables of rows, the layout has {len(self._tables)}")
        return [self._raw(buckets, f"of {of}", *each) for each in zip(self._tables, raw, strict=True)]

    def _raw(self, buckets: Sequence[int], of: str, table: TableParts, raw: RawBucket) -> RawBucket:
        keys = _array(f"keys {of}", raw.keys, np.uint64, (_ANY,))
        rows = _array(f"rows {of}", raw.rows, np.float32, (len(keys), table.form.words))
        if not np.isin(keys >> np.uint64(self.layout.shift), np.asarray(buckets, np.uint64)).all():
            raise InputRefused(f"keys {of}: some are of another bucket; give each to its own")
        ordered = np.sort(keys)
        if (ordered[1:] == ordered[:-1]).any():
            raise InputRefused(f"keys {of}: some are there twice; give each once")
        stamps = raw.stamps
        if stamps is not None:
            stamps = _array(f"stamps {of}", stamps, np.uint8, (len(keys),))
        return RawBucket(keys, rows, stamps)

    def export_slices(self, ids: I64) -> RawSlices:
        """Copy dense slices with their slots."""
        chosen = self._slice_ids(ids)
        rows = np.array([self._dense.rows(i)[0] for i in chosen], np.float32)
        return RawSlices(
            np.array(chosen, np.int64),
            rows.reshape(len(chosen), self._dense.form.words),
            self._seeded[chosen],
            self._state.copy(),
        )

    def import_slices(self, raw: RawSlices) -> None:
        """Write dense slices with their slots; the state goes with slice 0. Raises InputRefused."""
        chosen = self._slice_ids(raw.ids)
        rows = _array("rows of slices", raw.rows, np.float32, (len(chosen), self._dense.form.words))
        seeded = _array("seeded", raw.seeded, np.int64, (len(chosen),))
        state = _array("state", raw.state, np.float32, (self.layout.state_size,))
        for number, row in zip(chosen, rows, strict=True):
            self._dense.rows(number)[0] = row
            self._dense.entries(number)["epoch"] = self.epoch
        self._seeded[chosen] = seeded
        if 0 in chosen:
            self._state[:] = state

    # --- measures -----------------------------------------------------------------------------------------

    def raw_sizes(self) -> I64:
        """Return the rows in each bucket over all tables, owned or not: [buckets]."""
        return sum((table.sizes for table in self._tables), np.zeros(self.layout.buckets, np.int64))

    def table_sizes(self, bucket: int) -> list[tuple[int, int]]:
        """Return (rows, bytes of a row) of a bucket, by table."""
        self._check_bucket(bucket)
        return [(table.size(bucket), table.form.row_bytes) for table in self._tables]

    def sizes(self) -> I64:
        """Return the rows in each bucket owned here, 0 for the others: [buckets]."""
        return np.where(self._own[: self.layout.buckets] != Own.NOT_MINE, self.raw_sizes(), 0)

    def categories(self) -> int:
        return int(self.sizes().sum())

    def memory_bytes(self) -> int:
        """Return the bytes that rows, entries, indices and dense slices take: pages that were touched."""
        counted = sum(map(self._policy.used_bytes, range(self.layout.buckets)))
        return sum(table.used_bytes for table in self._tables) + self._dense.used_bytes + counted

    def policy_bytes(self, bucket: int) -> int:
        """Return about the bytes that `export_policy` gives."""
        return self._policy.used_bytes(bucket)

    def row_bytes(self) -> float:
        """Return the mean bytes of a row over the rows owned here, with its entry and its share of the index.

        While there is no row, it is the mean over the tables. 0 without tables.
        """
        mine = self._own[: self.layout.buckets] != Own.NOT_MINE
        rows = np.array([table.sizes[mine].sum() for table in self._tables], np.int64)
        each = np.array([self.layout.row_bytes(number) for number in range(len(rows))], np.float64)
        if not len(rows):
            return 0.0
        return INDEX_BYTES + float(each @ rows / rows.sum() if rows.any() else each.mean())

    def dense_bytes(self) -> int:
        """Return the bytes of the dense slices with their slots, and of the state."""
        return self.layout.slices * self._dense.form.row_bytes + self._state.nbytes

    def progress_bytes(self) -> int:
        """Return about the bytes of records and marks."""
        return self.records.used_bytes

    def applied(self) -> Applied:
        """Return the counters of the columns owned here."""
        mine = self._own != Own.NOT_MINE
        at = self.records.progress(len(self.records.finished))
        per_shard: dict[int, int] = {}
        if mine[self.layout.buckets]:  # else its new owner counts
            per_shard = dict(zip(at.shards.tolist(), at.records[:, -1].tolist(), strict=True))
        return Applied(np.where(mine, at.samples, 0), np.where(mine, at.fingerprints, 0), per_shard)

    def row_account(self) -> RowAccount:
        """Return the counters of the policy of rows, of the columns owned here."""
        return self._policy.account(self._own[: self.layout.buckets] != Own.NOT_MINE)

    def workers(self) -> dict[int, WorkerSeen]:
        """Return what is known of each worker that pushed."""
        return dict(self._workers)

    def checksum(self, *, buckets: bool = True) -> int:
        """Return an order-free checksum of all keys, rows and slots owned here. Sums over servers are comparable.

        buckets: also of the rows of tables; `checksum_of` has that of a bucket's copy.
        """
        mine = np.flatnonzero(self._own != Own.NOT_MINE)
        total = 0
        for bucket in mine[mine < self.layout.buckets].tolist() if buckets else ():
            total += checksum_of(self.export_bucket(bucket))
        ids = mine[mine >= self.layout.buckets] - self.layout.buckets
        total += checksums.of_rows(ids.astype(np.uint64), self.export_slices(ids).rows)
        if 0 in ids:
            total += checksums.of_rows(np.array([2**64 - 1], np.uint64), self._state[None])
        return total % 2**64

    # --- checks -------------------------------------------------------------------------------------------

    def _mask(self, columns: Iterable[int]) -> Bools:
        chosen = np.fromiter(columns, np.int64)
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= self.layout.columns):
            raise InputRefused(f"columns {chosen.tolist()[:8]} must be between 0 and {self.layout.columns - 1}")
        mask = np.zeros(self.layout.columns, np.bool_)
        mask[chosen] = True
        return mask

    def _check_bucket(self, bucket: int) -> None:
        if not 0 <= bucket < self.layout.buckets:
            raise InputRefused(f"bucket = {bucket} must be between 0 and {self.layout.buckets - 1}")

    def _slice_ids(self, given: I64) -> list[int]:
        ids = _array("slices", given, np.int64, (_ANY,))
        if len(ids) and (ids.min() < 0 or ids.max() >= self.layout.slices):
            raise InputRefused(f"slices {ids.tolist()[:8]} must be between 0 and {self.layout.slices - 1}")
        if len({*ids.tolist()}) != len(ids):
            raise InputRefused(f"slices {ids.tolist()[:8]}: give each once")
        return ids.tolist()

    def _keys(self, given: Sequence[U64]) -> list[U64]:
        if len(given) != len(self._tables):
            raise InputRefused(f"keys of {len(given)} tables were given, the layout has {len(self._tables)}")
        return [_array(f"keys of table {i}", each, np.uint64, (_ANY,)) for i, each in enumerate(given)]

    def _are_claimed(self, buckets: Bools, stored: U64) -> bool:
        """Return True if ascending keys are of these buckets only: none lies between the bounds of another bucket."""
        return bool(
            buckets.all() or not np.diff(np.searchsorted(stored, self._bounds), append=len(stored))[~buckets].any()
        )

    def _checked(self, push: Push) -> Push:
        """Return the push with aligned arrays. Raises InputRefused for one that no server could apply."""
        layout = self.layout
        if not 0 <= push.start < push.stop < _OFFSET_MAX:
            raise InputRefused(f"push of samples {push.start}..{push.stop}: wanted 0 <= start < stop < {_OFFSET_MAX}")
        for name in ("shard", "attempt", "worker"):
            check_word(name, getattr(push, name))
        if 0 < layout.rows.expire_samples < push.stop - push.start:
            raise InputRefused(
                f"push of samples {push.start}..{push.stop}: more than expire_samples = {layout.rows.expire_samples} "
                "of rows, which would expire before the next one; state more samples, or a smaller batch"
            )
        claim = _array("claim", push.claim, np.bool_, (layout.columns,))
        keys = self._keys(push.keys)
        if len(push.row_gradients) != len(keys):
            raise InputRefused(f"row_gradients of {len(push.row_gradients)} tables, keys of {len(keys)}: give both")
        for number, stored in enumerate(keys):
            if (stored[1:] <= stored[:-1]).any():
                raise InputRefused(
                    f"keys of table {number} must be strictly ascending as unsigned: sort them, each once"
                )
            if not self._are_claimed(claim[: layout.buckets], stored):
                raise InputRefused(f"keys of table {number}: some are in buckets that are not claimed; leave them out")
        gradients = [
            _array(f"row_gradients of table {i}", each, np.float32, (len(stored), table.dimension))
            for i, (each, stored, table) in enumerate(zip(push.row_gradients, keys, layout.tables, strict=True))
        ]
        if push.row_squares and len(push.row_squares) != len(keys):
            raise InputRefused(f"row_squares of {len(push.row_squares)} tables, keys of {len(keys)}: give all or none")
        squares = [
            None if each is None else _array(f"row_squares of table {i}", each, np.float32, of.shape)
            for i, (each, of) in enumerate(zip(push.row_squares or [None] * len(keys), gradients, strict=True))
        ]
        claimed = int(claim[layout.buckets :].sum())
        slices = _array("slice_gradients", push.slice_gradients, np.float32, (claimed, layout.slice_length))
        given = push.slice_squares
        of_slices = None if given is None else _array("slice_squares", given, np.float32, slices.shape)
        delta = _array("state_delta", push.state_delta, np.float32, (layout.state_size,))
        header = (push.shard, push.attempt, push.start, push.stop, push.worker)
        self._check_others(push, claim)
        return Push(*header, claim, keys, gradients, slices, delta, squares, of_slices, push.others)

    def _check_others(self, push: Push, claim: Bools) -> None:
        """Raise InputRefused for further batches that no server could account."""
        if push.others and claim[: self.layout.buckets].any():
            raise InputRefused("a push of several batches claims buckets: push the rows of each batch by itself")
        for other in push.others:
            if not 0 <= other.start < other.stop < _OFFSET_MAX:
                raise InputRefused(
                    f"push with samples {other.start}..{other.stop}: wanted 0 <= start < stop < {_OFFSET_MAX}"
                )
            check_word("shard", other.shard)
            check_word("attempt", other.attempt)
        shards = [push.shard, *(other.shard for other in push.others)]
        if len({*shards}) < len(shards):
            raise InputRefused(f"a push of several batches names shards {shards[:8]}: give one batch of each shard")


def checksum_of(rows: Sequence[RawBucket]) -> int:
    """Return the order-free checksum of a bucket's rows, by table."""
    return sum((number + 1) * checksums.of_rows(each.keys, each.rows) for number, each in enumerate(rows))


def due_of(optimizer: Optimizer, samples: I64) -> Due:
    """Return the steps that the rows of each bucket are due after these samples: [buckets]."""
    return Due(optimizer, schedules.rates(optimizer.schedule, samples), optimizer.clocks(samples))


@dataclass(frozen=True, slots=True)
class _Located:
    """The part of a push that one table applies. absent: keys that get their row now. unseen: those without one before,
    where keys are admitted."""

    keys: U64
    change: RowGradients
    places: U64
    absent: int
    unseen: Unseen | None


def _changed(
    parts: TableParts, bucket: int, since_epoch: int, first: int, bytes_max: int
) -> tuple[I64 | slice, int, int]:
    """Choose rows from `first` on that changed after an epoch, all for 0: as many as fit, one at least.

    Return (rows, the row after those that were looked at, bytes that this costs). Entries that are looked at cost, too.
    """
    size = parts.size(bucket)
    row_bytes = 8 + parts.form.row_bytes
    count = max(1, bytes_max // row_bytes)
    if not since_epoch:
        stop = max(first, min(size, first + count))
        return slice(first, stop), stop, (stop - first) * row_bytes
    stop = max(first, min(size, first + max(1, bytes_max // LOOKED_BYTES)))
    chosen = first + np.flatnonzero(parts.entries(bucket)["epoch"][first:stop] > since_epoch)
    if len(chosen) > count:
        chosen = chosen[:count]
        stop = int(chosen[-1]) + 1
    return chosen, stop, max(len(chosen) * row_bytes, (stop - first) * LOOKED_BYTES)


def _bytes(array: np.ndarray) -> Bytes:
    """Return the bytes of an array, copied if it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return len(shape) == len(wanted) and all(each in (found, _ANY) for found, each in zip(shape, wanted, strict=True))


def _array(name: str, given: Any, dtype: type[np.generic], shape: tuple[int, ...], *, write: bool = False) -> Any:
    """Return an array that a kernel may read: of this type and shape, aligned and contiguous; copied if it is neither.

    write: a kernel writes into it, so a copy would not do. Raises InputRefused.
    """
    if not isinstance(given, np.ndarray) or given.dtype != dtype or not _fits(given.shape, shape):
        found = f"{given.dtype} {given.shape}" if isinstance(given, np.ndarray) else type(given).__name__
        raise InputRefused(f"{name}: {found} were given, wanted {np.dtype(dtype)} {shape}")
    if write and not (given.flags.c_contiguous and given.flags.writeable):
        raise InputRefused(f"{name}: the memory to write into must be contiguous and writable")
    return np.require(given, requirements=["C", "A"])

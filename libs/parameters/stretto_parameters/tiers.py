"""Which rows of a store are hot and which are cold, within a budget of memory.

Rows are chosen by a clock hand (GCLOCK: Smith, TODS 1978): each change of a row warms it, each pass of the hand cools it.
Eviction has three parts, so that no disk is waited for under the lock: `choose` copies rows, `write` writes their records,
`release` makes those cold that nobody has changed meanwhile. A cold row is read, and woken, before the batch that needs it
is applied; what a batch found is looked up again under the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .kernels import Kernels, grow
from .layout import ENTRY_BYTES
from .log import RowLog
from .parts import ABSENT, ASLEEP, COLD, INDEX_BYTES_MAX, NUMBER, TableParts

Bools = NDArray[np.bool_]
F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

SLICE_ROWS = 1024
"""Rows that are chosen at once: what a push waits for."""
_SLICE_STEPS = 2**16
"""Entries that the hand passes for them."""
_SHARE = 8
"""An eviction takes an eighth of a part's hot rows at most: parts shrink alike."""
_LOW, _HIGH = 0.85, 0.90
"""Eviction begins when the store has more than `_HIGH` of its budget, and ends at `_LOW`."""
_BESIDE_BYTES = ENTRY_BYTES + 4 + INDEX_BYTES_MAX
"""Bytes of a hot row beside itself: entry, owner, share of the index."""
_NOTHING: U64 = np.zeros(0, np.uint64)
_PASSES = 3
"""A row that the batch at hand needs is as warm as can be, and survives as many passes of the hand."""


@dataclass(frozen=True, slots=True)
class Asleep:
    """Cold rows that a batch needs, of one table: stored keys and records, [n]. ticket: of the hold on the log."""

    table: int
    keys: U64
    records: U64
    ticket: int


class RowsAsleep(Exception):
    """A batch needs cold rows: read and wake them, and repeat it. Nothing was changed."""

    def __init__(self, rows: Sequence[Asleep]) -> None:
        super().__init__(f"{sum(len(each.keys) for each in rows)} rows are cold")
        self.rows = rows


@dataclass(frozen=True, slots=True)
class Victims:
    """Rows of a part that may become cold: places, keys, records [n] and a copy of the rows [n, words]."""

    table: int
    part: int
    generation: int
    places: U64
    keys: U64
    records: U64
    rows: F32


@dataclass(frozen=True, slots=True)
class TierCounts:
    """What the tiers hold, and have done since the start."""

    cold_rows: int
    log_bytes: int
    rows_read: int
    read_s: float
    rows_evicted: int


@dataclass(slots=True)
class Tiers:
    """The tiers of a store's tables: a log for each, and the budget of all."""

    tables: Sequence[TableParts]
    kernels: Kernels
    folder: Path
    bytes_max: int
    budget_bytes: int
    """The most that the tables may take. Taking more is better than losing rows: where nothing can be written, they do."""
    logs: list[RowLog] = field(default_factory=list[RowLog])
    _hands: list[I64] = field(default_factory=list[I64])
    _generations: list[I64] = field(default_factory=list[I64])
    _turn: int = 0
    rows_evicted: int = 0
    hot_share: float = 1.0
    """The share of its rows that a part which is loaded may have hot (`expect`)."""

    def __post_init__(self) -> None:
        self.logs = [
            RowLog(self.folder, table.form, self.bytes_max // len(self.tables), self.kernels) for table in self.tables
        ]
        self._hands = [np.zeros(len(table.heads), np.int64) for table in self.tables]
        self._generations = [np.zeros(len(table.heads), np.int64) for table in self.tables]

    def close(self) -> None:
        for log in self.logs:
            log.close()

    @property
    def used_bytes(self) -> int:
        return sum(table.used_bytes for table in self.tables)

    def counts(self) -> TierCounts:
        """Return what the tiers hold, and have done."""
        return TierCounts(
            sum(log.live for log in self.logs),
            sum(log.file_bytes for log in self.logs),
            sum(log.reads for log in self.logs),
            sum(log.read_s for log in self.logs),
            self.rows_evicted,
        )

    # --- cold rows that are needed ------------------------------------------------------------------------------

    def asleep(self, number: int, keys: U64, places: U64) -> Asleep | None:
        """Return the cold rows among located keys, held in the log until `let_go`; None if there are none."""
        if not self.logs[number].live or not (chosen := self._cold(places)).any():
            return None
        ticket = self.logs[number].hold()
        return Asleep(number, keys[chosen], self._records(number, places[chosen]), ticket)

    @staticmethod
    def _cold(places: U64) -> Bools:
        return (places >= ASLEEP) & (places != ABSENT)

    def _records(self, number: int, places: U64) -> U64:
        marks = np.empty(len(places), np.uint32)
        self.kernels.marks(self.tables[number], places, marks)
        return (marks & NUMBER).astype(np.uint64)

    def read(self, asleep: Asleep) -> F32:
        """Read cold rows, [n, words]: without any lock. Raises LogDamaged."""
        return self.logs[asleep.table].read(asleep.records, asleep.keys)

    def let_go(self, rows: Sequence[Asleep]) -> None:
        """End the hold on the log of each."""
        for each in rows:
            self.logs[each.table].let_go(each.ticket)

    def wake(self, asleep: Asleep, rows: F32, *, over_budget: bool = False) -> None:
        """Make rows hot that were read, those of them that are as they were. Raises StoreFull.

        over_budget: evict nothing for it, since all of a batch has to be hot at once.
        """
        table = self.tables[asleep.table]
        places = np.empty(len(asleep.keys), np.uint64)
        self.kernels.locate(table, asleep.keys, places)
        same = self._cold(places)
        same[same] = self._records(asleep.table, places[same]) == asleep.records[same]
        places = places[same]
        parts, _ = _split(places)
        more = np.bincount(parts, minlength=len(table.heads))
        if not over_budget:
            self.make_room(asleep.table, more)
        grow(self.kernels, table, np.zeros_like(more), more)
        self.kernels.install(table, places, np.ascontiguousarray(rows[same]))
        self.logs[asleep.table].drop(asleep.records[same])

    def overwrite(self, number: int, places: U64, rows: F32) -> None:
        """Write rows [n, words], hot or cold: these wake. Raises StoreFull."""
        table, cold = self.tables[number], self._cold(places)
        dropped = self._records(number, places[cold])
        more = np.bincount(_split(places[cold])[0], minlength=len(table.heads))
        grow(self.kernels, table, np.zeros_like(more), more)
        self.kernels.install(table, places, rows)
        self.logs[number].drop(dropped)

    # --- room ---------------------------------------------------------------------------------------------------

    def make_room(self, number: int, more: I64, needed: U64 = _NOTHING) -> None:
        """Evict rows of parts that are to get `more` hot rows [parts], where the budget would be exceeded.

        needed: places of rows that stay hot. This waits for the disk under the lock, so it is for what comes faster
        than eviction. Where nothing can be written the budget is exceeded.
        """
        table = self.tables[number]
        if self.used_bytes + int(more.sum()) * table.form.row_bytes <= self.budget_bytes:
            return
        parts = np.flatnonzero(more).tolist()
        for part in parts:
            table.tier(part)
        self.kernels.warm(table, needed)
        for part in parts:
            self._generations[number][part] += 1  # a second hand: what the first one chose may have cooled anew
            with suppress(OSError):
                self._evict(number, part, int(more[part]))

    def _evict(self, number: int, part: int, wanted: int) -> None:
        """Evict so many rows of a part at once, fewer if the other ones are needed. Raises OSError."""
        for _ in range(_PASSES):
            victims = self._choose(number, part, wanted, self.tables[number].size(part))
            if victims is None:
                continue
            try:
                self.write(victims)
            except OSError:
                self.spare(victims)
                raise
            wanted -= self.release(victims)
            if wanted <= 0:
                return

    # --- eviction -----------------------------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Return whether rows have to be evicted."""
        return self.used_bytes > _HIGH * self.budget_bytes

    def is_relieved(self) -> bool:
        """Return whether enough rows were evicted."""
        return self.used_bytes <= _LOW * self.budget_bytes

    def choose(self) -> Victims | None:
        """Copy some rows that may become cold, of the next part; None: its rows are warm as yet. Raises LogFull.

        The caller has the lock alone, and nobody else is between `choose` and `release`.
        """
        parts = [len(table.heads) for table in self.tables]
        for _ in range(sum(parts)):
            self._turn = (self._turn + 1) % sum(parts)
            number = int(np.searchsorted(np.cumsum(parts), self._turn, side="right"))
            part = self._turn - sum(parts[:number])
            hot = self.tables[number].hot(part)
            if hot:
                self.tables[number].tier(part)
                return self._choose(number, part, min(SLICE_ROWS, hot // _SHARE + 1), _SLICE_STEPS)
        return None

    def _choose(self, number: int, part: int, rows_max: int, steps: int) -> Victims | None:
        table = self.tables[number]
        places = np.empty(min(rows_max, table.hot(part)), np.uint64)
        hands = self._hands[number]
        found, hands[part] = self.kernels.choose(table, part, min(steps, table.size(part)), int(hands[part]), places)
        if not found:
            return None
        places = places[:found]
        rows = np.empty((found, table.form.words), np.float32)
        self.kernels.collect(table, places, rows)
        keys = table.keys(part)[_split(places)[1]]
        records = self.logs[number].allot(found)
        return Victims(number, part, int(self._generations[number][part]), places, keys, records, rows)

    def write(self, victims: Victims) -> None:
        """Write the records of rows that may become cold: without any lock. Raises OSError."""
        self.logs[victims.table].write(victims.records, victims.keys, victims.rows)

    def release(self, victims: Victims) -> int:
        """Make written rows cold that nobody has changed since they were chosen; return how many."""
        table, log, part = self.tables[victims.table], self.logs[victims.table], victims.part
        if victims.generation != self._generations[victims.table][part]:
            log.drop(victims.records)
            return 0
        released = victims.records.copy()
        self.kernels.release(table, victims.places, released)
        stayed = released == ABSENT
        log.drop(victims.records[stayed])
        table.trim(part)
        evicted = len(stayed) - int(stayed.sum())
        self.rows_evicted += evicted
        return evicted

    def spare(self, victims: Victims) -> None:
        """Give up rows that could not be written: they stay hot."""
        self.logs[victims.table].drop(victims.records)

    def forget(self, number: int, part: int) -> None:
        """Drop the records of a part that is about to be cleared."""
        marks = self.tables[number].entries(part)["mark"]
        self.logs[number].drop(marks[marks >= COLD] & NUMBER)
        self._generations[number][part] += 1
        self._hands[number][part] = 0

    # --- segments that are mostly garbage -----------------------------------------------------------------------

    def tidy(self, number: int, keys: U64, records: U64) -> Asleep:
        """Return the live rows of a sparse segment, held: to be read, and then written anew by `move`."""
        places = np.empty(len(keys), np.uint64)
        self.kernels.locate(self.tables[number], keys, places)
        cold = self._cold(places)
        cold[cold] = self._records(number, places[cold]) == records[cold]
        return Asleep(number, keys[cold], records[cold], self.logs[number].hold())

    def move(self, asleep: Asleep, to: U64) -> None:
        """Name the new records of cold rows that were written anew, and drop the old ones."""
        table, log = self.tables[asleep.table], self.logs[asleep.table]
        places = np.empty(len(asleep.keys), np.uint64)
        self.kernels.locate(table, asleep.keys, places)
        same = self._cold(places)
        same[same] = self._records(asleep.table, places[same]) == asleep.records[same]
        parts, rows = _split(places[same])
        for part in np.unique(parts).tolist():
            chosen = parts == part
            table.entries(part)["mark"][rows[chosen]] = COLD | to[same][chosen].astype(np.uint32)
        log.drop(asleep.records[same])
        log.drop(to[~same])

    # --- whole parts --------------------------------------------------------------------------------------------

    def expect(self, rows: Sequence[int]) -> None:
        """Share the budget among so many rows, by table, that are about to be loaded; none: whatever comes may be hot."""
        room_bytes = _LOW * self.budget_bytes - self.used_bytes - sum(rows) * _BESIDE_BYTES
        all_bytes = sum(count * table.form.row_bytes for count, table in zip(rows, self.tables, strict=False))
        self.hot_share = min(1.0, max(0.0, room_bytes / all_bytes)) if all_bytes else 1.0

    def fits(self, number: int, rows: int) -> bool:
        """Return whether so many rows of a table may come and all be hot."""
        room_bytes = _LOW * self.budget_bytes - self.used_bytes
        return self.hot_share >= 1.0 and rows * (self.tables[number].form.row_bytes + _BESIDE_BYTES) <= room_bytes

    def load(self, number: int, part: int, keys: U64, rows: F32, epoch: int) -> None:
        """Give an empty part rows [n, words]: the first ones hot, as far as the budget goes, the others cold.

        Rows are in order of arrival, and what came first is used most. Raises StoreFull, OSError.
        """
        table = self.tables[number]
        room = int((_LOW * self.budget_bytes - self.used_bytes) // (table.form.row_bytes + _BESIDE_BYTES))
        hot = max(0, min(int(self.hot_share * len(keys)), room))
        table.grow(part, len(keys), hot)
        self.kernels.adopt(table, part, keys[:hot], epoch)
        table.rows(part)[:] = rows[:hot]
        table.tier(part)
        for begin in range(hot, len(keys), 2**14):
            some = slice(begin, begin + 2**14)
            records = self.logs[number].allot(len(keys[some]))
            try:
                self.logs[number].write(records, keys[some], np.ascontiguousarray(rows[some]))
            except OSError:
                self.logs[number].drop(records)
                raise
            table.append_cold(part, keys[some], records, epoch)
        self.kernels.rebuild(table, part)

    def copied(self, number: int, part: int, chosen: I64 | slice, out: F32) -> Filling:
        """Copy hot rows of a part into `out` [n, words]; the cold ones among them follow, without the lock."""
        table = self.tables[number]
        rows = np.arange(table.size(part))[chosen] if isinstance(chosen, slice) else chosen
        marks = table.entries(part)["mark"][rows]
        cold = np.flatnonzero(marks >= COLD)
        hot = np.flatnonzero(marks < COLD)
        out[hot] = table.rows(part)[(marks[hot] & NUMBER).astype(np.int64)]
        records = (marks[cold] & NUMBER).astype(np.uint64)
        log = self.logs[number]
        return Filling(log, log.hold(), table.keys(part)[rows[cold]], records, cold, out)


@dataclass(frozen=True, slots=True)
class Filling:
    """Cold rows that a copy lacks as yet: at positions `at` of `out`."""

    log: RowLog
    ticket: int
    keys: U64
    records: U64
    at: I64
    out: F32

    def fill(self) -> None:
        """Read them, without any lock. Raises LogDamaged."""
        try:
            self.out[self.at] = self.log.read(self.records, self.keys)
        finally:
            self.log.let_go(self.ticket)


def _split(places: U64) -> tuple[I64, I64]:
    """Return (parts, rows) of places."""
    found = (places & ~ASLEEP).astype(np.int64)
    return found >> 32, found & 0xFFFFFFFF


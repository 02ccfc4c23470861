"""The clock hand that chooses which rows leave memory, within a budget.

Each change of a row heats it, each pass of the hand cools it (GCLOCK: Smith, TODS 1978). Eviction has three parts, so
that no disk is waited for under the lock: `choose` copies rows, `write` writes their records, `release` makes those
cold that nobody has changed meanwhile.

Where rows may be warm, those that leave the hot ones are rounded to bfloat16 and stay in memory: `choose` does it all.
Where there is a disk, too, warm rows become cold once a part's warm rows take more memory than its hot ones. The same
hand chooses them, at its next pass after the one that made them warm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import LogFull
from ..kernels import Kernels
from ..parts import ABSENT, ASLEEP, TableParts, split
from .log import RowLog

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

SLICE_ROWS = 512
"""Rows that are chosen at once: what a push waits for."""
_SLICE_STEPS = 2**17
"""Entries that the hand passes for them."""
_SHARE = 8
"""An eviction takes an eighth of a part's rows in memory at most: parts shrink alike."""
_LOW, _HIGH = 0.85, 0.90
"""Eviction begins when the tables take more than `_HIGH` of the budget, and ends at `_LOW`."""
_LOW_WITHOUT_DISK, _HIGH_WITHOUT_DISK = 0.90, 0.93
"""Rounding waits for nothing, so that fewer rows come meanwhile."""
_PASSES = 3
"""A row that the batch at hand needs is as hot as can be, and survives as many passes of the hand."""
_NOTHING: U64 = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Victims:
    """Hot or warm rows of a table that may become cold: places, keys, records [n] and a copy of the rows [n, words].

    generations: of the table's parts, [parts], when the rows were chosen.
    """

    table: int
    generations: I64
    places: U64
    keys: U64
    records: U64
    rows: F32


class Hand:
    """The clock hand of each part of a store's tables. budget_bytes: the most that the tables may take.

    Where nothing can be written, the tables take more: that is better than to lose rows.
    """

    def __init__(
        self,
        tables: Sequence[TableParts],
        logs: Sequence[RowLog],
        kernels: Kernels,
        budget_bytes: int,
        has_disk: bool,
        epoch: Callable[[], int] | None,
    ) -> None:
        """Begin with each hand at the last row.

        has_disk: rows may become cold. epoch: returns the epoch of the store, in which rows become warm where that
        makes them smaller; None: no row does.
        """
        self.tables = tables
        self.budget_bytes = budget_bytes
        self.has_disk = has_disk
        self.low, self.high = (_LOW, _HIGH) if has_disk else (_LOW_WITHOUT_DISK, _HIGH_WITHOUT_DISK)
        self._epoch = epoch or (lambda: 0)
        self.warms = [epoch is not None and table.form.warm_bytes < table.form.row_bytes for table in tables]
        self._logs = logs
        self._kernels = kernels
        self._hands: list[I64] = [np.zeros(len(table.heads), np.int64) for table in tables]
        self._generations: list[I64] = [np.zeros(len(table.heads), np.int64) for table in tables]
        self._turn = 0
        self.rows_evicted = 0
        """Rows that became cold."""
        self.rows_dozed = 0
        """Rows that became warm."""

    @property
    def used_bytes(self) -> int:
        """Bytes that the tables take."""
        return sum(table.used_bytes for table in self.tables)

    def least_bytes(self, hot_bytes: float) -> float:
        """Return the bytes that stay in memory whatever is evicted, where rows of ``hot_bytes`` are to be hot.

        Beside rows that is entries and index, and without a disk all other rows, rounded where they may be.
        """
        beside_bytes = sum(table.used_bytes - table.rows_bytes for table in self.tables)
        if self.has_disk:
            return beside_bytes + hot_bytes
        all_hot = all_rounded = 0
        for table, warms in zip(self.tables, self.warms, strict=True):
            rows = int(table.sizes.sum())
            all_hot += rows * table.form.row_bytes
            all_rounded += rows * (table.form.warm_bytes if warms else table.form.row_bytes)
        return beside_bytes + all_rounded + hot_bytes * (1 - all_rounded / max(all_hot, 1))

    def make_room(self, number: int, more: I64, needed: U64 = _NOTHING) -> None:
        """Evict rows of parts that are to get `more` hot rows [parts], where the budget would be exceeded.

        needed: places of rows that stay hot. This may wait for the disk under the lock, so it is for what comes faster
        than eviction. Where nothing can be written the budget is exceeded.
        """
        table = self.tables[number]
        if self.used_bytes + int(more.sum()) * table.form.row_bytes <= self.budget_bytes:
            return
        parts = np.flatnonzero(more)
        for part in parts.tolist():
            table.tier(part)
        self._kernels.heat(table, needed)
        self._generations[number][parts] += 1  # a second hand: what the first one chose may have cooled anew
        with suppress(OSError):
            self._evict(number, more.copy())

    def _evict(self, number: int, wanted: I64) -> None:
        """Make room for `wanted` hot rows of each part [parts] at once, less if the other ones are needed.

        Raises OSError.
        """
        form = self.tables[number].form
        if self.warms[number]:
            wanted = -(-wanted * form.row_bytes // (form.row_bytes - form.warm_bytes))
        for _ in range(_PASSES):
            found: list[U64] = []
            for part in np.flatnonzero(wanted > 0).tolist():
                before = self.rows_dozed
                found.append(self._pass(number, part, int(wanted[part]), self.tables[number].size(part)))
                wanted[part] -= self.rows_dozed - before
            if (victims := self._copied(number, found)) is None:
                continue
            try:
                self.write(victims)
            except OSError:
                self.spare(victims)
                raise
            self.release(victims)
            wanted -= np.bincount(split(victims.places)[0], minlength=len(wanted))

    def is_full(self) -> bool:
        """Return whether rows have to be evicted."""
        return self.used_bytes > self.high * self.budget_bytes

    def can_evict(self) -> bool:
        """Return whether any row may become warm or cold."""
        parts = ((number, part) for number, table in enumerate(self.tables) for part in range(len(table.heads)))
        return any(self._leaving(*each) for each in parts)

    def _leaving(self, number: int, part: int) -> int:
        """Return the rows of a part that may leave their tier."""
        table = self.tables[number]
        if not self.warms[number]:
            return table.hot(part) * self.has_disk
        return table.hot(part) + table.warm(part) * self._is_deeper(number, part)

    def _is_deeper(self, number: int, part: int) -> bool:
        """Return whether warm rows of a part become cold: there is a disk, and they take half of the memory."""
        table = self.tables[number]
        warm_bytes, hot_bytes = table.warm(part) * table.form.warm_bytes, table.hot(part) * table.form.row_bytes
        return self.has_disk and self.warms[number] and warm_bytes >= hot_bytes

    def is_relieved(self) -> bool:
        """Return whether enough rows were evicted."""
        return self.used_bytes <= self.low * self.budget_bytes

    def choose(self) -> Victims | None:
        """Copy some rows that may become cold, of the next parts of a table; None: none may yet, or some became warm.

        The caller has the lock alone, and nobody else is between `choose` and `release`. Raises LogFull.
        """
        ends = np.cumsum([len(table.heads) for table in self.tables])
        found: list[U64] = []
        at, rows, steps = -1, SLICE_ROWS, _SLICE_STEPS
        for _ in range(int(ends[-1])):
            turn = (self._turn + 1) % int(ends[-1])
            number = int(np.searchsorted(ends, turn, side="right"))
            table = self.tables[number]
            if found and (number != at or rows <= 0 or steps <= 0):
                break
            self._turn, at = turn, number
            part = turn - int(ends[number]) + len(table.heads)
            if self._leaving(number, part):
                table.tier(part)
                before, some = self.rows_dozed, (table.hot(part) + table.warm(part)) // _SHARE + 1
                found.append(self._pass(number, part, min(rows, some), _SLICE_STEPS))
                rows -= len(found[-1]) + self.rows_dozed - before
                steps -= table.size(part)
        return self._copied(at, found)

    def _pass(self, number: int, part: int, rows_max: int, steps: int) -> U64:
        """Let the hand pass some entries of a part; return the places of rows that may become cold.

        Where rows become warm first, the hot ones that the hand finds cool do so at once.
        """
        table, hands, is_deeper = self.tables[number], self._hands[number], self._is_deeper(number, part)
        places = np.empty(min(rows_max, table.hot(part) + table.warm(part) * is_deeper), np.uint64)
        steps = min(steps, table.size(part))
        found, hands[part] = self._kernels.choose(table, part, steps, int(hands[part]), places, deeper=is_deeper)
        places = places[:found]
        if self.warms[number]:
            self.doze(number, part, places[places < ASLEEP])
            places = places[places >= ASLEEP]
        return places if self.has_disk else places[:0]

    def _copied(self, number: int, found: Sequence[U64]) -> Victims | None:
        """Copy rows of a table at these places, each array of one part; None if there are none. Raises LogFull."""
        found = [each for each in found if len(each)]
        if not found:
            return None
        table, places = self.tables[number], np.concatenate(found)
        of_parts = [(int(split(each)[0][0]), split(each)[1]) for each in found]
        try:
            records = self._logs[number].allot(len(places))
        except LogFull:
            if self.warms[number] and any(table.hot(part) for part, _ in of_parts):  # these may still become warm
                return None
            raise
        rows = np.empty((len(places), table.form.words), np.float32)
        self._kernels.collect(table, places, rows)
        keys = np.concatenate([table.keys(part)[of_part] for part, of_part in of_parts])
        return Victims(number, self._generations[number].copy(), places, keys, records, rows)

    def doze(self, number: int, part: int, places: U64) -> None:
        """Make cool hot rows of a part warm. Raises StoreFull."""
        table = self.tables[number]
        table.grow_warm(part, table.warm(part) + len(places))
        dozed = self._kernels.doze(table, places, self._epoch())
        assert dozed == len(places), f"{len(places) - dozed} rows found no room: grow the warm rows before"
        self.rows_dozed += dozed
        table.trim(part)

    def write(self, victims: Victims) -> None:
        """Write the records of rows that may become cold: without any lock. Raises OSError."""
        self._logs[victims.table].write(victims.records, victims.keys, victims.rows)

    def release(self, victims: Victims) -> int:
        """Make written rows cold that nobody has changed since they were chosen; return how many."""
        table, log = self.tables[victims.table], self._logs[victims.table]
        parts, _ = split(victims.places)
        kept = (victims.generations == self._generations[victims.table])[parts]
        released = victims.records[kept]
        self._kernels.release(table, victims.places[kept], released)
        stayed = ~kept
        stayed[kept] = released == ABSENT
        log.drop(victims.records[stayed])
        for part in np.unique(parts[kept]).tolist():
            table.trim(part)
        evicted = len(stayed) - int(stayed.sum())
        self.rows_evicted += evicted
        return evicted

    def spare(self, victims: Victims) -> None:
        """Give up rows that could not be written: they stay hot or warm."""
        self._logs[victims.table].drop(victims.records)

    def forget(self, number: int, part: int) -> None:
        """Spare what was chosen of a part, which is about to be cleared."""
        self._generations[number][part] += 1
        self._hands[number][part] = 0

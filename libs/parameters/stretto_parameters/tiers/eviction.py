"""The clock hand that chooses which hot rows become cold, within a budget of memory.

Each change of a row warms it, each pass of the hand cools it (GCLOCK: Smith, TODS 1978). Eviction has three parts, so
that no disk is waited for under the lock: `choose` copies rows, `write` writes their records, `release` makes those
cold that nobody has changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..kernels import Kernels
from ..parts import ABSENT, TableParts, split
from .log import RowLog

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

SLICE_ROWS = 1024
"""Rows that are chosen at once: what a push waits for."""
_SLICE_STEPS = 2**16
"""Entries that the hand passes for them."""
_SHARE = 8
"""An eviction takes an eighth of a part's hot rows at most: parts shrink alike."""
LOW, _HIGH = 0.85, 0.90
"""Eviction begins when the tables take more than `_HIGH` of the budget, and ends at `LOW`."""
_PASSES = 3
"""A row that the batch at hand needs is as warm as can be, and survives as many passes of the hand."""
_NOTHING: U64 = np.zeros(0, np.uint64)


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


class Hand:
    """The clock hand of each part of a store's tables. budget_bytes: the most that the tables may take.

    Where nothing can be written, the tables take more: that is better than to lose rows.
    """

    def __init__(
        self, tables: Sequence[TableParts], logs: Sequence[RowLog], kernels: Kernels, budget_bytes: int
    ) -> None:
        self.tables = tables
        self.budget_bytes = budget_bytes
        self._logs = logs
        self._kernels = kernels
        self._hands: list[I64] = [np.zeros(len(table.heads), np.int64) for table in tables]
        self._generations: list[I64] = [np.zeros(len(table.heads), np.int64) for table in tables]
        self._turn = 0
        self.rows_evicted = 0

    @property
    def used_bytes(self) -> int:
        """Bytes that the tables take."""
        return sum(table.used_bytes for table in self.tables)

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
        self._kernels.warm(table, needed)
        for part in parts:
            self._generations[number][part] += 1  # a second hand: what the first one chose may have cooled anew
            with suppress(OSError):
                self._evict(number, part, int(more[part]))

    def _evict(self, number: int, part: int, wanted: int) -> None:
        """Evict `wanted` rows of a part at once, fewer if the other ones are needed. Raises OSError."""
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

    def is_full(self) -> bool:
        """Return whether rows have to be evicted."""
        return self.used_bytes > _HIGH * self.budget_bytes

    def has_hot(self) -> bool:
        """Return whether any row is hot."""
        return any(bool(table.hots.any()) for table in self.tables)

    def is_relieved(self) -> bool:
        """Return whether enough rows were evicted."""
        return self.used_bytes <= LOW * self.budget_bytes

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
        found, hands[part] = self._kernels.choose(table, part, min(steps, table.size(part)), int(hands[part]), places)
        if not found:
            return None
        places = places[:found]
        rows = np.empty((found, table.form.words), np.float32)
        self._kernels.collect(table, places, rows)
        keys = table.keys(part)[split(places)[1]]
        records = self._logs[number].allot(found)
        return Victims(number, part, int(self._generations[number][part]), places, keys, records, rows)

    def write(self, victims: Victims) -> None:
        """Write the records of rows that may become cold: without any lock. Raises OSError."""
        self._logs[victims.table].write(victims.records, victims.keys, victims.rows)

    def release(self, victims: Victims) -> int:
        """Make written rows cold that nobody has changed since they were chosen; return how many."""
        table, log, part = self.tables[victims.table], self._logs[victims.table], victims.part
        if victims.generation != self._generations[victims.table][part]:
            log.drop(victims.records)
            return 0
        released = victims.records.copy()
        self._kernels.release(table, victims.places, released)
        stayed = released == ABSENT
        log.drop(victims.records[stayed])
        table.trim(part)
        evicted = len(stayed) - int(stayed.sum())
        self.rows_evicted += evicted
        return evicted

    def spare(self, victims: Victims) -> None:
        """Give up rows that could not be written: they stay hot."""
        self._logs[victims.table].drop(victims.records)

    def forget(self, number: int, part: int) -> None:
        """Spare what was chosen of a part, which is about to be cleared."""
        self._generations[number][part] += 1
        self._hands[number][part] = 0

"""The hot, warm and cold rows of a store: how cold ones are read, and what becomes of whole buckets.

A warm row is in memory, rounded to bfloat16. A pull reads it where it is; what changes a row rouses it, under the lock.

A cold row is read, and woken, before the batch that needs it is applied. What a batch found is looked up again under
the lock, so a row that was changed, evicted anew or dropped meanwhile is left as it is. eviction.py says how rows
become cold.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..kernels import Kernels, grow
from ..parts import ABSENT, ASLEEP, COLD, NUMBER, WARM, TableParts, split
from .eviction import Hand
from .loading import Loading
from .log import RowLog
from .pages import ReadQueues

Bools = NDArray[np.bool_]
F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U32 = NDArray[np.uint32]
U64 = NDArray[np.uint64]

_LEFT_SHARE = 0.05
"""Share of a disk that no server takes with cold rows, whatever the number of servers. Taste."""
_FILLED_AT_ONCE = 2**14


@dataclass(frozen=True, slots=True)
class Asleep:
    """Cold rows that a batch needs, of one table: stored keys and records, [n]. ticket: of the hold on the log."""

    table: int
    keys: U64
    records: U64
    ticket: object


class RowsAsleep(Exception):
    """A batch needs cold rows: read and wake them, and repeat it. Nothing was changed."""

    def __init__(self, rows: Sequence[Asleep]) -> None:
        super().__init__(f"{sum(len(each.keys) for each in rows)} rows are cold")
        self.rows = rows


@dataclass(frozen=True, slots=True)
class TierCounts:
    """Rows and bytes that are on the disk, and rows that were read from it and evicted to it since the start. Rows and
    bytes that are warm, and rows that became warm since the start."""

    cold_rows: int
    log_bytes: int
    rows_read: int
    rows_evicted: int
    warm_rows: int
    warm_bytes: int
    rows_dozed: int


class Tiers:
    """The tiers of a store's tables: a log for each, and one hand.

    bytes_max: of all logs. budget_bytes: the most that the tables may take.
    """

    def __init__(
        self,
        tables: Sequence[TableParts],
        kernels: Kernels,
        folder: Path | None,
        bytes_max: int,
        budget_bytes: int,
        epoch: Callable[[], int] | None = None,
    ) -> None:
        """Have logs in a folder, which is made if it is not there; None: no row is cold.

        epoch: returns the store's epoch, in which rows become warm; None: no row does. Raises OSError.
        """
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self.tables = tables
        self.folder = folder
        self.bytes_max = bytes_max
        self.logs: list[RowLog] = []
        self._queues = ReadQueues(kernels)
        self.logs += (RowLog(folder, table.form, self._room_bytes, kernels, self._queues) for table in tables)
        self.hand = Hand(tables, self.logs, kernels, budget_bytes, folder is not None, epoch)
        self._kernels = kernels
        self.loading = Loading(tables, self.logs, self.hand, kernels)

    def _room_bytes(self) -> int:
        """Return by how much the files may still grow, all together: some of the disk is left to others."""
        if self.folder is None:
            return 0
        disk = os.statvfs(self.folder)
        free_bytes = int((disk.f_bavail - _LEFT_SHARE * disk.f_blocks) * disk.f_frsize)
        return min(self.bytes_max - sum(log.file_bytes for log in self.logs), free_bytes)

    def close(self) -> None:
        """Give the room of the files back to the disk."""
        for log in self.logs:
            log.close()
        self._queues.close()

    def spare_bytes(self) -> float:
        """Return the bytes of rows for which there is room, once hot rows are warm; with a disk none are too many."""
        if self.folder is not None:
            return math.inf
        saved = sum(
            int(table.hots.sum()) * (table.form.row_bytes - table.form.warm_bytes)
            for table, warms in zip(self.tables, self.hand.warms, strict=True)
            if warms
        )
        return max(0, self.hand.budget_bytes - self.hand.used_bytes) + saved

    def counts(self) -> TierCounts:
        """Return what the tiers hold, and have done."""
        return TierCounts(
            sum(log.live for log in self.logs),
            sum(log.file_bytes for log in self.logs),
            sum(log.reads for log in self.logs),
            self.hand.rows_evicted,
            sum(int(table.warms.sum()) for table in self.tables),
            sum(table.warm_bytes for table in self.tables),
            self.hand.rows_dozed,
        )

    # --- cold rows that are needed ------------------------------------------------------------------------------

    def asleep(self, number: int, keys: U64, places: U64) -> Asleep | None:
        """Return the cold rows among located keys, held in the log until `let_go`; None if there are none."""
        if not self.logs[number].live or not (chosen := self._cold(number, places)).any():
            return None
        ticket = self.logs[number].hold()
        wanted, at = np.unique(keys[chosen], return_index=True)  # a pull may name a key twice
        return Asleep(number, wanted, self._records(number, places[chosen][at]), ticket)

    def _cold(self, number: int, places: U64) -> Bools:
        """Return which places are of cold rows: not absent, hot or warm."""
        found = (places >= ASLEEP) & (places != ABSENT)
        found[found] = self._marks(number, places[found]) < WARM
        return found

    def _marks(self, number: int, places: U64) -> U32:
        marks = np.empty(len(places), np.uint32)
        self._kernels.marks(self.tables[number], places, marks)
        return marks

    def _records(self, number: int, places: U64) -> U64:
        return (self._marks(number, places) & NUMBER).astype(np.uint64)

    def read(self, asleep: Asleep) -> F32:
        """Read cold rows, [n, words]: without any lock. Raises LogDamaged."""
        return self.logs[asleep.table].read(asleep.records, asleep.keys)

    def let_go(self, rows: Sequence[Asleep]) -> None:
        """End the hold on the log of each."""
        for each in rows:
            self.logs[each.table].let_go(each.ticket)

    def wake(self, asleep: Asleep, rows: F32, *, over_budget: bool = False) -> None:
        """Make rows hot that were read, unless they changed since. Raises StoreFull.

        over_budget: evict nothing for it, since all of a batch has to be hot at once.
        """
        table = self.tables[asleep.table]
        places, same = self._found(asleep.table, asleep.keys, asleep.records)
        places = places[same]
        parts, _ = split(places)
        more = np.bincount(parts, minlength=len(table.heads))
        if not over_budget:
            self.hand.make_room(asleep.table, more)
        grow(self._kernels, table, np.zeros_like(more), more)
        self._kernels.install(table, places, np.ascontiguousarray(rows[same]))
        self.logs[asleep.table].drop(asleep.records[same])

    def rouse(self, number: int, places: U64, *, over_budget: bool = False) -> None:
        """Make the warm rows among located ones hot, and name them so in their places. None is cold. Raises StoreFull.

        over_budget: evict nothing for it.
        """
        if not self.hand.warms[number] or not len(asleep := places[(places >= ASLEEP) & (places != ABSENT)]):
            return
        more = np.bincount(split(asleep)[0], minlength=len(self.tables[number].heads))
        grow(self._kernels, self.tables[number], np.zeros_like(more), more)
        self._kernels.rouse(self.tables[number], places)
        if not over_budget and self.hand.used_bytes > self.hand.budget_bytes:
            # only now are all rows hot that the batch needs, and can be kept so
            self.hand.make_room(number, more, places[places < ASLEEP])

    def overwrite(self, number: int, places: U64, rows: F32) -> None:
        """Write rows [n, words], hot, warm or cold: all become hot. Raises StoreFull."""
        table, cold = self.tables[number], self._cold(number, places)
        warm = places[~cold]
        self.rouse(number, warm, over_budget=True)
        places[~cold] = warm
        dropped = self._records(number, places[cold])
        more = np.bincount(split(places[cold])[0], minlength=len(table.heads))
        grow(self._kernels, table, np.zeros_like(more), more)
        self._kernels.install(table, places, rows)
        self.logs[number].drop(dropped)

    # --- segments that are mostly garbage -----------------------------------------------------------------------

    def live(self, number: int, keys: U64, records: U64) -> Bools:
        """Return which records of a segment belong to cold rows: [n]. The log is held since they were read."""
        return self._found(number, keys, records)[1]

    def move(self, number: int, keys: U64, records: U64, to: U64) -> None:
        """Name the new records of cold rows that were written anew, and drop the old ones."""
        table, log = self.tables[number], self.logs[number]
        places, same = self._found(number, keys, records)
        parts, rows = split(places[same])
        for part in np.unique(parts).tolist():
            chosen = parts == part
            table.entries(part)["mark"][rows[chosen]] = COLD | to[same][chosen].astype(np.uint32)
        log.drop(records[same])
        log.drop(to[~same])

    def _found(self, number: int, keys: U64, records: U64) -> tuple[U64, Bools]:
        """Return the places of keys, and which of their rows are cold and have these records: [keys]."""
        places = np.empty(len(keys), np.uint64)
        self._kernels.locate(self.tables[number], keys, places)
        same = self._cold(number, places)
        same[same] = self._records(number, places[same]) == records[same]
        return places, same

    # --- whole parts --------------------------------------------------------------------------------------------

    def forget(self, number: int, part: int) -> None:
        """Drop the records of a part that is about to be cleared."""
        self.lose(number, part, np.ones(self.tables[number].size(part), np.bool_))

    def lose(self, number: int, part: int, gone: Bools) -> None:
        """Drop the records of those rows of a part, [rows], that are about to go."""
        marks = self.tables[number].entries(part)["mark"][gone]
        self.logs[number].drop(marks[(marks >= COLD) & (marks < WARM)] & NUMBER)
        self.hand.forget(number, part)

    def copied(self, number: int, places: U64, entries: NDArray[np.void], out: F32) -> Filling:
        """Copy hot and warm rows, as `named` of parts.py has them, into `out` [n, words]; the cold ones follow, without
        the lock."""
        marks = entries["mark"]
        cold = np.flatnonzero((marks >= COLD) & (marks < WARM))
        places[cold] = ABSENT
        self._kernels.collect(self.tables[number], places, out)
        log = self.logs[number]
        return Filling(log, log.hold(), entries["key"][cold], (marks[cold] & NUMBER).astype(np.uint64), cold, out)


@dataclass(frozen=True, slots=True)
class Filling:
    """Cold rows that a copy lacks as yet: at positions `at` of `out`. `fill` reads them."""

    log: RowLog
    ticket: object
    keys: U64
    records: U64
    at: I64
    out: F32

    def let_go(self) -> None:
        """End the hold on the log."""
        self.log.let_go(self.ticket)


def fill(lacking: Sequence[Filling]) -> None:
    """Read the cold rows that copies lack, for all copies at once, without any lock; then end their holds.

    Raises LogDamaged.
    """
    with held(lacking):
        for log in {id(each.log): each.log for each in lacking}.values():
            copies = [each for each in lacking if each.log is log]
            keys, records, at = (
                np.concatenate([getattr(each, name) for each in copies]) for name in ("keys", "records", "at")
            )
            of = np.repeat(np.arange(len(copies)), [len(each.keys) for each in copies])
            order = np.argsort(records)
            for begin in range(0, len(order), _FILLED_AT_ONCE):
                some = order[begin : begin + _FILLED_AT_ONCE]
                rows = log.read(records[some], keys[some])
                for number in np.unique(of[some]).tolist():
                    mine = of[some] == number
                    copies[number].out[at[some][mine]] = rows[mine]


@contextmanager
def held(lacking: Sequence[Filling]) -> Generator[None]:
    """End the holds of copies after a block that fills them, or cannot."""
    try:
        yield
    finally:
        for each in lacking:
            each.let_go()

"""Rows in parts: for each column of a table, rows by number in order of arrival, their entries, and an index.

An entry is (stored key, epoch of the last change, mark). The index is open addressing over row numbers (row + 1; 0:
empty), probed linearly from the top bits of key x multiplier. The multiplier is odd and a secret of the process:
whoever chooses the keys cannot choose them for one slot (multiply-shift hashing: of any two keys, the chance that they
share their first slot is at most 2 / slots). A row keeps its number while its bucket is here, and a part that grows
only builds its index anew. A row's place is found by its key each time: nobody keeps one.

While all rows of a part are hot, each lies at its number, and marks are 0. A part that has or had other rows is
*tiered*: the mark of a hot row has its slot and its heat, the mark of a cold row the number of its record in the log
(tiers/log.py), and `owners` names the row in each slot. Hot rows lie dense in the slots: the last one fills a gap.
*Warm* rows, rounded to bfloat16, do so in slots of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .arena import Arena, Bytes
from .errors import StoreFull
from .layout import ENTRY_BYTES, RowFormat

F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

ENTRY = np.dtype([("key", np.uint64), ("epoch", np.uint32), ("mark", np.uint32)])
assert ENTRY.itemsize == ENTRY_BYTES
COLD = np.uint32(1 << 31)
"""The bit of a mark that tells a row that is not hot: without a bit more, a cold one."""
HEAT_SHIFT = 29
"""Bits of a mark below its heat: the number of a slot or of a record."""
HEAT_MAX = 3
WARM = COLD | np.uint32(1 << HEAT_SHIFT)
"""The bits of a mark that tell a warm row; those below are the number of its slot."""
NUMBER = np.uint32(2**HEAT_SHIFT - 1)
NUMBERS_MAX = 2**HEAT_SHIFT - 1
FIRST_SLOTS = 1024
_LOAD_MIN, _LOAD_MAX = 0.60, 0.75
"""A part's index doubles at a load between these, by the part's number: parts grow alike, and all at once would make a
push wait for all."""
SLOT_BYTES = 4
INDEX_BYTES = SLOT_BYTES * math.log(_LOAD_MAX / _LOAD_MIN) / (_LOAD_MAX - _LOAD_MIN) / math.log(2)
"""A row's share of the index, 8.6 bytes: the mean of slots over rows, as rows grow from one doubling to the next."""
INDEX_BYTES_MAX = 2 * SLOT_BYTES / _LOAD_MIN
"""A row's largest share of the index: just after a doubling."""
STAMPS = 256
"""Numbers of stamps (policy/expiry.py), in the low byte of an entry's epoch: epochs themselves are multiples of it."""
ROWS_MAX = 2**32 - 2
ABSENT = np.uint64(2**64 - 1)
"""The place of a key that has no row. A place is part << 32 | row, with the bit ASLEEP where the row is not hot."""
_HIGH = np.uint64(32)
ASLEEP = np.uint64(1 << 63)

# the fields of `struct part` in kernels.c
_ENTRIES, _ROWS, _INDEX, OWNERS, SIZE, CAPACITY, MASK, _SHIFT, _MULTIPLIER, HOT, SLOTS = range(11)
_WARM_ROWS, _WARM_OWNERS, _WARM, _WARM_SLOTS = range(11, 15)
_FIELDS = 15
ARENAS = 6
"""Ranges of addresses that a part reserves."""


class TableParts:
    """The rows of one table, in `count` parts. `heads` [count, _FIELDS] is what a kernel reads: struct part."""

    def __init__(self, form: RowFormat, count: int, part_bytes_max: int, *, multiplier: int, shift: int = 0) -> None:
        """`multiplier`: of the index, odd, below 2^64. `shift`: bits by which a key is shifted to give its part."""
        self.form = form
        self.shift = shift
        self.heads = np.zeros((count, _FIELDS), np.int64)
        self.heads[:, _MULTIPLIER] = np.uint64(multiplier).astype(np.int64)
        self._loads = _LOAD_MIN + (_LOAD_MAX - _LOAD_MIN) * np.arange(count) / count
        self.heads_address = int(self.heads.ctypes.data)
        self._rows = Arena(count, part_bytes_max)
        self._entries = Arena(count, part_bytes_max)
        self._index = Arena(count, part_bytes_max)
        self._owners = Arena(count, part_bytes_max)
        self._warm_rows = Arena(count, part_bytes_max)
        self._warm_owners = Arena(count, part_bytes_max)
        self._arenas = (self._rows, self._entries, self._index, self._owners, self._warm_rows, self._warm_owners)
        for part in range(count):
            self._index.ensure(part, SLOT_BYTES * FIRST_SLOTS)
            self._set_slots(part, FIRST_SLOTS)
            self._point(part)

    @property
    def sizes(self) -> I64:
        """Rows of each part: [parts]."""
        return self.heads[:, SIZE].copy()

    @property
    def used_bytes(self) -> int:
        """Bytes of memory that rows, entries and indices take."""
        return sum(arena.used_bytes for arena in self._arenas)

    @property
    def rows_bytes(self) -> int:
        """Bytes of memory that hot and warm rows themselves take."""
        return self._rows.used_bytes + self._warm_rows.used_bytes

    @property
    def warm_bytes(self) -> int:
        """Bytes of memory that warm rows take, but for their entries."""
        return self._warm_rows.used_bytes + self._warm_owners.used_bytes

    @property
    def hots(self) -> I64:
        """Hot rows of each part: [parts]."""
        return np.where(self.heads[:, OWNERS] != 0, self.heads[:, HOT], self.heads[:, SIZE])

    @property
    def warms(self) -> I64:
        """Warm rows of each part: [parts]."""
        return self.heads[:, _WARM].copy()

    def size(self, part: int) -> int:
        return int(self.heads[part, SIZE])

    def keys(self, part: int) -> U64:
        """Return the stored keys of a part in the order of its rows: live memory."""
        return self.entries(part)["key"]

    def entries(self, part: int) -> NDArray[np.void]:
        """Return the entries of a part: live memory."""
        return self._entries.bytes_of(part)[: self.size(part) * ENTRY.itemsize].view(ENTRY)

    def rows(self, part: int) -> F32:
        """Return the words of a part's hot rows by slot, [rows, words]: live memory. Without cold rows, by number."""
        words = self.form.words
        return self._rows.bytes_of(part)[: self.hot(part) * 4 * words].view(np.float32).reshape(-1, words)

    def index(self, part: int) -> U32:
        """Return the index of a part: live memory."""
        return self._index.bytes_of(part)[: SLOT_BYTES * (int(self.heads[part, MASK]) + 1)].view(np.uint32)

    def first_slots(self, part: int, keys: U64) -> U64:
        """Return the slot of a part's index where the search for each key begins: [keys]."""
        multiplier, shift = self.heads[part, [_MULTIPLIER, _SHIFT]].view(np.uint64)
        return (keys * multiplier) >> shift

    def raw_rows(self, part: int) -> Bytes:
        """Return the bytes of a part's hot rows: live memory."""
        return self._rows.bytes_of(part)[: self.hot(part) * self.form.row_bytes]

    def is_tiered(self, part: int) -> bool:
        """True where some row is cold, or was since the part was cleared."""
        return bool(self.heads[part, OWNERS])

    def hot(self, part: int) -> int:
        """Return the number of a part's hot rows."""
        return int(self.heads[part, HOT if self.is_tiered(part) else SIZE])

    def owners(self, part: int) -> U32:
        """Return the row in each slot of a tiered part: live memory."""
        return self._owners.bytes_of(part)[: 4 * self.hot(part)].view(np.uint32)

    def warm(self, part: int) -> int:
        """Return the number of a part's warm rows."""
        return int(self.heads[part, _WARM])

    def count_slots(self, part: int, *, hot: int = 0, warm: int = 0) -> None:
        """Add to the numbers of a tiered part's slots of hot and of warm rows, which were given or taken."""
        self.heads[part, [HOT, _WARM]] += hot, warm

    def warm_rows(self, part: int) -> Bytes:
        """Return a part's warm rows by their slots, [rows, warm_bytes]: live memory."""
        size_bytes = self.form.warm_bytes
        return self._warm_rows.bytes_of(part)[: self.warm(part) * size_bytes].reshape(-1, size_bytes)

    def warm_owners(self, part: int) -> U32:
        """Return the row in each slot of warm rows: live memory."""
        return self._warm_owners.bytes_of(part)[: 4 * self.warm(part)].view(np.uint32)

    def grow_warm(self, part: int, rows: int) -> None:
        """Make room for `rows` warm rows. Raises StoreFull."""
        if rows <= self.heads[part, _WARM_SLOTS]:
            return
        try:
            self._warm_rows.ensure(part, rows * self.form.warm_bytes)
            self._warm_owners.ensure(part, 4 * rows)
        finally:
            self._point(part)

    def slots(self, part: int, rows: I64) -> I64:
        """Return the slots of hot rows."""
        return (self.entries(part)["mark"][rows] & NUMBER).astype(np.int64) if self.is_tiered(part) else rows

    def tier(self, part: int) -> None:
        """Let rows of a part lie in slots: all are hot, and rows of the last epoch are warm. Raises StoreFull."""
        if self.is_tiered(part):
            return
        size = self.size(part)
        if size > NUMBERS_MAX:
            raise StoreFull(f"part {part} has {size} rows, more than {NUMBERS_MAX}: spread the job over more buckets")
        self._owners.ensure(part, max(4, 4 * self._slots(part)))
        entries = self.entries(part)
        warm = entries["epoch"] == entries["epoch"].max(initial=0)
        entries["mark"] = np.arange(size, dtype=np.uint32) | (warm.astype(np.uint32) << np.uint32(HEAT_SHIFT))
        self.heads[part, HOT] = size
        self._owners.bytes_of(part)[: 4 * size].view(np.uint32)[:] = np.arange(size, dtype=np.uint32)
        self._point(part, tiered=True)

    def trim(self, part: int) -> None:
        """Give back memory of slots that a tiered part no longer uses, once it is worth a call to the system."""
        hot, warm = self.hot(part), self.warm(part)
        kept_bytes = hot * self.form.row_bytes, max(4, 4 * hot), warm * self.form.warm_bytes, 4 * warm
        arenas = self._rows, self._owners, self._warm_rows, self._warm_owners
        if any([arena.trim(part, each) for arena, each in zip(arenas, kept_bytes, strict=True)]):
            self._point(part)

    def lacking(self, wanted: I64, hot: I64) -> I64:
        """Return the parts that have to grow before they hold `wanted` rows, `hot` of them hot: [parts] -> numbers."""
        short = (wanted > self.heads[:, CAPACITY]) | (wanted > self._limits()) | (hot > self.heads[:, SLOTS])
        return np.flatnonzero(short)

    def grow(self, part: int, rows: int, hot: int | None = None) -> bool:
        """Make room for `rows` rows; True: the index was enlarged and has to be rebuilt. Raises StoreFull.

        hot: those that are hot, all if None. The index comes first: if memory ends there, the part still has the old
        one, whole.
        """
        hot = rows if hot is None else hot
        if rows > ROWS_MAX:
            raise StoreFull(
                f"part {part} would have {rows} rows, more than {ROWS_MAX}: spread the job over more buckets"
            )
        mask = int(self.heads[part, MASK])
        slots = mask + 1
        while rows > slots * self._loads[part]:
            slots *= 2
        try:
            self._rows.ensure(part, hot * self.form.row_bytes)
            if self.is_tiered(part):
                self._owners.ensure(part, 4 * hot)
            self._entries.ensure(part, rows * ENTRY.itemsize)
            self._index.ensure(part, SLOT_BYTES * slots)
        finally:
            self._point(part)
        self._set_slots(part, slots)
        return slots > mask + 1

    def append(self, part: int, keys: U64, epoch: int) -> slice:
        """Give keys without a row one each, once there is room; return the rows. Words and index are not told."""
        begin = self.size(part)
        self.heads[part, SIZE] = begin + len(keys)
        added = slice(begin, begin + len(keys))
        entries = self.entries(part)
        entries["key"][added] = keys
        entries["epoch"][added] = epoch
        entries["mark"][added] = 0
        if self.is_tiered(part):
            self.settle(part, np.arange(begin, begin + len(keys)))
        return added

    def condense(self, part: int) -> None:
        """Let the hot and warm rows of a tiered part lie dense again, after entries of some of them went."""
        if not self.is_tiered(part):
            return
        marks = self.entries(part)["mark"]
        hot, warm = np.flatnonzero(marks < COLD), np.flatnonzero(marks >= WARM)
        for chosen, rows, owners in (
            (hot, self.rows(part), self.owners(part)),
            (warm, self.warm_rows(part), self.warm_owners(part)),
        ):
            chosen[:] = chosen[np.argsort(marks[chosen] & NUMBER)]
            rows[: len(chosen)] = rows[(marks[chosen] & NUMBER).astype(np.int64)]
            marks[chosen] = (marks[chosen] & ~NUMBER) | np.arange(len(chosen), dtype=np.uint32)
            owners[: len(chosen)] = chosen
        self.heads[part, [HOT, _WARM]] = len(hot), len(warm)
        self.trim(part)

    def settle(self, part: int, rows: I64) -> None:
        """Give rows the next slots, once there is room: they are cool. Words are not told."""
        begin = self.hot(part)
        self.heads[part, HOT] = begin + len(rows)
        self.owners(part)[begin:] = rows
        slots = np.arange(begin, begin + len(rows), dtype=np.uint32)
        self.entries(part)["mark"][rows] = slots

    def clear(self, part: int) -> None:
        """Drop the rows of a part, and give its memory back."""
        self.heads[part, [SIZE, HOT, _WARM]] = 0
        self._set_slots(part, FIRST_SLOTS)
        for arena in self._arenas:
            arena.give_back(part)
        self._index.ensure(part, SLOT_BYTES * FIRST_SLOTS)
        self._point(part, tiered=False)

    def _set_slots(self, part: int, slots: int) -> None:
        self.heads[part, MASK] = slots - 1
        self.heads[part, _SHIFT] = 64 - (slots - 1).bit_length()

    def _point(self, part: int, *, tiered: bool | None = None) -> None:
        """Write addresses and capacity of a part into its head. tiered: None leaves that as it is."""
        head = self.heads[part]
        tiered = bool(head[OWNERS]) if tiered is None else tiered
        head[_ENTRIES], head[_ROWS] = self._entries.address(part), self._rows.address(part)
        head[_INDEX], head[OWNERS] = self._index.address(part), self._owners.address(part) if tiered else 0
        rows = self._slots(part)
        head[SLOTS] = min(rows, self._owners.size_bytes(part) // 4) if tiered else rows
        head[_WARM_ROWS], head[_WARM_OWNERS] = self._warm_rows.address(part), self._warm_owners.address(part)
        if self.form.words:
            warm_slots = self._warm_rows.size_bytes(part) // self.form.warm_bytes
            head[_WARM_SLOTS] = min(warm_slots, self._warm_owners.size_bytes(part) // 4)
        entries = self._entries.size_bytes(part) // ENTRY.itemsize
        head[CAPACITY] = entries if tiered else min(rows, entries)

    def _slots(self, part: int) -> int:
        return self._rows.size_bytes(part) // self.form.row_bytes if self.form.words else ROWS_MAX

    def _limits(self) -> NDArray[np.float64]:
        return (self.heads[:, MASK] + 1) * self._loads


def split(places: U64) -> tuple[I64, I64]:
    """Return (parts, rows) of places, hot or cold."""
    found = (places & ~ASLEEP).astype(np.int64)
    return found >> 32, found & 0xFFFFFFFF


def named(table: TableParts, parts: Sequence[int], rows: Sequence[I64 | slice]) -> tuple[U64, NDArray[np.void]]:
    """Return the places of some rows of each of a table's parts, one part after the other, and a copy of their entries.

    The place of a row that is not hot has ASLEEP.
    """
    entries = [table.entries(part)[chosen] for part, chosen in zip(parts, rows, strict=True)]
    numbers = [
        np.arange(table.size(part))[chosen] if isinstance(chosen, slice) else chosen
        for part, chosen in zip(parts, rows, strict=True)
    ]
    of = np.repeat(np.asarray(parts, np.uint64), np.array([len(each) for each in entries], np.int64))
    found = np.concatenate([np.zeros(0, ENTRY), *entries])
    places = of << _HIGH | np.concatenate([np.zeros(0, np.int64), *numbers]).astype(np.uint64)
    places[found["mark"] >= COLD] |= ASLEEP
    return places, found

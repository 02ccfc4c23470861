"""Rows in parts: for each column of a table, rows that lie dense in order of arrival, their entries, and an index.

An entry is (stored key, epoch of the last change, room for the marks of eviction and tiers). The index is open
addressing over row numbers (row + 1; 0: empty), probed linearly from the top bits of key x multiplier. The multiplier
is odd and a secret of the process: whoever chooses the keys cannot choose them for one slot (multiply-shift hashing: of
any two keys, the chance that they share their first slot is at most 2 / slots). Rows never move when a part grows; only
its index is built anew. A row's place is found by its key each time: nobody keeps one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from .arena import Arena, Bytes
from .errors import StoreFull
from .layout import ENTRY_BYTES, RowFormat

F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

ENTRY = np.dtype([("key", np.uint64), ("epoch", np.uint32), ("spare", np.uint32)])
assert ENTRY.itemsize == ENTRY_BYTES
FIRST_SLOTS = 1024
_LOAD_MIN, _LOAD_MAX = 0.60, 0.75
"""A part's index doubles at a load between these, by the part's number: parts grow alike, and all at once would make a
push wait for all."""
SLOT_BYTES = 4
INDEX_BYTES = SLOT_BYTES * math.log(_LOAD_MAX / _LOAD_MIN) / (_LOAD_MAX - _LOAD_MIN) / math.log(2)
"""A row's share of the index, 8.6 bytes: the mean of slots over rows, as rows grow from one doubling to the next."""
INDEX_BYTES_MAX = 2 * SLOT_BYTES / _LOAD_MIN
"""A row's largest share of the index: just after a doubling."""
ROWS_MAX = 2**32 - 2
ABSENT = np.uint64(2**64 - 1)
"""The place of a key that has no row. A place is part << 32 | row."""

# the fields of `struct part` in kernels.c
_ENTRIES, _ROWS, _INDEX, SIZE, CAPACITY, MASK, _SHIFT, _MULTIPLIER = range(8)


class TableParts:
    """The rows of one table, in `count` parts. `heads` [count, 8] is what a kernel reads: struct part."""

    def __init__(self, form: RowFormat, count: int, part_bytes_max: int, *, multiplier: int, shift: int = 0) -> None:
        """`multiplier`: of the index, odd, below 2^64. `shift`: bits by which a key is shifted to give its part."""
        self.form = form
        self.shift = shift
        self.heads = np.zeros((count, 8), np.int64)
        self.heads[:, _MULTIPLIER] = np.uint64(multiplier).astype(np.int64)
        self.heads_address = int(self.heads.ctypes.data)
        self._rows = Arena(count, part_bytes_max)
        self._entries = Arena(count, part_bytes_max)
        self._index = Arena(count, part_bytes_max)
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
        return self._rows.used_bytes + self._entries.used_bytes + self._index.used_bytes

    @property
    def is_reserved(self) -> bool:
        """True where rows stay at their address as parts grow."""
        return self._rows.is_reserved

    def size(self, part: int) -> int:
        return int(self.heads[part, SIZE])

    def keys(self, part: int) -> U64:
        """Return the stored keys of a part in the order of its rows: live memory."""
        return self.entries(part)["key"]

    def entries(self, part: int) -> NDArray[np.void]:
        """Return the entries of a part: live memory."""
        return self._entries.bytes_of(part)[: self.size(part) * ENTRY.itemsize].view(ENTRY)

    def rows(self, part: int) -> F32:
        """Return the words of a part's rows, [rows, words]: live memory."""
        words = self.form.words
        return self._rows.bytes_of(part)[: self.size(part) * 4 * words].view(np.float32).reshape(-1, words)

    def index(self, part: int) -> U32:
        """Return the index of a part: live memory."""
        return self._index.bytes_of(part)[: SLOT_BYTES * (int(self.heads[part, MASK]) + 1)].view(np.uint32)

    def first_slots(self, part: int, keys: U64) -> U64:
        """Return the slot of a part's index where the search for each key begins: [keys]."""
        multiplier, shift = self.heads[part, [_MULTIPLIER, _SHIFT]].view(np.uint64)
        return (keys * multiplier) >> shift

    def raw_rows(self, part: int) -> Bytes:
        """Return the bytes of a part's rows: live memory."""
        return self._rows.bytes_of(part)[: self.size(part) * self.form.row_bytes]

    def lacking(self, wanted: I64) -> I64:
        """Return the parts that have to grow before they hold `wanted` rows: [parts] -> their numbers."""
        return np.flatnonzero((wanted > self.heads[:, CAPACITY]) | (wanted > self._limits()))

    def grow(self, part: int, rows: int) -> bool:
        """Make room for `rows` rows; True: the index was enlarged and has to be rebuilt. Raises StoreFull.

        The index comes first: if memory ends there, the part still has the old one, whole.
        """
        if rows > ROWS_MAX:
            raise StoreFull(
                f"part {part} would have {rows} rows, more than {ROWS_MAX}: spread the job over more buckets"
            )
        mask = int(self.heads[part, MASK])
        slots = mask + 1
        while rows > slots * self._load(part):
            slots *= 2
        try:
            self._rows.ensure(part, rows * self.form.row_bytes)
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
        entries["spare"][added] = 0
        return added

    def clear(self, part: int) -> None:
        """Drop the rows of a part, and give its memory back."""
        self.heads[part, SIZE] = 0
        self._set_slots(part, FIRST_SLOTS)
        for arena in (self._rows, self._entries, self._index):
            arena.give_back(part)
        self._index.ensure(part, SLOT_BYTES * FIRST_SLOTS)
        self._point(part)

    def _set_slots(self, part: int, slots: int) -> None:
        self.heads[part, MASK] = slots - 1
        self.heads[part, _SHIFT] = 64 - (slots - 1).bit_length()

    def _point(self, part: int) -> None:
        """Write addresses and capacity of a part into its head."""
        head = self.heads[part]
        head[_ENTRIES], head[_ROWS] = self._entries.address(part), self._rows.address(part)
        head[_INDEX] = self._index.address(part)
        rows = self._rows.size_bytes(part) // self.form.row_bytes if self.form.words else ROWS_MAX
        head[CAPACITY] = min(rows, self._entries.size_bytes(part) // ENTRY.itemsize)

    def _load(self, part: int) -> float:
        return _LOAD_MIN + (_LOAD_MAX - _LOAD_MIN) * part / len(self.heads)

    def _limits(self) -> NDArray[np.float64]:
        loads = _LOAD_MIN + (_LOAD_MAX - _LOAD_MIN) * np.arange(len(self.heads)) / len(self.heads)
        return (self.heads[:, MASK] + 1) * loads

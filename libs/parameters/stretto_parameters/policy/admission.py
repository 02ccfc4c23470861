"""Admission: a key gets its row at its n-th sight. Sights of keys without a row are counted in count-min sketches.

A sketch has DEPTH lines of cells; a key has a cell in each, and its count is at most the least of them (Cormode and
Muthukrishnan, Journal of Algorithms 55, 2005). Only cells at this least value grow (conservative update, Estan and
Varghese, SIGCOMM 2002). No key is counted too low, so it gets its row at its n-th sight at the latest; by a collision
with keys before it, it may get it earlier.

A bucket has a sketch for each table. A sketch that has as many keys as it takes well stays as it is, and one of twice
the width counts on: a key's sights are the sum over all of them. Cells are a function of the bucket's pushes alone.
"""

from __future__ import annotations

import mmap

import numpy as np
from numpy.typing import NDArray

from ..arena import NO_RESERVE, PRIVATE
from ..checksums import MULTIPLIER, split_mix
from ..errors import InputRefused, StoreFull

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

DEPTH = 4
FIRST_WIDTH = 2**12
"""Cells in a line of a bucket's first sketch: 1 MiB for a table of 64 buckets."""
_LOAD_PERCENT = 35
"""Keys that a sketch takes, in per cent of its width: when it has all of them, 0.8 % of unseen keys find all their
cells taken. A key costs 11 bytes at that load, and up to 34 when a sketch has just been added."""
_SKETCHES_MAX = 20
_ENDS = np.cumsum([FIRST_WIDTH * 2**number * _LOAD_PERCENT // 100 for number in range(_SKETCHES_MAX - 1)])
"""Keys of a bucket up to which each sketch counts; the last one counts on without end."""
_HEAD = 3


class Admission:
    """Sights of a table's keys that have no row, by bucket."""

    def __init__(self, sights: int, seed: int, buckets: int, shift: int) -> None:
        """`sights`: number at which a key is admitted, 2 at least. `shift`: of a stored key, to give its bucket."""
        self._sights = sights
        self._seed = np.uint64((seed & 0xFFFFFFFF) * MULTIPLIER % 2**64)
        self._buckets, self._shift = buckets, np.uint64(shift)
        self._memory: list[mmap.mmap] = []
        self._cells: list[Bytes] = []
        self._head: I64 = np.zeros((_HEAD, buckets), np.int64)
        self._counted, self.kept_out, self.without_row = self._head
        """Per bucket: keys that were counted here; sights whose gradient was dropped; keys that were seen and have no
        row, an estimate."""

    def sights(self, keys: U64) -> I64:
        """Return how often keys were counted, or more by collisions: [keys]. Makes room for one more of each."""
        buckets = (keys >> self._shift).astype(np.int64)
        self._make_room(int((self._counted + self._by_bucket(buckets)).max()))
        found = np.zeros(len(keys), np.int64)
        for cells in self._cells:
            found += cells[self._places(keys, buckets, cells)].min(axis=0)
        return found

    def count(self, keys: U64, sights: I64) -> None:
        """Count one more sight of keys that were counted `sights` times: those that this admits have a row now."""
        buckets = (keys >> self._shift).astype(np.int64)
        is_new, waits = sights == 0, sights + 1 < self._sights
        self.without_row += self._by_bucket(buckets[is_new & waits]) - self._by_bucket(buckets[~is_new & ~waits])
        self.kept_out += self._by_bucket(buckets[waits])
        sketches = np.searchsorted(_ENDS, self._counted, side="right")[buckets]
        for number in np.flatnonzero(np.bincount(sketches[waits])).tolist():
            cells, chosen = self._cells[number], waits & (sketches == number)
            at = self._places(keys[chosen], buckets[chosen], cells)
            more = np.tile(cells[at].min(axis=0) + np.uint8(1), DEPTH)  # NumPy misreads what it would have to repeat
            np.maximum.at(cells, at.reshape(-1), more)
        self._counted += self._by_bucket(buckets[is_new & waits])

    def admits(self, sights: I64) -> Bools:
        """Return which keys get a row now, from how often each was counted before: [keys]."""
        return sights + 1 >= self._sights

    def _by_bucket(self, buckets: I64) -> I64:
        return np.bincount(buckets, minlength=self._buckets)

    def _places(self, keys: U64, buckets: I64, cells: Bytes) -> I64:
        """Return the cells of keys, one in each line of their bucket's sketch: [DEPTH, keys]."""
        width = len(cells) // (self._buckets * DEPTH)
        hashed = split_mix(keys + self._seed)
        hashed ^= hashed >> np.uint64(31)
        step = (hashed >> np.uint64(32)) | np.uint64(1)
        lines = np.arange(DEPTH, dtype=np.uint64)[:, None]
        places = ((hashed + lines * step) & np.uint64(width - 1)).astype(np.int64)
        return places + (buckets * DEPTH + lines.astype(np.int64)) * width

    def _make_room(self, counted: int) -> None:
        """Have the sketches of a bucket that counted `counted` keys; memory is taken as it is written.

        Raises StoreFull.
        """
        while len(self._cells) <= np.searchsorted(_ENDS, counted, side="right"):
            size_bytes = self._buckets * DEPTH * FIRST_WIDTH * 2 ** len(self._cells)
            try:
                memory = mmap.mmap(-1, size_bytes, flags=PRIVATE | NO_RESERVE)
            except OSError as error:
                raise StoreFull(f"the system refused {size_bytes} bytes for sights of keys: {error}") from error
            self._memory.append(memory)
            self._cells.append(np.frombuffer(memory, np.uint8))

    # --- copies -------------------------------------------------------------------------------------------

    def _spans(self, bucket: int, counted: int) -> list[tuple[int, slice]]:
        """Return where the cells of a bucket are that counted `counted` keys: (sketch, its span)."""
        if not counted:
            return []
        last = int(np.searchsorted(_ENDS, counted, side="right"))
        sizes = [(number, DEPTH * FIRST_WIDTH * 2**number) for number in range(last + 1)]
        return [(number, slice(bucket * size, (bucket + 1) * size)) for number, size in sizes]

    def used_bytes(self, bucket: int) -> int:
        """Return the bytes of a bucket's sketches."""
        return sum(span.stop - span.start for _, span in self._spans(bucket, int(self._counted[bucket])))

    def export(self, bucket: int) -> Bytes:
        """Copy the counters and sketches of a bucket."""
        spans = self._spans(bucket, int(self._counted[bucket]))
        head = np.ascontiguousarray(self._head[:, bucket]).view(np.uint8)
        return np.concatenate([head, *(self._cells[number][span] for number, span in spans)])

    def load(self, bucket: int, given: Bytes) -> Bytes:
        """Replace the counters and sketches of a bucket by a copy; return the bytes after it. Raises InputRefused."""
        head, rest = given[: 8 * _HEAD].copy(), given[8 * _HEAD :]
        counters = head.view(np.int64) if len(head) == 8 * _HEAD else np.full(_HEAD, -1)
        counted = int(counters[0])
        spans = self._spans(bucket, counted) if 0 <= counted < 2**32 else []
        wanted = sum(span.stop - span.start for _, span in spans)
        if not 0 <= counted < 2**32 or len(rest) < wanted:
            raise InputRefused(f"sights of bucket {bucket}: {len(given)} bytes are not those of {counted} keys")
        self.clear(bucket)
        self._make_room(counted)
        for number, span in spans:
            size = span.stop - span.start
            self._cells[number][span], rest = rest[:size], rest[size:]
        self._head[:, bucket] = counters
        return rest

    def clear(self, bucket: int) -> None:
        """Forget the sights of a bucket, and give its memory back."""
        for number, span in self._spans(bucket, int(self._counted[bucket])):
            self._memory[number].madvise(mmap.MADV_DONTNEED, span.start, span.stop - span.start)
        self._head[:, bucket] = 0

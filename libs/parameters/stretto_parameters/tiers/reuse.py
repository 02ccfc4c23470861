"""Sampled reuse distances, and from them the share of rows that would be read from a disk if fewer were in memory.

The reuse distance of a pull is the number of other keys that were pulled since its key was pulled last. Of n rows in
memory that are replaced in the order of their use, a row is there if and only if its distance is below n: one pass
tells the misses of every n (Mattson et al., IBM Systems Journal 9, 1970). A key's first pull reads nothing: new rows
begin in memory. Rows that came by a checkpoint or a move were used before; nobody knows in which order, so that each
distance of an untouched row is as likely as any other.

Only keys whose hash is below a threshold are followed, one of ``share`` (SHARDS, Waldspurger et al., FAST 2015). The
threshold is halved whenever there are KEYS_MAX of them. What popular keys the sample happens to have or to lack is made
up for by counting all pulls (SHARDS-adj, section 3.2 there).
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from ..checksums import split_mix

U64 = NDArray[np.uint64]

POINTS = 16
KEYS_MAX = 4096
"""Keys that are followed at most: some 0.4 MB. SHARDS found an error of 0.01 with 8,192."""
FORGET = 2**12
"""Sampled pulls after which earlier ones count half: a young stream has few keys that come again, and data change. A
million pulls, at a share of 256. Taste."""

_UNTOUCHED = 2 * POINTS
"""Distances that stand for all those that the last use of an untouched row may have."""
_FINE = 64
"""Distances below are counted one by one; others in bins of 1/32 of an octave."""
_INDEX = np.arange(1376)
_OCTAVE = np.maximum(_INDEX // 32 - 1, 0)
_LOWEST = np.where(_INDEX < _FINE, _INDEX, (_INDEX - 32 * _OCTAVE) << _OCTAVE)
"""Least distance of each bin; the last one begins at 2^46."""
_WIDTH = 1 << _OCTAVE


class ReuseDistances:
    """The reuse distances of one server's keys. ``share``: one of so many keys is followed, a power of two."""

    def __init__(self, seed: int, share: int = 256) -> None:
        self._seed = np.uint64(seed % 2**64)
        self._share = share
        self._first = np.uint64(share - 1)
        self._clock = 0
        self._last: dict[int, int] = {}
        """The time of the last pull, by the key's hash."""
        self._times: list[int] = []
        """The same times, ascending."""
        self._distances = np.zeros(len(_INDEX))
        self._pulled = 0.0

    def add(self, keys: U64) -> U64:
        """Count the pull of one batch: distinct stored keys. Those of different tables must not be equal.

        Return the keys that are followed from now on.
        """
        self._pulled += len(keys) / self._share
        # of a stored key any bits are as good as a hash: few are hashed anew, by which fewer are followed later
        keys = keys[(keys & self._first) == 0]
        hashes = split_mix(keys ^ self._seed)
        chosen = hashes <= np.uint64(self._most() - 1)
        fresh = list[int]()
        for number, key in enumerate(hashes[chosen].tolist()):
            self._clock += 1
            if (before := self._last.pop(key, 0)) > 0:
                at = bisect_left(self._times, before)
                self._distances[_bin((len(self._times) - 1 - at) * self._share)] += 1
                del self._times[at]
            else:
                fresh.append(number)
            self._last[key] = self._clock
            self._times.append(self._clock)
        while len(self._last) > KEYS_MAX:
            self._thin()
        if self._pulled > FORGET:
            self._pulled /= 2
            self._distances /= 2
        return keys[chosen][fresh]

    def had_rows(self, keys: int, rows: int) -> None:
        """Count a number of the newly followed keys as used before: they are among ``rows`` of the server."""
        touched = min((len(self._last) - keys) * self._share, rows)
        for part in range(_UNTOUCHED):
            distance = touched + (rows - touched) * (2 * part + 1) // (2 * _UNTOUCHED)
            self._distances[_bin(distance)] += keys / _UNTOUCHED

    def _thin(self) -> None:
        """Follow half as many keys: each stands for twice as many pulls from then on."""
        self._share *= 2
        self._last = {key: time for key, time in self._last.items() if key < self._most()}
        self._times = list(self._last.values())
        self._pulled /= 2
        self._distances /= 2

    def _most(self) -> int:
        """Return the bound of the hashes that are followed."""
        return 2**64 // (self._share // (int(self._first) + 1))

    def miss_ratios(self, rows: int) -> tuple[float, ...]:
        """Return for k = 1 to POINTS the share of pulls that would be read if k / POINTS of all rows were in memory.

        ``rows``: those of the server, which may have been there before the first pull. Empty before any pull.
        """
        if not self._pulled:
            return ()
        rows = max(rows, len(self._last) * self._share)
        in_memory = [rows * k // POINTS for k in range(1, POINTS)]
        # a bin across the limit counts by its part beyond
        beyond = np.clip((_LOWEST + _WIDTH - np.array(in_memory)[:, None]) / _WIDTH, 0, 1)
        return (*np.minimum(beyond @ self._distances / self._pulled, 1.0).tolist(), 0.0)


def _bin(distance: int) -> int:
    octave = max(distance.bit_length() - 6, 0)
    return 32 * octave + (distance >> octave)

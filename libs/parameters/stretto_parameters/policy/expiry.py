"""Expiry: a row that did not change for some samples of its bucket is dropped for good.

The clock is the number of samples of the bucket, cut into periods. A row's stamp is the period of its last change, a
byte in the low end of its entry's epoch. A bucket is looked through once a period, after the push that reaches its
check point; buckets have theirs one after the other, so that few pushes find several. Which rows are there is thus a
function of stamps and samples alone: a copy, an image with its differences and a replay drop the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..kernels import Kernels
from ..parts import SIZE, STAMPS, TableParts

I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]
Bools = NDArray[np.bool_]

_PERIODS = 8
"""Periods of a row's life: it goes between 1 and 1 + 2 / _PERIODS of `expire_samples` after its last change."""
WRAPPED = 16
"""Lives after which a stamp may be taken for a later one."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """When the rows of a bucket expire, by its samples. samples: of a row's life, without a change."""

    samples: int
    buckets: int

    @property
    def _period(self) -> int:
        return max(1, self.samples // _PERIODS)

    def stamps(self, samples: I64) -> I64:
        """Return the stamps of rows that change now, as a bucket has reached these samples: [buckets]."""
        return samples // self._period % STAMPS

    def is_due(self, before: I64, after: I64) -> Bools:
        """Return which buckets have reached a check point between two numbers of samples: [buckets]."""
        return (after - self._offsets()) // self._period > (before - self._offsets()) // self._period

    def expired(self, bucket: int, stamps: U8, stamped_at: int, now: int) -> Bools:
        """Return which rows of a bucket are gone at `now` samples, by the stamps that they had at `stamped_at`: [n].

        More than WRAPPED lives must not lie between a row's expiry and `stamped_at`.
        """
        period = self._period
        changed = stamped_at // period - (stamped_at // period - stamps.astype(np.int64)) % STAMPS
        offset = int(self._offsets()[bucket])
        check = (now - offset) // period * period + offset
        return changed < (check - self.samples) // period

    def _offsets(self) -> I64:
        return np.arange(self.buckets) * self._period // self.buckets


def remove(kernels: Kernels, parts: TableParts, part: int, gone: Bools, epoch: int) -> int:
    """Drop rows of a part, [rows] -> their number. The last rows take their places, and count as changed in `epoch`:
    whoever copies the part by ranges has passed these places."""
    count = int(np.count_nonzero(gone))
    if count:
        kept = len(gone) - count
        holes, last = np.flatnonzero(gone[:kept]), kept + np.flatnonzero(~gone[kept:])
        entries, rows = parts.entries(part), parts.rows(part)
        entries[holes] = entries[last]
        entries["epoch"][holes] = entries["epoch"][holes] % STAMPS + epoch
        if not parts.is_tiered(part):
            rows[holes] = rows[last]
        parts.heads[part, SIZE] = kept
        parts.condense(part)
        kernels.rebuild(parts, part)
    return count

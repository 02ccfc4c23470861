"""The policy of rows: which keys of a push get a row, which rows expire, and what is counted of both.

Without a policy nothing is counted and no row has a stamp but 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InputRefused
from ..kernels import Kernels
from ..layout import Layout
from ..parts import ABSENT, STAMPS, TableParts
from ..tiers import Tiers
from .admission import Admission
from .expiry import Expiry, remove

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

_HIGH, _LOW = np.uint64(32), np.uint64(2**32 - 1)


@dataclass(frozen=True, slots=True)
class RowAccount:
    """Counters of the policy of rows, over some buckets.

    kept_out: gradients of keys that were not admitted. without_row: keys without a row that were seen, an estimate; 0
    where each key is admitted at once. expired: rows that were dropped.
    """

    kept_out: int = 0
    without_row: int = 0
    expired: int = 0


@dataclass(frozen=True, slots=True)
class Unseen:
    """Keys of a push that have no row, and how often they were counted before. kept [keys of the push]: those that have
    a row or get it now."""

    keys: U64
    sights: I64
    kept: Bools


class PolicyState:
    """The policy of one store's rows, with its counters by bucket."""

    def __init__(self, layout: Layout, tables: Sequence[TableParts], kernels: Kernels) -> None:
        """`tables`, `kernels`: of the store. Rows that expire are removed from them."""
        admit, life = layout.rows.admit, layout.rows.expire_samples
        seeds = [table.seed for table in layout.tables] if admit > 1 else []
        self._tables, self._kernels = tables, kernels
        self.tiers: Tiers | None = None
        """Where cold rows are, if any may be."""
        self._admissions = [Admission(admit, seed, layout.buckets, layout.shift) for seed in seeds]
        self._expiry = Expiry(life, layout.buckets) if life else None
        self._expired: I64 = np.zeros(layout.buckets, np.int64)

    @property
    def expires(self) -> bool:
        """True if rows expire."""
        return self._expiry is not None

    # --- admission ----------------------------------------------------------------------------------------

    def unseen(self, table: int, keys: U64, places: U64) -> Unseen | None:
        """Return which keys of a push have no row, None if each of them gets its row. Nothing is counted yet."""
        absent = places == ABSENT
        if not self._admissions or not absent.any():
            return None
        admission, keys = self._admissions[table], keys[absent]
        sights, kept = admission.sights(keys), ~absent
        kept[absent] = admission.admits(sights)
        return Unseen(keys, sights, kept)

    def count(self, table: int, unseen: Unseen | None) -> None:
        """Count the sights of a push that is applied."""
        if unseen is not None:
            self._admissions[table].count(unseen.keys, unseen.sights)

    # --- expiry -------------------------------------------------------------------------------------------

    def stamps(self, samples: I64) -> I64:
        """Return the stamps of rows that change as their bucket reaches these samples: [buckets]."""
        return np.zeros(len(samples), np.int64) if self._expiry is None else self._expiry.stamps(samples)

    def restamp(self, table: int, places: U64, stamps: I64, epoch: int) -> None:
        """Give rows that changed the stamps of their buckets, where these are not the largest, which all rows have.

        places: ascending by bucket. epoch: that of the store.
        """
        for bucket in np.flatnonzero(stamps != stamps.max()).tolist():
            begin, end = np.searchsorted(places >> _HIGH, np.array([bucket, bucket + 1], np.uint64))
            rows = (places[begin:end] & _LOW).astype(np.int64)
            self._tables[table].entries(bucket)["epoch"][rows] = epoch + stamps[bucket]

    def stamp(self, table: TableParts, bucket: int, rows: I64 | slice, stamps: Bytes | None, samples: int) -> None:
        """Give rows of a copy its stamps; without any, they change now, at `samples` of their bucket."""
        if self._expiry is not None:
            entries = table.entries(bucket)["epoch"]
            now = int(self._expiry.stamps(np.array(samples)))
            entries[rows] = entries[rows] // STAMPS * STAMPS + (now if stamps is None else stamps.astype(np.uint32))

    def expire_due(self, before: I64, samples: I64, epoch: int) -> None:
        """Drop the rows that expired in buckets which came to a check point from `before` to `samples`: [buckets]."""
        if self._expiry is not None:
            for bucket in np.flatnonzero(self._expiry.is_due(before, samples)).tolist():
                counts = self.expire(bucket, int(samples[bucket]), int(samples[bucket]), epoch)
                self._expired[bucket] += sum(counts)
                for admission, count in zip(self._admissions, counts, strict=False):
                    admission.without_row[bucket] += count

    def expire(self, bucket: int, stamped_at: int, now: int, epoch: int) -> list[int]:
        """Drop the rows of a bucket that are gone at `now` of its samples; return how many, by table.

        stamped_at: the samples at which the stamps are true: until then rows that had expired were dropped.
        """
        if self._expiry is None:
            return []
        counts: list[int] = []
        for number, table in enumerate(self._tables):
            gone = self._expiry.expired(bucket, stamps_of(table, bucket), stamped_at, now)
            if self.tiers is not None and gone.any():
                self.tiers.lose(number, bucket, gone)
            counts.append(remove(self._kernels, table, bucket, gone, epoch))
        return counts

    # --- what is counted ----------------------------------------------------------------------------------

    def export(self, bucket: int) -> Bytes:
        """Copy what is counted in a bucket: rows that expired, and sights of keys without a row, by table."""
        expired = self._expired[[bucket]].view(np.uint8)
        return np.concatenate([expired, *(each.export(bucket) for each in self._admissions)])

    def load(self, bucket: int, given: Bytes) -> None:
        """Replace what is counted in a bucket by a copy. Raises InputRefused or StoreFull."""
        if len(given) < 8:
            raise InputRefused(f"policy of bucket {bucket}: {len(given)} bytes, at least 8 were wanted")
        expired, rest = given[:8].copy().view(np.int64), given[8:]
        for each in self._admissions:
            rest = each.load(bucket, rest)
        self._expired[bucket] = expired[0]

    def clear(self, bucket: int) -> None:
        """Forget what is counted in a bucket."""
        self._expired[bucket] = 0
        for each in self._admissions:
            each.clear(bucket)

    def used_bytes(self, bucket: int) -> int:
        """Return the bytes of what is counted in a bucket."""
        return sum(each.used_bytes(bucket) for each in self._admissions)

    def account(self, buckets: Bools) -> RowAccount:
        """Return what was kept out and dropped in these buckets."""
        kept_out = sum(int(each.kept_out[buckets].sum()) for each in self._admissions)
        without_row = sum(int(each.without_row[buckets].sum()) for each in self._admissions)
        return RowAccount(kept_out, max(0, without_row), int(self._expired[buckets].sum()))


def stamps_of(parts: TableParts, part: int, rows: I64 | slice = slice(None)) -> Bytes:
    """Return the stamps of rows of a part: [n]."""
    return (parts.entries(part)["epoch"][rows] % STAMPS).astype(np.uint8)

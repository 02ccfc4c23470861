"""Keys as they are stored: a bijection of 64-bit integers whose top bits name the bucket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checksums import MULTIPLIER

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

_MULTIPLIER = np.uint64(MULTIPLIER)
_INVERSE = np.uint64(pow(MULTIPLIER, -1, 2**64))
_HALF = np.uint64(32)
_LESS = np.uint64(29)


@dataclass(frozen=True, slots=True)
class TableKeys:
    """The unique keys of a batch in one table, in stored order (hence grouped by bucket).

    stored [n]: strictly ascending. counts [buckets]: keys per bucket. inverse: in the shape of the ids given, so that
    rows[inverse] are the rows of the ids.
    """

    stored: U64
    inverse: I64
    counts: I64

    def __len__(self) -> int:
        return len(self.stored)


@dataclass(frozen=True, slots=True)
class KeyBatch:
    """The unique keys of a batch, by table."""

    tables: tuple[TableKeys, ...]

    def __len__(self) -> int:
        return sum(len(table) for table in self.tables)


def store(keys: NDArray[np.integer[Any]]) -> U64:
    """Map keys to stored keys: a bijection of 64-bit integers.

    The top bits are the bucket. Keys often carry a field number in their high bits, and a multiplication alone would
    never move it to the low ones: hence an xor-shift before and after it.
    """
    mixed = keys.astype(np.int64, copy=False).view(np.uint64)
    mixed = (mixed ^ (mixed >> _HALF)) * _MULTIPLIER
    return mixed ^ (mixed >> _LESS)


def restore(stored: U64) -> I64:
    """Invert `store`."""
    mixed = (stored ^ (stored >> _LESS) ^ (stored >> (_LESS + _LESS))) * _INVERSE
    return (mixed ^ (mixed >> _HALF)).view(np.int64)


def index(ids: Sequence[NDArray[np.integer[Any]]], buckets: int) -> KeyBatch:
    """Return the unique stored keys of a batch: for each table an array of ids in any shape."""
    return KeyBatch(tuple(_index(np.asarray(each), buckets) for each in ids))


def union(batches: Sequence[KeyBatch]) -> KeyBatch:
    """Return the unique keys of all batches; `inverse` has the places of the first batch's keys, then the second's."""
    return KeyBatch(tuple(_union(tables) for tables in zip(*(each.tables for each in batches), strict=True)))


def _union(batches: Sequence[TableKeys]) -> TableKeys:
    return _unique(np.concatenate([each.stored for each in batches]), len(batches[0].counts))


def _index(ids: NDArray[Any], buckets: int) -> TableKeys:
    flat = np.ascontiguousarray(ids, dtype=np.int64).reshape(-1)
    found = _unique(store(flat), buckets)
    return replace(found, inverse=found.inverse.reshape(ids.shape))


def _unique(keys: U64, buckets: int) -> TableKeys:
    """Return the unique keys among stored ones [n]; inverse: [n]."""
    stored, inverse = np.unique(keys, return_inverse=True)
    shift = np.uint64(64 - (buckets.bit_length() - 1))
    starts = np.searchsorted(stored, np.arange(buckets, dtype=np.uint64) << shift)
    counts = np.diff(np.append(starts, len(stored))).astype(np.int64)
    return TableKeys(stored, inverse, counts)

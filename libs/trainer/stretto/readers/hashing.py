"""Hashes of categorical values: texts, and integers that are too large to be taken as they are. In pure NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

VALUE_BITS = 48
"""Bits of a categorical value. A key has them below the 15 bits of the field's number; the sign stays 0."""


def hash_values(values: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Hash integers to [0, 2^48) by the finaliser of SplitMix64 (Steele et al. 2014); the same on every machine."""
    z = values.astype(np.int64, copy=False).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(64 - VALUE_BITS)).view(np.int64)


def hash_strings(values: Sequence[str | bytes | None] | NDArray[Any]) -> NDArray[np.int64]:
    """Hash strings to [1, 2^48) and None to 0, in any shape; the same on every machine (unlike ``hash``)."""
    array = np.asarray(values, dtype=object)
    seen: dict[Any, int] = {}
    out = np.empty(array.size, np.int64)
    for position, value in enumerate(array.reshape(-1)):
        known = seen.get(value)
        if known is None:
            known = seen[value] = _hash_one(value)
        out[position] = known
    return out.reshape(array.shape)


def _hash_one(value: str | bytes | None) -> int:
    if value is None:
        return 0
    data = value.encode() if isinstance(value, str) else bytes(value)
    return max(1, int.from_bytes(blake2b(data, digest_size=VALUE_BITS // 8).digest(), "little"))

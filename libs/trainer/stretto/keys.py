"""Embedding keys of categorical values, in pure NumPy.

All rows of a model live in one table, yet every field of a sample has rows of its own: the field's number is part of
the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import DataError

VALUE_BITS = 48
"""Bits of a key that carry the value; the 15 above them carry the field's number (the sign stays 0)."""


def field_keys(values: NDArray[np.integer[Any]], field: int | None = None) -> NDArray[np.int64]:
    """Return the keys of ``values`` [n, fields]: the same value in two fields gets two keys.

    field: the one field of all columns, as of a list; any number below 2^15 that is no other column's.
    Values must lie in [0, 2^48); hash anything else with :func:`hash_values` or :func:`hash_strings` first.
    """
    if values.ndim != 2:
        raise DataError(f"categorical values have shape {values.shape}; expected [samples, fields]")
    if values.shape[1] >= 2**15:
        raise DataError(f"{values.shape[1]} fields are too many; at most {2**15 - 1}")
    wide = values.astype(np.int64, copy=False)
    if wide.size and (int(wide.min()) < 0 or int(wide.max()) >> VALUE_BITS):
        raise DataError(
            f"categorical values range from {int(wide.min())} to {int(wide.max())}; keys take [0, 2^48): "
            "pass them through stretto.hash_values first"
        )
    if field is not None and not 0 <= field < 2**15:
        raise DataError(f"field = {field}: expected 0 to {2**15 - 1}")
    fields = np.arange(wide.shape[1], dtype=np.int64) if field is None else np.int64(field)
    return wide | (fields << VALUE_BITS)


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

"""Values of tensors as arrays that can be sent. Strings, which may hold NUL bytes, become lengths and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stretto_pipeline.arrays import Arrays
from stretto_pipeline.errors import ArraysRefused

_LENGTHS, _BYTES = "lengths", "bytes"


def packed(values: Sequence[NDArray[Any]]) -> Arrays:
    """Return values as named arrays, in their order."""
    found: Arrays = {}
    for number, value in enumerate(values):
        if value.dtype.kind != "O":
            found[f"{number}"] = value
            continue
        texts: list[bytes] = [each if isinstance(each, bytes) else str(each).encode() for each in value.reshape(-1)]
        found[f"{number} {_LENGTHS}"] = np.array([len(each) for each in texts], np.int64).reshape(value.shape)
        found[f"{number} {_BYTES}"] = np.frombuffer(b"".join(texts), np.uint8)
    return found


def unpacked(arrays: Arrays) -> list[NDArray[Any]]:
    """Return the values that were given to `packed`. Raises ArraysRefused: lengths and bytes do not fit."""
    found: list[NDArray[Any]] = []
    for name, array in arrays.items():
        number, _, part = name.partition(" ")
        if part == _LENGTHS:
            found.append(_texts(array, arrays.get(f"{number} {_BYTES}", np.zeros(0, np.uint8))))
        elif part != _BYTES:
            found.append(array)
    return found


def _texts(lengths: NDArray[Any], content: NDArray[Any]) -> NDArray[Any]:
    ends = np.cumsum(lengths.reshape(-1))
    if lengths.dtype != np.int64 or (lengths < 0).any() or (int(ends[-1]) if ends.size else 0) != content.nbytes:
        raise ArraysRefused(f"{content.nbytes} bytes of texts do not fit their lengths")
    whole = content.tobytes()
    found = np.empty(lengths.size, object)
    for place, (end, length) in enumerate(zip(ends.tolist(), lengths.reshape(-1).tolist(), strict=True)):
        found[place] = whole[end - length : end]
    return found.reshape(lengths.shape)

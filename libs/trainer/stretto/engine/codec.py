"""Values of control operations as parts of a message: JSON for their shape, arrays as they lie in memory.

Only the types named here travel. Reading checks every size, so bytes of a stranger make no other objects and no array
that is larger than what came.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, cast

import numpy as np
from stretto_parameters import Applied, InputRefused, Progress, RawBucket, RawSlices

Parts = Sequence[Any]

_DTYPES = ("<i8", "<u8", "<f4", "|u1", "|b1")
_DEPTH_MAX = 8


@dataclass(frozen=True, slots=True)
class ServerStats:
    """Counters since the server started: pushes applied, seconds in them (queueing included), pushes rejected.

    repeated_samples: samples of pushes that some column here had already and did not apply again.
    """

    updates: int
    update_seconds: float
    rejected: int
    repeated_samples: int


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """Pushes accepted from one worker and the age of the last one."""

    pushes: int
    idle_seconds: float


Ranges = tuple[list[tuple[RawBucket, ...]], int, int]
"""Ranges of buckets, and the table and the row of the last bucket where its next range begins: 0, 0 after its last."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Columns as a server froze them: progress, dense slices and rows of buckets at that instant.

    slices: the first of the columns' slices, as many as the message has room for, if there are any. rows: those of all
    buckets, by table; None: the message has no room for them.
    """

    progress: Progress
    slices: RawSlices | None = None
    rows: Sequence[RawBucket] | None = None

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.slices, *(self.rows or ())) if each is not None)


_CLASSES: dict[str, type[Any]] = {
    each.__name__: each for each in (Applied, Frozen, Progress, RawBucket, RawSlices, ServerStats, WorkerSeen)
}


def pack(value: Any) -> list[Any]:
    """Return the parts of a value: its shape in JSON, then its arrays."""
    arrays: list[Any] = []
    head = json.dumps(_shaped(value, arrays), separators=(",", ":")).encode()
    return [head, *arrays]


def unpack(parts: Parts) -> Any:
    """Invert `pack`; arrays are views of the parts. Raises InputRefused."""
    if not parts:
        raise InputRefused("a value of no part: the first one is its shape in JSON")
    try:
        return _valued(json.loads(bytes(parts[0])), parts[1:], 0)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise InputRefused(f"a value of {len(parts)} parts cannot be read: {error!r}") from error


def _shaped(value: Any, arrays: list[Any]) -> Any:
    match value:
        case np.ndarray():
            whole = np.ascontiguousarray(value)
            arrays.append(whole.reshape(-1).view(np.uint8))
            return {"array": len(arrays) - 1, "type": whole.dtype.str, "shape": value.shape}
        case list() | tuple():
            return [_shaped(each, arrays) for each in cast("Sequence[Any]", value)]
        case dict():
            pairs = cast("dict[Any, Any]", value).items()
            return {"pairs": [[_shaped(key, arrays), _shaped(each, arrays)] for key, each in pairs]}
        case _ if is_dataclass(value) and not isinstance(value, type):
            named = ((each.name, getattr(value, each.name)) for each in fields(value))
            shape = {name: _shaped(given, arrays) for name, given in named if given is not None}
            return {"of": type(value).__name__, "fields": shape}
        case np.integer() | np.bool_():
            return value.item()
        case _:
            return value


def _valued(shape: Any, arrays: Parts, depth: int) -> Any:
    if depth > _DEPTH_MAX:
        raise InputRefused(f"a value of more than {_DEPTH_MAX} levels: no operation has one")
    if isinstance(shape, list):
        return [_valued(each, arrays, depth + 1) for each in cast("list[Any]", shape)]
    if not isinstance(shape, dict):
        return shape
    given = cast("dict[str, Any]", shape)
    if "array" in given:
        return _array(given, arrays)
    if "pairs" in given:
        return {_valued(key, arrays, depth + 1): _valued(each, arrays, depth + 1) for key, each in given["pairs"]}
    values = {name: _valued(each, arrays, depth + 1) for name, each in given["fields"].items()}
    return _CLASSES[given["of"]](**values)


def _array(given: dict[str, Any], arrays: Parts) -> Any:
    part, extent = memoryview(arrays[int(given["array"])]), [int(length) for length in given["shape"]]
    if given["type"] not in _DTYPES:
        raise InputRefused(f"an array of type {given['type']!r}: the types are {', '.join(_DTYPES)}")
    dtype = np.dtype(given["type"])
    if any(length < 0 for length in extent) or math.prod(extent) * dtype.itemsize != part.nbytes:
        raise InputRefused(f"an array {given['type']} {extent} of {part.nbytes} bytes: the sizes do not agree")
    return np.frombuffer(part, dtype).reshape(extent)

"""Named arrays as the parts of one message of the plane.

The first part is the schema: names, types and numbers of dimensions, as JSON. It travels once for each connection and
again when it changes; otherwise the part is empty. The second part has all dimensions, int64. The third has the small
arrays, one after the other, each at a multiple of 64 bytes: a copy costs less than a part. Each larger array is a part
of its own, not copied on either side. Nothing is unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from .errors import ArraysRefused

KINDS = "biufSU"
"""Types that travel, by their kind in NumPy: numbers, and texts of a fixed length."""
SCHEMA_BYTES_MAX = 64 * 1024
DIMENSIONS_MAX = 32
SMALL_BYTES_MAX = 16 * 1024
"""Arrays up to this size share a part."""
ALIGNMENT_BYTES = 64
SHAPE_BYTES_MAX = 2**62
"""Bound of NumPy for the bytes of an array; dimensions of 0 count as 1."""

Arrays = dict[str, NDArray[Any]]
Parts = list[bytes | memoryview | NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Field:
    """An array of every message: its name, its type as NumPy writes it (``<f4``), and its number of dimensions."""

    name: str
    dtype: str
    dimensions: int


Schema = tuple[Field, ...]


class _Place(NamedTuple):
    """The place of an array in a message: its part, and where it begins there."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int
    part: int
    begin: int


class Writer:
    """Writes the messages of one connection."""

    def __init__(self) -> None:
        self._layout: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
        self._schema: list[tuple[str, np.dtype[Any], int]] = []
        self._dimensions = np.zeros(0, np.int64)

    def parts(self, arrays: Mapping[str, NDArray[Any]]) -> Parts:
        """Return the parts of a message. Raises ArraysRefused."""
        given = [np.asarray(array) for array in arrays.values()]
        schema = self._news(arrays, given)
        parts: Parts = [schema, self._dimensions, b""]
        small: list[Any] = []
        for array in given:
            size = array.nbytes
            if size > SMALL_BYTES_MAX:
                parts.append(_bytes_of(array))
            elif size:
                small.append(array)
                if padding := -size % ALIGNMENT_BYTES:
                    small.append(_PADDING[padding])
        try:
            parts[_SMALL] = b"".join(small)
        except TypeError:  # one is not contiguous; to look at each would cost as much as the rest
            parts[_SMALL] = b"".join(each if isinstance(each, bytes) else _bytes_of(each).data for each in small)
        return parts

    def _news(self, names: Iterable[str], given: Sequence[NDArray[Any]]) -> bytes:
        """Return the schema if it differs from the last message's, else nothing; remember it, and the dimensions."""
        layout = [(name, array.dtype, array.shape) for name, array in zip(names, given, strict=True)]
        if layout == self._layout:
            return b""
        schema = [(name, dtype, len(shape)) for name, dtype, shape in layout]
        news = b"" if schema == self._schema else _encoded(schema)
        self._layout, self._schema = layout, schema
        self._dimensions = np.array([size for _, _, shape in layout for size in shape], np.int64)
        return news


class Reader:
    """Reads the messages of one connection. The arrays are views of the parts."""

    def __init__(self) -> None:
        self._schema: Schema = ()
        self._dimensions: bytes | None = None
        self._places: list[_Place] = []
        self._sizes: list[int] = []

    def arrays(self, parts: Sequence[memoryview]) -> Arrays:
        """Return the arrays by name. Raises ArraysRefused: the parts are not a message of a Writer."""
        if len(parts) < 3:
            raise ArraysRefused(f"a message of {len(parts)} parts has no arrays: schema and dimensions come first")
        if len(parts[0]):
            self._schema, self._dimensions = _parsed(parts[0]), None
        if (dimensions := bytes(parts[1])) != self._dimensions:
            self._dimensions = None
            self._places, self._sizes = _places(self._schema, dimensions)
            self._dimensions = dimensions
        if (sizes := [part.nbytes for part in parts[_SMALL:]]) != self._sizes:
            raise ArraysRefused(f"parts of {sizes[:8]} bytes do not fit their schema and dimensions")
        return {
            name: np.ndarray(shape, dtype, parts[part], begin) if size else np.zeros(shape, dtype)
            for name, dtype, shape, size, part, begin in self._places
        }


def size_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the bytes of all arrays."""
    return sum(array.nbytes for array in arrays.values())


def difference(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> str:
    """Return where two messages differ in a bit, a type or a shape, in words; "" if they are equal."""
    if list(one) != list(other):
        return f"arrays {[*one]} and {[*other]}"
    for name, first in one.items():
        second = other[name]
        if (first.dtype, first.shape) != (second.dtype, second.shape):
            return f"{name}: {first.dtype} {first.shape} and {second.dtype} {second.shape}"
        one_bytes, other_bytes = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (first, second))
        if not np.array_equal(one_bytes, other_bytes):
            place = int(np.flatnonzero(one_bytes != other_bytes)[0]) // first.itemsize
            index = tuple(int(each) for each in np.unravel_index(place, first.shape or (1,)))
            return f"{name}{list(index)}: {first.reshape(-1)[place]} and {second.reshape(-1)[place]}"
    return ""


_SMALL = 2
"""Number of the part that small arrays share; larger arrays are in the parts behind it."""
_PADDING = [bytes(size) for size in range(ALIGNMENT_BYTES)]


def _bytes_of(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _travels(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in KINDS and dtype.itemsize > 0


def _encoded(schema: Sequence[tuple[str, np.dtype[Any], int]]) -> bytes:
    """Return a schema in JSON. Raises ArraysRefused."""
    for name, dtype, _ in schema:
        if not _travels(dtype):
            raise ArraysRefused(f"{name!r} has type {dtype.str}: give numbers, or texts of a fixed length")
    told = json.dumps([[name, dtype.str, dimensions] for name, dtype, dimensions in schema]).encode()
    if len(told) > SCHEMA_BYTES_MAX:
        raise ArraysRefused(f"a schema of {len(told)} bytes is refused: at most {SCHEMA_BYTES_MAX}; join arrays")
    return told


def _parsed(part: memoryview) -> Schema:
    if len(part) > SCHEMA_BYTES_MAX:
        raise ArraysRefused(f"a schema of {len(part)} bytes is refused: at most {SCHEMA_BYTES_MAX}")
    try:
        return tuple(_field(each) for each in cast("Sequence[Any]", json.loads(bytes(part))))
    except (ValueError, TypeError, RecursionError) as error:
        raise ArraysRefused(f"a schema is refused as damaged: {error}") from None


def _field(given: Any) -> Field:
    name, dtype, dimensions = given
    if not (isinstance(name, str) and isinstance(dtype, str) and type(dimensions) is int):
        raise ValueError(f"{given!r} is no field")
    if not _travels(np.dtype(dtype)) or np.dtype(dtype).str != dtype or not 0 <= dimensions <= DIMENSIONS_MAX:
        raise ValueError(f"{dtype!r} with {dimensions} dimensions does not travel")
    return Field(name, dtype, dimensions)


def _places(schema: Schema, told: bytes) -> tuple[list[_Place], list[int]]:
    """Return the places of the arrays, and the sizes of the parts that have them. Raises ArraysRefused."""
    if len(told) != 8 * sum(each.dimensions for each in schema):
        raise ArraysRefused(f"{len(told)} bytes of dimensions do not fit the schema")
    dimensions = iter(np.frombuffer(told, np.int64).tolist())
    places: list[_Place] = []
    sizes = [0]
    for each in schema:
        dtype, shape = np.dtype(each.dtype), tuple(next(dimensions) for _ in range(each.dimensions))
        if min(shape, default=0) < 0 or math.prod(max(size, 1) for size in shape) * dtype.itemsize > SHAPE_BYTES_MAX:
            raise ArraysRefused(f"{each.name!r} has shape {shape}: there is no such array")
        size = math.prod(shape)
        size_bytes = size * dtype.itemsize
        if size_bytes > SMALL_BYTES_MAX:
            places.append(_Place(each.name, dtype, shape, size, _SMALL + len(sizes), 0))
            sizes.append(size_bytes)
        else:
            places.append(_Place(each.name, dtype, shape, size, _SMALL, sizes[0]))
            sizes[0] += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return places, sizes

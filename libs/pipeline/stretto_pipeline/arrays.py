"""Named arrays as the parts of one message of the plane, without a copy on either side.

The first part is the schema: names, types and numbers of dimensions, as JSON. It travels once for each connection and
again when it changes; otherwise the part is empty. The second part has all dimensions, int64. One part for each array
follows, in the order of the schema. Nothing is unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .errors import ArraysRefused

KINDS = "biufSU"
"""Types that travel, by their kind in NumPy: numbers, and texts of a fixed length."""
SCHEMA_BYTES_MAX = 64 * 1024
DIMENSIONS_MAX = 32

Arrays = dict[str, NDArray[Any]]
Parts = list[bytes | memoryview | NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Field:
    """An array of every message: its name, its type as NumPy writes it (``<f4``), and its number of dimensions."""

    name: str
    dtype: str
    dimensions: int


Schema = tuple[Field, ...]


class Writer:
    """Writes the messages of one connection."""

    def __init__(self) -> None:
        self._sent: Schema = ()

    def parts(self, arrays: Mapping[str, NDArray[Any]]) -> Parts:
        """Return the parts; each array that is contiguous is one of them. Raises ArraysRefused."""
        given = {name: np.asarray(array) for name, array in arrays.items()}
        schema = tuple(Field(name, array.dtype.str, array.ndim) for name, array in given.items())
        for each in schema:
            if np.dtype(each.dtype).kind not in KINDS:
                raise ArraysRefused(f"{each.name!r} has type {each.dtype}: give numbers, or texts of a fixed length")
        told = b"" if schema == self._sent else _told(schema)
        self._sent = schema
        sizes = np.array([size for array in given.values() for size in array.shape], np.int64)
        return [told, sizes, *(np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in given.values())]


class Reader:
    """Reads the messages of one connection. The arrays are views of the parts."""

    def __init__(self) -> None:
        self._schema: Schema = ()

    def arrays(self, parts: Sequence[memoryview]) -> Arrays:
        """Return the arrays by name. Raises ArraysRefused: the parts are not those of such a message."""
        if len(parts) < 2:
            raise ArraysRefused(f"a message of {len(parts)} parts has no arrays: schema and dimensions come first")
        if len(parts[0]):
            self._schema = _parsed(parts[0])
        if len(parts) != 2 + len(self._schema):
            raise ArraysRefused(f"a message of {len(parts)} parts does not fit a schema of {len(self._schema)} arrays")
        if parts[1].nbytes % 8 or parts[1].nbytes // 8 != sum(each.dimensions for each in self._schema):
            raise ArraysRefused(f"{parts[1].nbytes} bytes of dimensions do not fit the schema")
        sizes = iter(np.frombuffer(parts[1], np.int64).tolist())
        return {
            each.name: _array(each, tuple(next(sizes) for _ in range(each.dimensions)), part)
            for each, part in zip(self._schema, parts[2:], strict=True)
        }


def size_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return the bytes of all arrays."""
    return sum(array.nbytes for array in arrays.values())


def difference(one: Mapping[str, NDArray[Any]], other: Mapping[str, NDArray[Any]]) -> str:
    """Return where two messages differ in a bit, type or shape, in words; "" if nowhere."""
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


def _told(schema: Schema) -> bytes:
    told = json.dumps([[each.name, each.dtype, each.dimensions] for each in schema]).encode()
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
    if np.dtype(dtype).kind not in KINDS or np.dtype(dtype).str != dtype or not 0 <= dimensions <= DIMENSIONS_MAX:
        raise ValueError(f"{dtype!r} with {dimensions} dimensions does not travel")
    return Field(name, dtype, dimensions)


def _array(field: Field, shape: tuple[int, ...], part: memoryview) -> NDArray[Any]:
    dtype = np.dtype(field.dtype)
    count = 1
    for size in shape:
        count *= size
    if any(size < 0 for size in shape) or count * dtype.itemsize != part.nbytes:
        raise ArraysRefused(f"{field.name!r} of shape {shape} and type {dtype} does not have {part.nbytes} bytes")
    array = np.frombuffer(part, dtype) if count and dtype.itemsize else np.zeros(count, dtype)
    return array.reshape(shape)

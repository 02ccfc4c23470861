"""Bytes of tensors: of a value, by a static shape, or guessed."""

from __future__ import annotations

from typing import Any

STRING_BYTES = 16
"""Bytes of one string where none was measured: a guess."""


def static_size(tensor: Any, unknown: int) -> int:
    """Return the bytes of a tensor by its static shape. unknown: the size of a dimension that is not known."""
    count = 1
    for size in tensor.shape.as_list() if tensor.shape.rank is not None else [unknown]:
        count *= unknown if size is None else size
    return count * (STRING_BYTES if tensor.dtype.name == "string" else tensor.dtype.size or 0)


UNKNOWN_DIMENSION = 128
"""Size of a dimension that neither the graph nor the data set tells: a guess."""


def size_bytes(value: Any) -> int:
    """Return the bytes of a NumPy array as it travels; a string has four more, for its end."""
    if value.dtype.kind not in "OSU":
        return int(value.nbytes)
    return sum(len(each) + 4 for each in value.reshape(-1).tolist())

"""Bytes of tensors: of values, by static shapes, or guessed."""

from __future__ import annotations

from typing import Any

STRING_BYTES = 16
"""Guessed bytes of a string that was not measured."""
UNKNOWN_DIMENSION = 128
"""Guessed size of a dimension that neither the graph nor the data set tells."""


def static_size(tensor: Any, unknown: int) -> int:
    """Return the bytes of a tensor by its static shape. unknown: assumed size of a dimension that is not known."""
    count = 1
    for size in tensor.shape.as_list() if tensor.shape.rank is not None else [unknown]:
        count *= unknown if size is None else size
    return count * (STRING_BYTES if tensor.dtype.name == "string" else tensor.dtype.size or 0)


def size_bytes(value: Any) -> int:
    """Return the bytes that a NumPy array takes in a message; each string takes four more, for where it ends."""
    if value.dtype.kind not in "OSU":
        return int(value.nbytes)
    return sum(len(each) + 4 for each in value.reshape(-1).tolist())

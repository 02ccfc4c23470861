"""The safetensors format: the length of a JSON header (8 bytes, little-endian), the header, then the tensors.

It is written here and not by its library, which wants all tensors in memory: these are mapped, filled bucket by bucket,
and written to the disk by the kernel when it needs the room.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KINDS = {"f": "F", "i": "I", "u": "U"}
_ALIGN = 64


def create(
    path: Path, tensors: Mapping[str, tuple[Any, tuple[int, ...]]], metadata: Mapping[str, str]
) -> dict[str, NDArray[Any]]:
    """Write a file with tensors of these types (of NumPy) and shapes; return each, mapped: it is filled there."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    begins: dict[str, int] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begins[name] = end
        end += int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        header[name] = {"dtype": _name_of(np.dtype(dtype)), "shape": [*shape], "data_offsets": [begins[name], end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    at = 8 + len(text)
    return {
        name: np.memmap(path, dtype, "r+", at + begins[name], shape) if 0 not in shape else np.zeros(shape, dtype)
        for name, (dtype, shape) in tensors.items()
    }


def _name_of(dtype: np.dtype[Any]) -> str:
    return "BOOL" if dtype.kind == "b" else f"{_KINDS[dtype.kind]}{8 * dtype.itemsize}"

"""The messages between workers and parameter servers: kinds, and the parts of a pull and of a push. Pure.

A message of the plane has a kind and parts. Arrays travel as they lie in memory, little-endian:

| kind | parts of the request | parts of the answer |
| --- | --- | --- |
| HELLO | JSON: protocol, layout | JSON: protocol, server, life, layout |
| PULL | slice ids i64 · keys u64 of each table | own i64 [columns] · rows f32 of each table · slices f32 · state f32 |
| PUSH | shard, attempt, start, stop, worker i64 · claim u8 [columns] · keys u64 and row gradients f32 of each table · slice gradients f32 · state delta f32 | code, columns applied, microseconds i64 · own i64 [columns] |
| CALL | a control operation and its arguments (codec.py) | its result |

REFUSED answers what does not fit the layout or the state, and FULL a push that finds no memory; both carry a text.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from stretto_parameters import Code, InputRefused, Layout, Pulled, Push

from .layout import F32, I64, U64, Bools

VERSION = 1
_HEAD = 5
assert sys.byteorder == "little", "arrays travel as they lie in memory"


class Kind(IntEnum):
    """The kinds of messages."""

    HELLO = 1
    PULL = 2
    PUSH = 3
    CALL = 4
    ANSWER = 16
    REFUSED = 17
    FULL = 18


Parts = Sequence[Any]


def pull_request(slices: I64, keys: Sequence[U64]) -> list[Any]:
    """Return the parts of a pull."""
    return [slices, *keys]


def read_pull(layout: Layout, parts: Parts) -> tuple[list[U64], I64]:
    """Return (keys of each table, slice ids) of a pull. Raises InputRefused."""
    if len(parts) != 1 + len(layout.tables):
        raise InputRefused(f"a pull of {len(parts)} parts, the layout wants {1 + len(layout.tables)}")
    keys = [_array(f"keys of table {i}", part, np.uint64) for i, part in enumerate(parts[1:])]
    return keys, _array("slices", parts[0], np.int64)


def pull_answer(pulled: Pulled) -> list[Any]:
    """Return the parts of the answer to a pull."""
    return [pulled.own, *pulled.rows, pulled.slices, pulled.state]


def read_pulled(layout: Layout, parts: Parts) -> Pulled:
    """Return the answer to a pull. Raises InputRefused."""
    if len(parts) != 3 + len(layout.tables):
        raise InputRefused(f"an answer of {len(parts)} parts, the layout wants {3 + len(layout.tables)}")
    rows = tuple(
        _array(f"rows of table {i}", part, np.float32, table.dimension)
        for i, (table, part) in enumerate(zip(layout.tables, parts[1:-2], strict=True))
    )
    slices = _array("slices", parts[-2], np.float32, layout.slice_length)
    return Pulled(rows, slices, _array("state", parts[-1], np.float32), _array("own", parts[0], np.int64))


def push_request(
    head: I64, claim: Bools, keys: Sequence[U64], rows: Sequence[F32], slices: F32, state_delta: F32
) -> list[Any]:
    """Return the parts of a push. head: shard, attempt, start, stop, worker."""
    return [head, claim.view(np.uint8), *keys, *rows, slices, state_delta]


def read_push(layout: Layout, parts: Parts) -> Push:
    """Return the push; its arrays are views of the parts. Raises InputRefused."""
    tables = len(layout.tables)
    if len(parts) != 4 + 2 * tables:
        raise InputRefused(f"a push of {len(parts)} parts, the layout wants {4 + 2 * tables}")
    head = _array("head", parts[0], np.int64)
    claim = _array("claim", parts[1], np.uint8)
    if len(head) != _HEAD or (claim > 1).any():
        raise InputRefused(f"a push with a head of {len(head)} numbers or a claim beyond 0 and 1: of another version?")
    rows = [
        _array(f"row gradients of table {i}", part, np.float32, table.dimension)
        for i, (table, part) in enumerate(zip(layout.tables, parts[2 + tables : -2], strict=True))
    ]
    keys = [_array(f"keys of table {i}", part, np.uint64) for i, part in enumerate(parts[2 : 2 + tables])]
    slices = _array("slice gradients", parts[-2], np.float32, layout.slice_length)
    delta = _array("state delta", parts[-1], np.float32)
    shard, attempt, start, stop, worker = head.tolist()
    return Push(shard, attempt, start, stop, worker, claim.view(np.bool_), keys, rows, slices, delta)


def push_answer(code: Code, applied: int, update_us: int, own: I64) -> list[Any]:
    """Return the parts of the answer to a push."""
    return [np.array([code, applied, update_us], np.int64), own]


def read_push_answer(parts: Parts) -> tuple[Code, int, float]:
    """Return (code, columns applied, seconds in the server). Raises InputRefused."""
    code, applied, update_us = _array("head", parts[0], np.int64).tolist()
    return Code(code), applied, update_us / 1e6


def _array(name: str, part: Any, dtype: type[np.generic], width: int = 0) -> Any:
    """Return the array of a part: [n], or [n, width]. Raises InputRefused."""
    view = memoryview(part)
    row_bytes = np.dtype(dtype).itemsize * max(1, width)
    if view.nbytes % row_bytes:
        raise InputRefused(f"{name} of {view.nbytes} bytes: not a multiple of {row_bytes}")
    array = np.frombuffer(view, dtype)
    return array.reshape(-1, width) if width else array

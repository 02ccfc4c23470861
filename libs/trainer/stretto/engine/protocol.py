"""The messages between workers and parameter servers: kinds, and the parts of a pull and of a push. Pure.

A message of the plane has a kind and parts. Arrays travel as they lie in memory, little-endian:

| kind | parts of the request | parts of the answer |
| --- | --- | --- |
| HELLO | JSON: protocol, layout | JSON: protocol, server, life, pid |
| PULL | transfer i64 · slice ids i64 · keys u64 | own i64 [columns] · rows · slices f32 · state f32 |
| PUSH | shard, attempt, start, stop, worker, transfer i64 · claim u8 [columns] · keys u64 · row gradients · places of
keys with squares u32 · these squares · slice gradients f32 · state delta f32 | code, columns applied, microseconds i64
· own i64 [columns] |
| CALL | a control operation and its arguments (codec.py) | its result |

Keys, rows, row gradients, places and squares are one part for each table. Rows, their gradients and squares are f32, or
bfloat16 where the request's `transfer` says so: rounded to nearest by the sender. Squares travel where they are not
those of the gradients.
REFUSED answers what does not fit the layout or the state, and FULL a push that finds no memory; both carry a text.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stretto_parameters import Code, InputRefused, Layout, Pulled, Push, kernels

from .layout import F32, I64, U64, Bools

VERSION = 2
_HEAD = 6
_kernels = cache(kernels.load)
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


class Transfer(IntEnum):
    """The type in which rows and their gradients travel."""

    FLOAT32 = 0
    BFLOAT16 = 1


Parts = Sequence[Any]


def pull_request(slices: I64, keys: Sequence[U64], transfer: Transfer) -> list[Any]:
    """Return the parts of a pull."""
    return [np.array([transfer], np.int64), slices, *keys]


def read_pull(layout: Layout, parts: Parts) -> tuple[list[U64], I64, Transfer]:
    """Return (keys of each table, slice ids, transfer) of a pull. Raises InputRefused."""
    if len(parts) != 2 + len(layout.tables):
        raise InputRefused(f"a pull of {len(parts)} parts, the layout wants {2 + len(layout.tables)}")
    keys = [_array(f"keys of table {i}", part, np.uint64) for i, part in enumerate(parts[2:])]
    return keys, _array("slices", parts[1], np.int64), _transfer(_array("transfer", parts[0], np.int64).tolist())


def pull_answer(pulled: Pulled, keys: Sequence[U64], slices: I64, transfer: Transfer) -> list[Any]:
    """Return the parts of the answer to a pull of these keys and slices."""
    assert _lengths(pulled) == (*map(len, keys), len(slices)), "an answer has a row for each key, in their order"
    return [pulled.own, *_sent(pulled.rows, transfer), pulled.slices, pulled.state]


def read_pulled(layout: Layout, asked: Parts, parts: Parts) -> Pulled:
    """Return the answer to the pull that was ``asked``. Raises InputRefused."""
    if len(parts) != 3 + len(layout.tables):
        raise InputRefused(f"an answer of {len(parts)} parts, the layout wants {3 + len(layout.tables)}")
    (transfer,), of_slices, *of_keys = asked
    rows = tuple(_received("rows", layout, parts[1:-2], Transfer(transfer)))
    slices = _array("slices", parts[-2], np.float32, layout.slice_length)
    pulled = Pulled(rows, slices, _array("state", parts[-1], np.float32), _array("own", parts[0], np.int64))
    found = (*_lengths(pulled), len(pulled.state), len(pulled.own))
    if found != (wanted := (*map(len, of_keys), len(of_slices), layout.state_size, layout.columns)):
        raise InputRefused(f"rows of tables, slices, state and own of {found} in an answer, where {wanted} were asked")
    return pulled


def _lengths(pulled: Pulled) -> tuple[int, ...]:
    return (*map(len, pulled.rows), len(pulled.slices))


def push_request(
    head: I64,
    claim: Bools,
    keys: Sequence[U64],
    rows: Sequence[F32],
    slices: F32,
    state_delta: F32,
    transfer: Transfer,
    row_squares: Sequence[F32 | None] = (),
    slice_squares: F32 | None = None,
) -> list[Any]:
    """Return the parts of a push. head: shard, attempt, start, stop, worker. row_squares, slice_squares: as of `Push`;
    the latter follow the gradients of slices in one part."""
    whole = np.append(head, np.int64(transfer))
    places: list[NDArray[np.uint32]] = []
    squares: list[F32] = []
    for gradients, given in zip(rows, row_squares or [None] * len(rows), strict=True):
        differ = [] if given is None else np.flatnonzero((given != gradients * gradients).any(axis=1))
        places.append(np.array(differ, np.uint32))
        squares.append(gradients[:0] if given is None else given[differ])
    sent = (*_sent(rows, transfer), *places, *_sent(squares, transfer))
    both = slices if slice_squares is None else np.concatenate([slices, slice_squares])
    return [whole, claim.view(np.uint8), *keys, *sent, both, state_delta]


def read_push(layout: Layout, parts: Parts) -> Push:
    """Return the push; its arrays are views of the parts. Raises InputRefused."""
    tables = len(layout.tables)
    if len(parts) != 4 + 4 * tables:
        raise InputRefused(f"a push of {len(parts)} parts, the layout wants {4 + 4 * tables}")
    head = _array("head", parts[0], np.int64)
    claim = _array("claim", parts[1], np.uint8)
    if len(head) != _HEAD or (claim > 1).any():
        raise InputRefused(f"a push with a head of {len(head)} numbers or a claim beyond 0 and 1: of another version?")
    shard, attempt, start, stop, worker, transfer = head.tolist()
    of_rows, of_places, of_squares = (parts[2 + begin * tables : 2 + (begin + 1) * tables] for begin in (1, 2, 3))
    rows = _received("row gradients", layout, of_rows, _transfer([transfer]))
    places = [_array(f"places of table {i}", part, np.uint32) for i, part in enumerate(of_places)]
    given = _received("squares", layout, of_squares, _transfer([transfer]))
    squares = [_spread(*each) for each in zip(rows, places, given, strict=True)]
    keys = [_array(f"keys of table {i}", part, np.uint64) for i, part in enumerate(parts[2 : 2 + tables])]
    slices = _array("slice gradients", parts[-2], np.float32, layout.slice_length)
    claimed = int(claim[layout.buckets :].sum())
    of_slices = slices[claimed:] if len(slices) == 2 * claimed > 0 else None
    slices = slices if of_slices is None else slices[:claimed]
    delta = _array("state delta", parts[-1], np.float32)
    return Push(
        shard, attempt, start, stop, worker, claim.view(np.bool_), keys, rows, slices, delta, squares, of_slices
    )


def push_answer(code: Code, applied: int, update_us: int, own: I64) -> list[Any]:
    """Return the parts of the answer to a push."""
    return [np.array([code, applied, update_us], np.int64), own]


def read_push_answer(parts: Parts, claimed: int) -> tuple[Code, int, float]:
    """Return (code, columns applied, seconds in the server) for a push of ``claimed`` columns. Raises InputRefused."""
    head = _array("head", parts[0], np.int64).tolist() if parts else []
    if len(head) != 3 or head[0] not in set(Code) or not 0 <= head[1] <= claimed:
        raise InputRefused(f"an answer with the head {head[:4]} to a push of {claimed} columns: of another version?")
    return Code(head[0]), head[1], head[2] / 1e6


def _spread(gradients: F32, places: NDArray[np.uint32], squares: F32) -> F32 | None:
    """Return the squares of all gradients, of which some are given; None where none is. Raises InputRefused."""
    if len(places) != len(squares) or (places >= len(gradients)).any():
        raise InputRefused(f"{len(squares)} squares at {len(places)} places of {len(gradients)} row gradients")
    if not len(places):
        return None
    found = gradients * gradients
    found[places] = squares
    return found


def _transfer(given: list[int]) -> Transfer:
    if len(given) != 1 or given[0] not in (Transfer.FLOAT32, Transfer.BFLOAT16):
        raise InputRefused(f"transfer = {given[:4]} is neither [0] (float32) nor [1] (bfloat16): of another version?")
    return Transfer(given[0])


def _sent(rows: Sequence[F32], transfer: Transfer) -> list[Any]:
    return [_kernels().narrow(each) for each in rows] if transfer is Transfer.BFLOAT16 else list(rows)


def _received(name: str, layout: Layout, parts: Parts, transfer: Transfer) -> list[F32]:
    dtype = np.uint16 if transfer is Transfer.BFLOAT16 else np.float32
    arrays = [
        _array(f"{name} of table {i}", part, dtype, table.dimension)
        for i, (table, part) in enumerate(zip(layout.tables, parts, strict=True))
    ]
    return [_kernels().widen(each) for each in arrays] if transfer is Transfer.BFLOAT16 else arrays


def _array(name: str, part: Any, dtype: type[np.generic], width: int = 0) -> Any:
    """Return the array of a part: [n], or [n, width]. Raises InputRefused."""
    view = memoryview(part)
    row_bytes = np.dtype(dtype).itemsize * max(1, width)
    if view.nbytes % row_bytes:
        raise InputRefused(f"{name} of {view.nbytes} bytes: not a multiple of {row_bytes}")
    array = np.frombuffer(view, dtype)
    return array.reshape(-1, width) if width else array

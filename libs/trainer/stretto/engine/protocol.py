"""The messages between workers and parameter servers: kinds, and the parts of a pull and of a push. Pure.

A message of the plane has a kind and parts. Arrays travel as they lie in memory, little-endian:

| kind | parts of the request | parts of the answer |
| --- | --- | --- |
| HELLO | JSON: protocol, layout | JSON: protocol, server, life, pid, hints, exchanges, freezes_rows |
| PULL | transfer i64 · slice ids i64 · keys | own i64 [columns] · rows · slices · state f32 · cold rows i64 |
| HINT | as of a PULL, whose rows will be pulled soon | nothing |
| PUSH | shard, attempt, start, stop, worker, transfer, and four numbers of each further batch i64 · claim u8
[columns] · keys · row gradients · places of keys with squares u32 · these squares · slice gradients, or these and
their squares · state delta f32 | code, columns applied, microseconds i64 · own i64 [columns] |
| EXCHANGE | as of a PUSH, then as of a PULL | as of the PUSH, then as of the PULL, which comes after it |
| CALL | a control operation and its arguments (codec.py) | its result |

Keys, rows, row gradients, places and squares are one part for each table. `transfer` names the types of rows and of
slices, of their gradients and their squares (transfer.py). Squares travel where they are not those of the gradients.
A pull of training adds 2^24 where the HELLO told of `hints`; only then the answer ends with cold rows, if any. An
EXCHANGE is sent where the HELLO told of `exchanges`, a `freeze_and_export` is called where it told of `freezes_rows`.
REFUSED answers what does not fit the layout or the state, and FULL a push that finds no memory; both carry a text.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stretto_parameters import Claim, Code, InputRefused, Layout, Pulled, Push

from .layout import F32, I64, U64, Bools
from .transfer import EXACT, Transfer, Transfers, array_of, received, received_keys, sent, sent_keys

VERSION = 2
KNOWN = ("hints", "exchanges", "freezes_rows")
"""Abilities that servers of before lack: an answer to HELLO tells each that there is."""
_HEAD = 6
_OTHER = 4
_PUSH_ANSWER = 2
_TRAINING = 1 << 24
_NOTHING: F32 = np.zeros(0, np.float32)
assert sys.byteorder == "little", "arrays travel as they lie in memory"


class Kind(IntEnum):
    """The kinds of messages."""

    HELLO = 1
    PULL = 2
    PUSH = 3
    CALL = 4
    HINT = 5
    EXCHANGE = 6
    ANSWER = 16
    REFUSED = 17
    FULL = 18


Parts = Sequence[Any]


def pull_request(
    slices: I64, keys: Sequence[U64], transfers: Transfers = EXACT, is_training: bool = False
) -> list[Any]:
    """Return the parts of a pull, or of a hint."""
    code = transfers.code | (_TRAINING if is_training else 0)
    return [np.array([code], np.int64), slices, *(sent_keys(each, transfers) for each in keys)]


def read_pull(layout: Layout, parts: Parts) -> tuple[list[U64], I64, Transfers, bool]:
    """Return (keys of each table, slice ids, types of the answer, whether it is of training). Raises InputRefused."""
    if len(parts) != 2 + len(layout.tables):
        raise InputRefused(f"a pull of {len(parts)} parts, the layout wants {2 + len(layout.tables)}")
    codes = array_of("transfer", parts[0], np.int64).tolist()
    transfers = Transfers.of([code & ~_TRAINING for code in codes], Transfer.BFLOAT16)
    keys = [received_keys(f"keys of table {i}", part, transfers) for i, part in enumerate(parts[2:])]
    return keys, array_of("slices", parts[1], np.int64), transfers, codes[0] & _TRAINING > 0


def pull_answer(
    pulled: Pulled, keys: Sequence[U64], slices: I64, transfers: Transfers, cold_rows: int = 0
) -> list[Any]:
    """Return the parts of the answer to a pull of these keys and slices."""
    assert _lengths(pulled) == (*map(len, keys), len(slices)), "an answer has a row for each key, in their order"
    rows = (sent(each, transfers.rows) for each in pulled.rows)
    told = [np.array([cold_rows], np.int64)] if cold_rows else []
    return [pulled.own, *rows, sent(pulled.slices, transfers.slices), pulled.state, *told]


def read_pulled(
    layout: Layout, keys: Sequence[U64], slices: I64, transfers: Transfers, parts: Parts
) -> tuple[Pulled, bool]:
    """Return the answer to a pull of these, and whether the server has cold rows. Raises InputRefused."""
    wanted_parts = 3 + len(layout.tables)
    if len(parts) not in (wanted_parts, wanted_parts + 1):
        raise InputRefused(f"an answer of {len(parts)} parts, the layout wants {wanted_parts}")
    own, *of_rows, of_slices, state = parts[:wanted_parts]
    rows = tuple(_of_tables("rows", layout, of_rows, transfers.rows))
    dense = received("slices", of_slices, transfers.slices, layout.slice_length)
    pulled = Pulled(rows, dense, array_of("state", state, np.float32), array_of("own", own, np.int64))
    found = (*_lengths(pulled), len(pulled.state), len(pulled.own))
    if found != (wanted := (*map(len, keys), len(slices), layout.state_size, layout.columns)):
        raise InputRefused(f"rows of tables, slices, state and own of {found} in an answer, where {wanted} were asked")
    return pulled, len(parts) > wanted_parts


def _lengths(pulled: Pulled) -> tuple[int, ...]:
    return (*map(len, pulled.rows), len(pulled.slices))


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of a batch for all columns, as they travel.

    rows: of each table, for each of its keys. row_squares: as of `Push`, not rounded yet; differ: by table, the keys
    whose squares are not those of their gradients, so that they travel. slices, slice_squares: for each dense slice.
    """

    transfers: Transfers
    rows: Sequence[NDArray[Any]]
    row_squares: Sequence[F32 | None]
    differ: Sequence[Bools]
    slices: NDArray[Any]
    slice_squares: NDArray[Any] | None
    state_delta: F32

    @staticmethod
    def of(
        transfers: Transfers,
        rows: Sequence[F32],
        slices: F32,
        state_delta: F32,
        row_squares: Sequence[F32 | None] = (),
        slice_squares: F32 | None = None,
        chances: np.random.Generator | None = None,
    ) -> Gradients:
        """Round gradients as `transfers` say. chances: rows that travel as INT8 are rounded by these."""
        rows = [np.asarray(each, np.float32) for each in rows]
        squares = row_squares or [None] * len(rows)
        return Gradients(
            transfers,
            [sent(each, transfers.rows, chances) for each in rows],
            squares,
            [_differ(*each) for each in zip(rows, squares, strict=True)],
            sent(slices, transfers.slices),
            None if slice_squares is None else sent(slice_squares, transfers.slices.of_squares),
            state_delta,
        )


def _differ(gradients: F32, squares: F32 | None) -> Bools:
    if squares is None:
        return np.zeros(len(gradients), np.bool_)
    return (squares != gradients * gradients).any(axis=1)


def push_request(
    head: I64,
    claim: Bools,
    keys: Sequence[U64],
    gradients: Gradients,
    chosen: Sequence[Any],
    ids: Any,
    others: Sequence[Claim] = (),
) -> list[Any]:
    """Return the parts of a push. head: shard, attempt, start, stop, worker. chosen: by table, which of its keys and
    gradients are of claimed columns; ids: which slices; others: further batches of which the gradients are the mean."""
    differ = [each[at] for each, at in zip(gradients.differ, chosen, strict=True)]
    squares = [
        sent(all_[at][its], gradients.transfers.rows.of_squares) if all_ is not None else _NOTHING
        for all_, at, its in zip(gradients.row_squares, chosen, differ, strict=True)
    ]
    slices = gradients.slices[ids]
    if gradients.slice_squares is not None:
        both = (slices, gradients.slice_squares[ids])
        slices = np.concatenate([np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in both])
    return [
        np.concatenate([head, [gradients.transfers.code], *others], dtype=np.int64),
        claim.view(np.uint8),
        *(sent_keys(each[at], gradients.transfers) for each, at in zip(keys, chosen, strict=True)),
        *(np.ascontiguousarray(each[at]) for each, at in zip(gradients.rows, chosen, strict=True)),
        *(np.flatnonzero(each).astype(np.uint32) for each in differ),
        *squares,
        slices,
        gradients.state_delta,
    ]


def read_push(layout: Layout, parts: Parts) -> Push:
    """Return the push; its arrays are views of the parts. Raises InputRefused."""
    tables = len(layout.tables)
    if len(parts) != (wanted := _push_parts(layout)):
        raise InputRefused(f"a push of {len(parts)} parts, the layout wants {wanted}")
    head = array_of("head", parts[0], np.int64)
    claim = array_of("claim", parts[1], np.uint8)
    if len(head) < _HEAD or (len(head) - _HEAD) % _OTHER or (claim > 1).any():
        raise InputRefused(f"a push with a head of {len(head)} numbers or a claim beyond 0 and 1: of another version?")
    shard, attempt, start, stop, worker, code = head[:_HEAD].tolist()
    others = [Claim(*each) for each in head[_HEAD:].reshape(-1, _OTHER).tolist()]
    transfers = Transfers.of([code], Transfer.INT8)
    of_rows, of_places, of_squares = (parts[2 + begin * tables : 2 + (begin + 1) * tables] for begin in (1, 2, 3))
    rows = _of_tables("row gradients", layout, of_rows, transfers.rows)
    places = [array_of(f"places of table {i}", part, np.uint32) for i, part in enumerate(of_places)]
    given = _of_tables("squares", layout, of_squares, transfers.rows.of_squares)
    squares = [_spread(*each) for each in zip(rows, places, given, strict=True)]
    keys = [received_keys(f"keys of table {i}", part, transfers) for i, part in enumerate(parts[2 : 2 + tables])]
    slices, of_slices = _of_slices(layout, parts[-2], transfers.slices, int(claim[layout.buckets :].sum()))
    delta = array_of("state delta", parts[-1], np.float32)
    return Push(
        *(shard, attempt, start, stop, worker, claim.view(np.bool_), keys, rows, slices, delta, squares, of_slices),
        others=others,
    )


def read_exchange(layout: Layout, parts: Parts) -> tuple[Push, tuple[list[U64], I64, Transfers, bool]]:
    """Return the push, and the pull as `read_pull` does. Raises InputRefused."""
    cut = _push_parts(layout)
    return read_push(layout, parts[:cut]), read_pull(layout, parts[cut:])


def cut_answer(parts: Parts) -> tuple[Parts, Parts]:
    """Return the answers to the push and to the pull of an exchange."""
    return parts[:_PUSH_ANSWER], parts[_PUSH_ANSWER:]


def _push_parts(layout: Layout) -> int:
    return 4 + 4 * len(layout.tables)


def push_answer(code: Code, applied: int, update_us: int, own: I64) -> list[Any]:
    """Return the parts of the answer to a push."""
    return [np.array([code, applied, update_us], np.int64), own]


def read_push_answer(parts: Parts, claimed: int) -> tuple[Code, int, float]:
    """Return (code, columns applied, seconds in the server) for a push of ``claimed`` columns. Raises InputRefused."""
    head = array_of("head", parts[0], np.int64).tolist() if parts else []
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


def _of_slices(layout: Layout, part: Any, transfer: Transfer, claimed: int) -> tuple[F32, F32 | None]:
    """Return the gradients of slices, and their squares where these follow them. Raises InputRefused."""
    view, width = memoryview(part).cast("B"), layout.slice_length
    cut = claimed * transfer.row_bytes(width)
    if not claimed or view.nbytes != cut + claimed * transfer.of_squares.row_bytes(width):
        return received("slice gradients", view, transfer, width), None
    squares = received("squares of slices", view[cut:], transfer.of_squares, width)
    return received("slice gradients", view[:cut], transfer, width), squares


def _of_tables(name: str, layout: Layout, parts: Parts, transfer: Transfer) -> list[F32]:
    return [
        received(f"{name} of table {i}", part, transfer, table.dimension)
        for i, (table, part) in enumerate(zip(layout.tables, parts, strict=True))
    ]

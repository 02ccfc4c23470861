"""The types in which values travel between workers and parameter servers. Pure.

| type | a row of a table, or a dense slice, of n values |
| --- | --- |
| FLOAT32 | 4 bytes a value, as they lie in memory |
| BFLOAT16 | 2 bytes a value, rounded to nearest |
| INT8 | a bfloat16 scale for each 64 values, then a byte a value: value / scale, rounded |

Keys, which ascend, travel as they lie in memory; or packed: the first in 8 bytes, then the differences in as many bytes
each as the largest needs, most often 7.

Only gradients travel as INT8. What rounding takes from them must not be lost in the same direction step by step: a
dense gradient's is kept and added to the next one (`client.py`), a row's is rounded up or down by chance, right in the
mean, since the next batch seldom has that row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stretto_parameters import InputRefused, kernels

from .layout import F32, U64, KeyBatch, Layout

_BLOCK = 64
"""Values that share a scale."""
_MOST = 127
_SMALLEST = np.float32(np.finfo(np.float32).tiny)
_kernels = cache(kernels.load)


class Transfer(IntEnum):
    """The type in which values travel; the narrower, the greater."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2

    @property
    def of_squares(self) -> Transfer:
        """The type of the squares that travel beside gradients of this one: theirs span too much for a shared scale."""
        return min(self, Transfer.BFLOAT16)

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row or slice of `width` values."""
        if self is Transfer.INT8:
            return 2 * _scales(width) + width
        return (4 if self is Transfer.FLOAT32 else 2) * width


@dataclass(frozen=True, slots=True)
class Transfers:
    """The types of one message: of rows or their gradients, and of dense slices or theirs; whether keys are packed."""

    rows: Transfer = Transfer.FLOAT32
    slices: Transfer = Transfer.FLOAT32
    packs_keys: bool = False

    @property
    def code(self) -> int:
        return self.rows | self.slices << 8 | self.packs_keys << 16

    @staticmethod
    def of(given: list[int], narrowest: Transfer) -> Transfers:
        """Invert `code`. Raises InputRefused."""
        code = given[0] if len(given) == 1 else -1
        rows, slices, packs = code & 255, code >> 8 & 255, code >> 16
        if not (rows <= narrowest and slices <= narrowest and packs in (0, 1)):
            types = ", ".join(f"{each.value} ({each.name.lower()})" for each in Transfer if each <= narrowest)
            raise InputRefused(
                f"transfer = {given[:4]}: rows + 2^8 slices + 2^16 packed keys, of {types}: of another version?"
            )
        return Transfers(Transfer(rows), Transfer(slices), packs == 1)


EXACT = Transfers()


@dataclass(frozen=True, slots=True)
class Wire:
    """A worker's choice of types: for pulls, and for pushes. dense_every: pulls of which one brings dense slices.
    push_every: batches whose gradients are pushed at once.
    """

    pull: Transfers = EXACT
    push: Transfers = EXACT
    dense_every: int = 1
    push_every: int = 1

    @staticmethod
    def of(transfer: str, wire: Mapping[str, Any]) -> Wire:
        """Return what a job states as `model.transfer` and `model.wire`: rows travel in the narrower of both."""
        of_rows = Transfer[transfer.upper()]
        pull, push = (Transfer[str(wire.get(way, "float32")).upper()] for way in ("pull", "push"))
        both = (Transfers(max(of_rows, each), each, each is not Transfer.FLOAT32) for each in (pull, push))
        return Wire(*both, dense_every=wire.get("dense_every", 1), push_every=wire.get("push_every", 1))

    def step_bytes(self, layout: Layout, keys: KeyBatch, pushed: KeyBatch | None = None, batches: int = 1) -> float:
        """Return the bytes of a step with these keys, to and from all servers, without heads.

        pushed: the keys of as many batches, pushed at once; None: those of the step.
        """
        pull, push = self.pull, self.push
        pulled_dense, pushed_dense = (
            layout.slices * each.slices.row_bytes(layout.slice_length) for each in (pull, push)
        )
        pulled = _rows_bytes(layout, keys, pull) + pulled_dense / self.dense_every
        return pulled + (_rows_bytes(layout, pushed or keys, push) + pushed_dense) / batches


class Debt:
    """The rest that rounding has left of a worker's dense gradients: the servers get it with the next one.

    The rest is half a step of rounding of each value at most, however many gradients there were. Books: generation and
    lineage of the servers. Others than those that lack it are owed nothing, since they train its samples again.
    """

    def __init__(self) -> None:
        self._rest: F32 | None = None
        self._books = (0, 0)

    def added_to(self, slices: F32, books: tuple[int, int]) -> F32:
        """Return gradients with what is owed; it stays owed until `note`, so a push may be repeated."""
        return slices if self._rest is None or books != self._books else slices + self._rest

    def note(self, slices: F32, travelling: NDArray[Any], transfer: Transfer, books: tuple[int, int]) -> None:
        """Owe what the servers, which have these slices as they travelled, lack of them; nothing where that is NaN."""
        self._rest, self._books = None, books
        if transfer is not Transfer.FLOAT32:
            arrived = received("slices", travelling, transfer, slices.shape[1])
            self._rest = np.nan_to_num(slices - arrived, copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def _rows_bytes(layout: Layout, keys: KeyBatch, transfers: Transfers) -> int:
    """Return the bytes of keys and of as many rows or their gradients."""
    return sum(
        sent_keys(of.stored, transfers).nbytes + len(of) * transfers.rows.row_bytes(table.dimension)
        for of, table in zip(keys.tables, layout.tables, strict=True)
    )


def sent(values: F32, transfer: Transfer, chances: np.random.Generator | None = None) -> NDArray[Any]:
    """Return rows or slices [n, width] as they travel, a row of the result for each.

    chances: INT8 is rounded up or down by them, to the mean of the value; None: to nearest.
    """
    if transfer is Transfer.FLOAT32:
        return values
    return _kernels().narrow(values) if transfer is Transfer.BFLOAT16 else _as_bytes(values, chances)


def received(name: str, part: Any, transfer: Transfer, width: int) -> F32:
    """Return the rows or slices [n, width] of a part. Raises InputRefused."""
    if transfer is Transfer.FLOAT32:
        return array_of(name, part, np.float32, width)
    if transfer is Transfer.BFLOAT16:
        return _kernels().widen(array_of(name, part, np.uint16, width))
    bytes_ = array_of(name, part, np.uint8, transfer.row_bytes(width))
    cut = 2 * _scales(width)
    scales = _kernels().widen(np.ascontiguousarray(bytes_[:, :cut]).view(np.uint16))
    return bytes_[:, cut:].view(np.int8) * _spread(scales, width)


def sent_keys(keys: U64, transfers: Transfers) -> NDArray[Any]:
    """Return ascending keys as they travel."""
    if not transfers.packs_keys or not len(keys):
        return keys
    gaps = np.diff(keys)
    width = -(-int(gaps.max(initial=0)).bit_length() // 8)
    bytes_ = gaps.view(np.uint8).reshape(-1, 8)[:, :width]
    return np.concatenate([np.array([width], np.uint8), keys[:1].view(np.uint8), bytes_.reshape(-1)])


def received_keys(name: str, part: Any, transfers: Transfers) -> U64:
    """Return the keys of a part. Raises InputRefused."""
    if not transfers.packs_keys or not memoryview(part).nbytes:
        return array_of(name, part, np.uint64)
    bytes_ = array_of(name, part, np.uint8)
    width, rest = int(bytes_[0]), len(bytes_) - 9
    if width > 8 or rest < 0 or (rest % width if width else rest):
        raise InputRefused(f"{name}: {len(bytes_)} bytes are no packed keys of {width} bytes each")
    wide = np.zeros((1 + (rest // width if width else 0), 8), np.uint8)
    wide[0], wide[1:, :width] = bytes_[1:9], bytes_[9:].reshape(-1, width) if width else 0
    return np.cumsum(wide.view(np.uint64).reshape(-1), dtype=np.uint64)


def array_of(name: str, part: Any, dtype: type[np.generic], width: int = 0) -> Any:
    """Return the array of a part: [n], or [n, width]. Raises InputRefused."""
    view = memoryview(part)
    row_bytes = np.dtype(dtype).itemsize * max(1, width)
    if view.nbytes % row_bytes:
        raise InputRefused(f"{name} of {view.nbytes} bytes: not a multiple of {row_bytes}")
    array = np.frombuffer(view, dtype)
    return array.reshape(-1, width) if width else array


def _as_bytes(values: F32, chances: np.random.Generator | None) -> NDArray[np.uint8]:
    """Round to bytes. Values of a block that is not finite are all NaN: whoever diverges is to see it."""
    n, width = values.shape
    most = np.maximum.reduceat(np.abs(values), range(0, width, _BLOCK), axis=1) if n else values[:, : _scales(width)]
    scales = most / np.float32(_MOST)
    scales[scales < _SMALLEST] = 0
    halves = _kernels().narrow(np.where(np.isfinite(scales), scales, np.float32("nan")))
    halves += _kernels().widen(halves) < scales  # never a smaller scale, with which the largest value had no byte
    with np.errstate(invalid="ignore"):
        whole = values * _spread(_inverse(_kernels().widen(halves)), width)
    whole = np.rint(whole) if chances is None else np.floor(whole + chances.random(whole.shape, np.float32))
    np.clip(whole, -_MOST, _MOST, out=whole)
    if not np.isfinite(whole).all():
        whole = np.nan_to_num(whole, nan=0.0)
    out = np.empty((n, Transfer.INT8.row_bytes(width)), np.uint8)
    cut = 2 * _scales(width)
    out[:, :cut] = halves.view(np.uint8)
    out[:, cut:] = whole.astype(np.int8).view(np.uint8)
    return out


def _inverse(scales: F32) -> F32:
    """Return the inverse of each scale; 0 of 0 and of NaN."""
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)


def _scales(width: int) -> int:
    return -(-width // _BLOCK)


def _spread(scales: F32, width: int) -> F32:
    """Return each value's scale: [n, scales] -> [n, width], or [n, 1] where all of a row share one."""
    return scales if scales.shape[1] == 1 else np.repeat(scales, _BLOCK, axis=1)[:, :width]

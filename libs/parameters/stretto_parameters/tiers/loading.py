"""Rows that are loaded from a copy: which become hot, warm or cold, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..kernels import Kernels
from ..layout import ENTRY_BYTES
from ..parts import INDEX_BYTES_MAX, TableParts
from ..reference import is_rounded
from .eviction import Hand
from .log import RowLog

Bools = NDArray[np.bool_]
F32 = NDArray[np.float32]
U64 = NDArray[np.uint64]

_BESIDE_BYTES = ENTRY_BYTES + 4 + INDEX_BYTES_MAX
"""Bytes of a row in memory beside itself: entry, owner, share of the index."""
_AT_ONCE_BYTES = 2**21


class Loading:
    """Rows of a store's tables that come from a copy, within the budget of its hand."""

    def __init__(self, tables: Sequence[TableParts], logs: Sequence[RowLog], hand: Hand, kernels: Kernels) -> None:
        self._tables, self._logs, self._hand, self._kernels = tables, logs, hand, kernels
        self.hot_share = 1.0
        """The part of all rows to be loaded, by bytes, that may be in memory."""

    def expect(self, rows: Sequence[int]) -> None:
        """Share the budget among rows to be loaded, `rows` by table. []: whatever comes may be hot."""
        room_bytes = self._hand.low * self._hand.budget_bytes - self._hand.used_bytes - sum(rows) * _BESIDE_BYTES
        all_bytes = sum(count * table.form.row_bytes for count, table in zip(rows, self._tables, strict=False))
        self.hot_share = min(1.0, max(0.0, room_bytes / all_bytes)) if all_bytes else 1.0

    def fits(self, number: int, rows: int) -> bool:
        """Return whether `rows` more rows of a table may all be hot, or can be nothing else."""
        if not (self._hand.has_disk or self._hand.warms[number]):
            return True
        room_bytes = self._hand.low * self._hand.budget_bytes - self._hand.used_bytes
        return self.hot_share >= 1.0 and rows * (self._tables[number].form.row_bytes + _BESIDE_BYTES) <= room_bytes

    def load(self, number: int, part: int, keys: U64, rows: F32, epoch: int) -> None:
        """Give an empty part rows [n, words]: the first ones hot, as far as the budget goes, the others warm or cold.

        Rows are in order of arrival, and what came first is used most. Raises StoreFull, OSError.
        """
        table, hand = self._tables[number], self._hand
        if hand.warms[number]:
            hot, warm = self._loaded(number, rows)
        else:
            room = self._room_for(number, len(keys)) // table.form.row_bytes
            hot, warm = np.arange(len(keys)) < room, np.zeros(len(keys), np.bool_)
        table.tier(part)
        for some in self._pieces(number, len(keys)):
            table.grow(part, some.start + len(keys[some]), table.hot(part) + len(keys[some]))
            added = table.append(part, keys[some], epoch)
            table.rows(part)[-len(keys[some]) :] = rows[some]
            places = np.uint64(part << 32) | np.arange(added.start, added.stop, dtype=np.uint64)
            hand.doze(number, part, places[warm[some]])
            self._release(number, places, ~(hot | warm)[some], keys[some], rows[some])
            table.trim(part)
        self._kernels.rebuild(table, part)

    def _release(self, number: int, places: U64, cold: Bools, keys: U64, rows: F32) -> None:
        """Make the rows cold for which `cold` is true. Raises OSError."""
        records = self._logs[number].allot(int(cold.sum())) if cold.any() else np.zeros(0, np.uint64)
        try:
            self._logs[number].write(records, keys[cold], np.ascontiguousarray(rows[cold]))
        except OSError:
            self._logs[number].drop(records)
            raise
        self._kernels.release(self._tables[number], places[cold], records)

    def _pieces(self, number: int, rows: int) -> Iterator[slice]:
        """Yield the ranges of rows that are loaded at once."""
        step = max(1, _AT_ONCE_BYTES // self._tables[number].form.row_bytes)
        yield from (slice(begin, begin + step) for begin in range(0, max(1, rows), step))

    def _room_for(self, number: int, rows: int) -> int:
        """Return the bytes that the words of a part's `rows` may take in memory."""
        room_bytes = self._hand.low * self._hand.budget_bytes - self._hand.used_bytes - rows * _BESIDE_BYTES
        return int(max(0.0, min(self.hot_share * rows * self._tables[number].form.row_bytes, room_bytes)))

    def _loaded(self, number: int, rows: F32) -> tuple[Bools, Bools]:
        """Return which rows of a part to load as hot, and which as warm: [n] each.

        Rows that rounding does not change are warm, as they were. So an image of warm rows gives the same values.
        """
        form = self._tables[number].form
        same = np.concatenate([is_rounded(form, rows[some]) for some in self._pieces(number, len(rows))])
        room_bytes = self._room_for(number, len(rows))
        if self._hand.has_disk:
            hot = ~same & (np.cumsum(~same) <= room_bytes // form.row_bytes)
            warm_room = (room_bytes - int(hot.sum()) * form.row_bytes) // form.warm_bytes
            return hot, same & (np.cumsum(same) <= warm_room)
        more = (room_bytes - len(rows) * form.warm_bytes) // (form.row_bytes - form.warm_bytes)
        hot = ~same & (np.cumsum(~same) <= more)
        return hot, ~hot

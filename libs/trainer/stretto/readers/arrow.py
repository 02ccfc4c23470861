"""Parquet files and Arrow IPC files, with random access by row groups or record batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import DataError
from ..keys import hash_strings
from . import Batch, check_range, log_counts
from .criteo import CATEGORIES, INTEGERS

_MAGIC_ARROW = b"ARROW1"
_MAGIC_PARQUET = b"PAR1"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A row group or record batch: the smallest unit that is read."""

    start: int
    rows: int
    file: int
    number: int


class Arrow:
    """Random access to Parquet and Arrow files, in the order of the files and their rows. ``size``: samples in them.

    label: the column of the label, 0 or 1. dense: numeric columns (missing: 0), compressed to log(1 + x) if
    ``log_dense``. categorical: columns of non-negative integers below 2^48 - 1 or of strings (missing: 0).
    """

    def __init__(
        self,
        paths: str | Sequence[str],
        *,
        label: str = "label",
        dense: Sequence[str] = INTEGERS,
        categorical: Sequence[str] = CATEGORIES,
        log_dense: bool = True,
    ) -> None:
        self.paths = [paths] if isinstance(paths, str) else list(paths)
        self._label = label
        self._dense = list(dense)
        self._categorical = list(categorical)
        self._log_dense = log_dense
        self._columns = [label, *self._dense, *self._categorical]
        self._files = [_open(path, self._columns) for path in self.paths]
        self._pieces: list[_Piece] = []
        position = 0
        for number, file in enumerate(self._files):
            for piece in range(file.pieces):
                rows = file.rows(piece)
                self._pieces.append(_Piece(position, rows, number, piece))
                position += rows
        self.size = position
        self._starts = np.array([piece.start for piece in self._pieces], np.int64)
        self._last: tuple[_Piece, Any] | None = None

    def read(self, start: int, length: int) -> Batch:
        """Return samples [start, start + length): ``label``, ``numeric``, ``categorical``."""
        check_range(start, length, self.size, ", ".join(self.paths[:3]))
        tables: list[Any] = []
        first = max(0, int(np.searchsorted(self._starts, start, side="right")) - 1)
        for piece in self._pieces[first:]:
            if piece.start >= start + length:
                break
            low = max(start, piece.start) - piece.start
            high = min(start + length, piece.start + piece.rows) - piece.start
            if high > low:
                tables.append(self._table(piece).slice(low, high - low))
        if not tables:
            return {
                "label": np.zeros(0, np.float32),
                "numeric": np.zeros((0, len(self._dense)), np.float32),
                "categorical": np.zeros((0, len(self._categorical)), np.int64),
            }
        return self._batch(pa.concat_tables(tables), start)

    def _table(self, piece: _Piece) -> Any:
        # shards are read in order, batch after batch: most reads need the same piece as the read before
        if self._last is None or self._last[0] != piece:
            self._last = (piece, self._files[piece.file].read(piece.number))
        return self._last[1]

    def _batch(self, table: Any, start: int) -> Batch:
        label = _numbers(table, self._label, start, missing=None)
        wrong = np.flatnonzero((label != 0) & (label != 1))
        if len(wrong):
            raise DataError(f"row {start + int(wrong[0])}: {self._label} = {label[wrong[0]]}, expected 0 or 1")
        dense = _stack([_numbers(table, name, start, missing=0.0) for name in self._dense], len(label), np.float32)
        if self._log_dense:
            dense = log_counts(dense, np.zeros(dense.shape, np.bool_))
        categorical = [_categories(table, name, start) for name in self._categorical]
        return {
            "label": label.astype(np.float32),
            "numeric": dense,
            "categorical": _stack(categorical, len(label), np.int64),
        }


class _Parquet:
    def __init__(self, path: str, columns: list[str]) -> None:
        self._file = pq.ParquetFile(path, memory_map=True)
        self._columns = columns
        self.names = set(self._file.schema_arrow.names)
        self.pieces = self._file.num_row_groups

    def rows(self, piece: int) -> int:
        return int(self._file.metadata.row_group(piece).num_rows)

    def read(self, piece: int) -> Any:
        return self._file.read_row_group(piece, columns=self._columns, use_threads=False)


class _Ipc:
    def __init__(self, path: str, columns: list[str]) -> None:
        self._file = pa.ipc.open_file(pa.memory_map(path))
        self._columns = columns
        self.names = set(self._file.schema.names)
        self.pieces = self._file.num_record_batches

    def rows(self, piece: int) -> int:
        return int(self._file.get_batch(piece).num_rows)

    def read(self, piece: int) -> Any:
        return pa.Table.from_batches([self._file.get_batch(piece)]).select(self._columns)


def _open(path: str, columns: list[str]) -> _Parquet | _Ipc:
    try:
        with open(path, "rb") as file:
            head = file.read(6)
        if head.startswith(_MAGIC_PARQUET):
            opened: _Parquet | _Ipc = _Parquet(path, columns)
        elif head == _MAGIC_ARROW:
            opened = _Ipc(path, columns)
        else:
            raise DataError(f"{path} is neither a Parquet nor an Arrow IPC file")
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    missing = [name for name in columns if name not in opened.names]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; it has {sorted(opened.names)[:20]}")
    return opened


def _numbers(table: Any, name: str, start: int, missing: float | None) -> NDArray[np.float64]:
    column = table.column(name)
    if missing is None and column.null_count:
        row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(f"row {row}: {name} is missing")
    try:
        values = column.cast(pa.float64()).fill_null(missing or 0.0).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"column {name!r} has type {column.type}, expected numbers: {error}") from error
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise DataError(f"row {start + int(bad[0])}: {name} = {values[bad[0]]}, expected a finite number")
    return values


def _categories(table: Any, name: str, start: int) -> NDArray[np.int64]:
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_integer(column.type):
        absent = column.is_null().to_numpy(zero_copy_only=False)
        values = pc.fill_null(column.cast(pa.int64()), 0).to_numpy()
        bad = np.flatnonzero((values < 0) | (values >= 2**48 - 1))
        if len(bad):
            raise DataError(f"row {start + int(bad[0])}: {name} = {values[bad[0]]}, expected 0 to 2^48 - 2")
        return np.where(absent, 0, values + 1)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_binary(column.type):
        return hash_strings(column.to_pylist())
    raise DataError(f"column {name!r} has type {column.type}, expected integers or strings")


def _stack(columns: list[NDArray[Any]], rows: int, kind: type) -> NDArray[Any]:
    return np.stack(columns, axis=1).astype(kind) if columns else np.zeros((rows, 0), kind)

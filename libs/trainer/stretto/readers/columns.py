"""Arrow tables to the arrays of a batch: every cell is checked, and a bad one is known by row, column and value."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from ..errors import DataError
from . import Batch, log_counts
from .hashing import VALUE_BITS, hash_strings, hash_values

pc: Any = pyarrow.compute  # its functions are made at run time: type checkers know few of them

_KEPT_BELOW = 2**VALUE_BITS - 1
"""Integers from 0 to below it are their own value plus 1; any other is hashed."""
_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of the data, by their part in a batch (see Arrow)."""

    label: str
    dense: tuple[str, ...]
    categorical: tuple[str, ...]
    lists: Mapping[str, int]
    weight: str | None
    others: tuple[str, ...]
    log_dense: bool
    is_binary: bool

    def names(self) -> list[str]:
        """Return the columns to read, each once."""
        weight = [self.weight] if self.weight else []
        return list(dict.fromkeys([self.label, *self.dense, *self.categorical, *self.lists, *weight, *self.others]))

    def row_bytes(self) -> int:
        """Return the bytes of a row in a batch; of text, which has no fixed size, 64 are assumed."""
        widths = len(self.categorical) + sum(self.lists.values())
        return 4 + 4 * len(self.dense) + 8 * widths + 4 * bool(self.weight) + 64 * len(self.others)

    def empty(self) -> Batch:
        """Return a batch of no rows."""
        batch: Batch = {
            "label": np.zeros(0, np.float32),
            "numeric": np.zeros((0, len(self.dense)), np.float32),
            "categorical": np.zeros((0, len(self.categorical)), np.int64),
            **{name: np.zeros((0, width), np.int64) for name, width in self.lists.items()},
        }
        return batch | ({"weight": np.zeros(0, np.float32)} if self.weight else {})


@dataclass(frozen=True, slots=True)
class Bad:
    """A cell that cannot be used: column, its value, and the form that it should have."""

    column: str
    value: Any
    expected: str

    def __str__(self) -> str:
        shown = "is missing" if self.value is None else f"= {_short(self.value)}"
        return f"{self.column} {shown}, expected {self.expected}" if self.column else str(self.value)


def array_of(column: Any, missing: float = 0) -> NDArray[Any]:
    """Return numbers or truths of an Arrow array, `missing` where there is none.

    They are taken by their memory: Arrow's own ways between arrays and Python, `pa.array`, `pa.scalar` and `to_numpy`,
    import pandas wherever that is installed, which is half a second and 45 MB of every process that reads.
    """
    if pa.types.is_boolean(column.type):
        return array_of(column.cast(pa.uint8()), missing).view(np.bool_)
    kind = np.dtype(column.type.to_pandas_dtype())
    if not len(column):
        return np.zeros(0, kind)
    values = np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)
    return np.where(array_of(column.is_valid()), values, kind.type(missing)) if column.null_count else values


def rows_of(table: Any, rows: NDArray[np.int64]) -> Any:
    """Return some rows of a table."""
    return table.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)]))


def repeated(text: str | None, times: int) -> Any:
    """Return a column of one text."""
    if text is None:
        return pa.nulls(times, pa.string())
    content = text.encode()
    ends = pa.py_buffer(np.array([0, len(content)], np.int32))
    return pa.repeat(pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(content)])[0], times)


def to_batch(table: Any, columns: Columns, of_folders: Container[str] = ()) -> tuple[Batch, dict[int, Bad]]:
    """Return the arrays of a table, and its bad rows. of_folders: columns whose integers are text, as in "day=3".

    Raises DataError where a whole column is of the wrong type.
    """
    bad: dict[int, Bad] = {}
    rows = table.num_rows

    def numbers(name: str, missing: float | None, expected: str = "a finite number") -> NDArray[np.float64]:
        return _numbers(_plain(table.column(name)), name, missing, expected, bad)

    def stated(name: str) -> Any:
        column = _plain(table.column(name))
        is_integer = name in of_folders and pc.all(pc.match_substring_regex(column, _INTEGER)).as_py()
        return column.cast(pa.int64()) if is_integer else column

    label_form = "0 or 1" if columns.is_binary else "a finite number"
    label = numbers(columns.label, None, label_form)
    if columns.is_binary:
        _note(bad, (label != 0) & (label != 1), columns.label, label, label_form)
    dense = np.empty((rows, len(columns.dense)), np.float32)
    for place, name in enumerate(columns.dense):
        dense[:, place] = numbers(name, 0.0)
    if columns.log_dense:
        dense = log_counts(dense, np.zeros(dense.shape, np.bool_))
    categorical = np.empty((rows, len(columns.categorical)), np.int64)
    for place, name in enumerate(columns.categorical):
        categorical[:, place] = _categories(stated(name), name, bad)
    batch: Batch = {"label": label.astype(np.float32), "numeric": dense, "categorical": categorical}
    for name, width in columns.lists.items():
        batch[name] = _padded(stated(name), name, width)
    if columns.weight:
        weight = numbers(columns.weight, None, "a number of at least 0")
        _note(bad, weight < 0, columns.weight, weight, "a number of at least 0")
        batch["weight"] = weight.astype(np.float32)
    for name in columns.others:
        batch[name] = _as_it_is(_plain(table.column(name)), name)
    return batch, bad


def moments(column: Any, name: str, limit: Any) -> NDArray[Any]:
    """Return a column of times in a form that compares with :func:`moment`: microseconds of UTC, or numbers.

    Missing or malformed times are before everything.
    """
    column = _plain(column)
    if isinstance(limit, str | date):
        try:
            if _is_text(column.type):
                return np.array([_text_moment(text) for text in _texts(column, name).to_pylist()], np.int64)
            if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
                return array_of(_microseconds_in(column), _LONG_AGO)
        except pa.ArrowException as error:
            raise DataError(f"column {name!r} of type {column.type} has no times: {error}") from error
        raise DataError(
            f"column {name!r} has type {column.type}, which does not compare with {limit!r}; "
            "state the limit as a number in the column's own unit"
        )
    return _numbers(column, name, -np.inf, "a number", {})


def moment(limit: Any, name: str) -> Any:
    """Return a limit of time as :func:`moments` returns a column: microseconds of UTC, or the number itself."""
    if isinstance(limit, datetime):
        return _microseconds(limit)
    if isinstance(limit, date):
        return _microseconds(datetime(limit.year, limit.month, limit.day, tzinfo=UTC))
    if isinstance(limit, str):
        stated = _text_moment(limit)
        if stated == _LONG_AGO:
            raise DataError(f"{name} = {limit!r}: expected a date or time as in 2026-11-24 or 2026-11-24T12:00:00Z")
        return stated
    return limit


_LONG_AGO = -(2**63)


def _microseconds_in(column: Any) -> Any:
    """Return dates, times of a day or points in time as integers."""
    if pa.types.is_time(column.type):
        return column.cast(pa.time64("us"), safe=False).cast(pa.int64())
    return column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False).cast(pa.int64())


def _text_moment(text: str | None) -> int:
    try:
        return _LONG_AGO if text is None else _microseconds(datetime.fromisoformat(text.strip()))
    except ValueError:
        return _LONG_AGO


def _microseconds(time: datetime) -> int:
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 10**6 + since.microseconds


def _note(bad: dict[int, Bad], wrong: NDArray[np.bool_], name: str, values: Any, expected: str) -> None:
    for row in np.flatnonzero(wrong):
        value = values[row]
        bad.setdefault(int(row), Bad(name, value.item() if hasattr(value, "item") else value, expected))


def _numbers(column: Any, name: str, missing: float | None, expected: str, bad: dict[int, Bad]) -> NDArray[np.float64]:
    cells = column
    if _is_text(column.type):
        column = _parsed(pc.utf8_trim_whitespace(_texts(column, name)))
        malformed = array_of(pc.and_(column.is_null(), cells.is_valid()))
        _note(bad, malformed, name, _Cells(cells), expected)
    try:
        column = column.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"column {name!r} has type {column.type}, expected numbers: {error}") from error
    if missing is None and cells.null_count:
        _note(bad, array_of(cells.is_null()), name, _Cells(cells), expected)
    values = array_of(column, missing or 0.0)
    finite = np.isfinite(values)
    if not finite.all() and missing != -np.inf:
        _note(bad, ~finite, name, values, expected)
        values = np.where(finite, values, 0.0)
    return values


def _parsed(text: Any) -> Any:
    """Parse numbers; null where a text is no number. Infinity and NaN are numbers to the parser, and refused later."""
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        numeric = pc.match_substring_regex(text, r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$")
        return pc.if_else(numeric, text, None).cast(pa.float64())


class _Cells:
    """The cells of an array as Python values, by row."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __getitem__(self, row: int) -> Any:
        return self._column[int(row)].as_py()


def _plain(column: Any) -> Any:
    """Return a column's cells without the forms that writers give them: chunks, dictionaries, views of text."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_binary_view(kind):
        return column.cast(pa.binary())
    return column


def _categories(column: Any, name: str, bad: dict[int, Bad] | None) -> NDArray[np.int64]:
    """Return categories in [1, 2^48), missing ones 0. bad: None refuses the column for a cell that is no category.

    A category is text or an integer: a decimal or float that is whole counts as one, a date by its day since 1970, a
    time by its microsecond. Raises DataError.
    """
    kind = column.type
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.int64)
    if _is_text(kind):
        encoded = column.dictionary_encode()
        values = hash_strings(encoded.dictionary.to_pylist())
        if not len(values):
            return np.zeros(len(column), np.int64)
        codes = array_of(encoded.indices, -1)
        return np.where(codes < 0, 0, values[codes])
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        floats = array_of(column.cast(pa.float64()), np.nan)
        broken = ~np.isnan(floats) & (floats != np.round(floats)) | np.isinf(floats)
        if bad is not None:
            _note(bad, broken, name, floats, _WHOLE)
        elif broken.any():
            raise DataError(f"{name} = {floats[broken][0]:g}, expected {_WHOLE}")
        absent = broken | np.isnan(floats)
        with np.errstate(invalid="ignore"):  # of numbers that no integer of 64 bits is
            return _of_integers(np.where(absent, 0.0, floats).astype(np.int64), absent)
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        column = column.cast(pa.date32()).cast(pa.int32()) if pa.types.is_date(kind) else _microseconds_in(column)
    elif not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"column {name!r} has type {kind}, expected integers or strings")
    absent = array_of(column.is_null()) if column.null_count else None
    return _of_integers(array_of(column.cast(pa.int64(), safe=False), 0), absent)


_WHOLE = "a category that is whole or text; write bins or text"


def _of_integers(values: NDArray[np.int64], absent: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    found = values + 1
    outside = (values < 0) | (values >= _KEPT_BELOW)
    if outside.any():
        found[outside] = np.maximum(hash_values(values[outside]), 1)
    if absent is not None:
        found[absent] = 0
    return found


def _padded(column: Any, name: str, width: int) -> NDArray[np.int64]:
    """Return lists as an array [n, width]: the first ``width`` categories of each, then 0."""
    kind = column.type
    found = np.zeros((len(column), width), np.int64)
    if not _is_list(kind):
        found[:, 0] = _categories(column, name, None)  # a single category is a list of one
        return found
    lengths = array_of(pc.list_value_length(column), 0).astype(np.int64)
    values = _categories(_plain(pc.list_flatten(column)), name, None)
    places = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows = np.repeat(np.arange(len(column)), lengths)
    kept = places < width
    found[rows[kept], places[kept]] = values[kept]
    return found


def _as_it_is(column: Any, name: str) -> NDArray[Any]:
    """Return a column under its own name: float32, int64 or text [n], vectors float32 [n, width]. Missing: 0 or "".

    Raises DataError.
    """
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return array_of(column.cast(pa.int64()), 0)
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return array_of(column.cast(pa.float32()), 0.0)
    if _is_text(kind):
        return np.array([text or "" for text in _texts(column, name).to_pylist()], dtype=object)
    if _is_list(kind) and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        return _vectors(column, name)
    raise DataError(f"column {name!r} has type {kind}, expected numbers, text or vectors; lists= takes lists of ids")


def _vectors(column: Any, name: str) -> NDArray[np.float32]:
    lengths = np.unique(array_of(pc.list_value_length(column), 0))
    if len(lengths) > 1:
        raise DataError(
            f"column {name!r} has lists of {lengths[0]} to {lengths[-1]} numbers, expected vectors of one length; "
            "pad them, or read lists of ids by lists="
        )
    return array_of(pc.list_flatten(column).cast(pa.float32()), 0.0).reshape(len(column), -1)


def _texts(column: Any, name: str) -> Any:
    """Return text and bytes as text. Raises DataError."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise DataError(f"column {name!r} has bytes that are no UTF-8 ({error}); write it as text") from error


def _is_text(kind: Any) -> bool:
    is_binary = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return bool(is_binary or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: Any) -> bool:
    is_view = pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind)
    return bool(is_view or pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _short(value: Any) -> str:
    return (
        repr(value)[:60] if isinstance(value, str | bytes) else f"{value:g}" if isinstance(value, float) else str(value)
    )

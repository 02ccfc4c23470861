"""Arrow tables to the arrays of a batch: every cell is checked, and a bad one is known by row, column and value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, cast

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
_INTEGER_19 = r"^[1-9][0-9]{18}$"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of the data, by their part in a batch (see Arrow)."""

    label: str
    dense: tuple[str, ...]
    categorical: tuple[str, ...]
    lists: Mapping[str, int]
    weight: str | None
    others: Mapping[str, type | None]
    """Column -> float, int or str; None: as the file has it, which text files say of nothing but str."""
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


def to_batch(table: Any, columns: Columns, is_text: Callable[[str], bool]) -> tuple[Batch, dict[int, Bad]]:
    """Return the arrays of a table, and its bad rows. is_text: whether a column's numbers are written as text.

    Raises DataError where a whole column is of the wrong type.
    """
    bad: dict[int, Bad] = {}
    rows = table.num_rows

    def numbers(name: str, missing: float | None, expected: str = "a finite number") -> NDArray[np.float64]:
        return _numbers(table.column(name), name, missing, expected, is_text(name), bad)

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
        categorical[:, place] = _categories(table.column(name), name, is_text(name))
    batch: Batch = {"label": label.astype(np.float32), "numeric": dense, "categorical": categorical}
    for name, width in columns.lists.items():
        batch[name] = _padded(table.column(name), name, width, is_text(name))
    if columns.weight:
        weight = numbers(columns.weight, None, "a number of at least 0")
        _note(bad, weight < 0, columns.weight, weight, "a number of at least 0")
        batch["weight"] = weight.astype(np.float32)
    for name, kind in columns.others.items():
        if kind in (float, int):
            batch[name] = numbers(name, 0.0).astype(np.float32 if kind is float else np.int64)
        else:
            batch[name] = _as_it_is(table.column(name), name)
    return batch, bad


def moments(column: Any, name: str, limit: Any) -> NDArray[Any]:
    """Return a column of times in a form that compares with :func:`moment`: microseconds of UTC, or numbers.

    Missing or malformed times are before everything.
    """
    if isinstance(limit, str | date):
        try:
            if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or _is_binary(column.type):
                texts = column.cast(pa.string()).to_pylist()
                return np.array([_text_moment(text) for text in texts], np.int64)
            if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
                stamp = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False).cast(pa.int64())
                return cast("NDArray[Any]", pc.fill_null(stamp, _LONG_AGO).to_numpy())
        except pa.ArrowException as error:
            raise DataError(f"column {name!r} of type {column.type} has no times: {error}") from error
        raise DataError(
            f"column {name!r} has type {column.type}, which does not compare with {limit!r}; "
            "state the limit as a number in the column's own unit"
        )
    bad: dict[int, Bad] = {}
    is_text = not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
    return _numbers(column, name, -np.inf, "a number", is_text, bad)


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


def _numbers(
    column: Any, name: str, missing: float | None, expected: str, is_text: bool, bad: dict[int, Bad]
) -> NDArray[np.float64]:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    cells = column
    if is_text and (pa.types.is_string(column.type) or _is_binary(column.type)):
        column = _parsed(pc.utf8_trim_whitespace(column.cast(pa.string())))
        malformed = pc.and_(column.is_null(), cells.is_valid()).to_numpy(zero_copy_only=False)
        _note(bad, malformed, name, _Cells(cells), expected)
    try:
        column = column.cast(pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"column {name!r} has type {column.type}, expected numbers: {error}") from error
    if missing is None and cells.null_count:
        _note(bad, cells.is_null().to_numpy(zero_copy_only=False), name, _Cells(cells), expected)
    values = cast("NDArray[np.float64]", column.fill_null(missing or 0.0).to_numpy(zero_copy_only=False))
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


def _categories(column: Any, name: str, is_text: bool) -> NDArray[np.int64]:
    """Return categories in [1, 2^48), missing ones 0."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_integer(column.type):
        absent = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        column = pc.fill_null(column, 0) if column.null_count else column
        values = column.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)
        return _of_integers(values, absent)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or _is_binary(column.type):
        encoded = column.dictionary_encode()
        words = encoded.dictionary
        values = _of_cells(words) if is_text else hash_strings(words.to_pylist())
        if not len(values):
            return np.zeros(len(column), np.int64)
        codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
        return np.where(codes < 0, 0, values[codes])
    raise DataError(f"column {name!r} has type {column.type}, expected integers or strings")


def _of_integers(values: NDArray[np.int64], absent: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    found = values + 1
    outside = (values < 0) | (values >= _KEPT_BELOW)
    if outside.any():
        found[outside] = np.maximum(hash_values(values[outside]), 1)
    if absent is not None:
        found[absent] = 0
    return found


def _of_cells(words: Any) -> NDArray[np.int64]:
    """Return the categories of cells of text; a text that is an integer counts as the integer."""
    words = words.cast(pa.string())
    long = pc.and_(pc.match_substring_regex(words, _INTEGER_19), pc.less_equal(words, str(2**63 - 1)))
    integer = pc.or_(pc.match_substring_regex(words, _INTEGER), long)
    is_integer = integer.to_numpy(zero_copy_only=False).astype(np.bool_)
    found = np.zeros(len(words), np.int64)
    if is_integer.any():
        numbers = words.filter(integer).cast(pa.int64()).to_numpy(zero_copy_only=False)
        found[is_integer] = _of_integers(numbers, None)
    if not is_integer.all():
        found[~is_integer] = hash_strings(words.filter(pc.invert(integer)).to_pylist())
    return found


def _padded(column: Any, name: str, width: int, is_text: bool) -> NDArray[np.int64]:
    """Return lists as an array [n, width]: the first ``width`` categories of each, then 0."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if is_text and pa.types.is_string(kind):  # a cell of a CSV file: separated by spaces, commas, semicolons or bars
        column = pc.split_pattern_regex(pc.utf8_trim(column, " ,;|"), r"[ ,;|]+")
    elif not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        found = np.zeros((len(column), width), np.int64)
        found[:, 0] = _categories(column, name, is_text)  # a single category is a list of one
        return found
    found = np.zeros((len(column), width), np.int64)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = pc.list_flatten(column)
    values = _categories(flat, name, is_text)
    if is_text and len(flat):
        values[pc.equal(flat, "").to_numpy(zero_copy_only=False)] = 0
    places = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows = np.repeat(np.arange(len(column)), lengths)
    kept = places < width
    found[rows[kept], places[kept]] = values[kept]
    return found


def _as_it_is(column: Any, name: str) -> NDArray[Any]:
    """Return a column under its own name: float32, int64 or text; missing cells are 0 or an empty text."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return cast("NDArray[Any]", pc.fill_null(column.cast(pa.int64()), 0).to_numpy(zero_copy_only=False))
    if pa.types.is_floating(kind):
        return cast("NDArray[Any]", pc.fill_null(column.cast(pa.float32()), 0.0).to_numpy(zero_copy_only=False))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_binary(kind):
        texts = column.cast(pa.string()) if _is_binary(kind) else column
        return np.array(pc.fill_null(texts, "").to_pylist(), dtype=object)
    raise DataError(f"column {name!r} has type {kind}, expected numbers or text; state lists in lists=")


def _is_binary(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _short(value: Any) -> str:
    return (
        repr(value)[:60] if isinstance(value, str | bytes) else f"{value:g}" if isinstance(value, float) else str(value)
    )

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
from stretto_messages.base import counted

from ..errors import DataError
from . import Batch, log_counts
from .hashing import VALUE_BITS, hash_strings, hash_values

pc: Any = pyarrow.compute  # its functions are made at run time: type checkers know few of them

_KEPT_BELOW = 2**VALUE_BITS - 1
"""Integers from 0 to below it are their own value plus 1; any other is hashed."""
_INTEGER = r"^(0|-?[1-9][0-9]{0,17})$"
_FINITE = "a finite number (of float32, so below 3.4e38)"
_WHOLE = "a category that is whole or text; write bins or text"
_EXACT = "a category that its type holds to the last digit; write integers of 64 bits, or text"
_FLOAT_EXACT = 2.0**53
"""Above it floats are not every integer: two ids may have become one before they were written."""


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

    def __post_init__(self) -> None:
        own = {"label", "numeric", "categorical", "weight"}
        for argument, names, taken in (("others", self.others, own | set(self.lists)), ("lists", self.lists, own)):
            for name in names:
                if name in taken:
                    raise DataError(f"{argument}: a batch has another array {name!r}; rename the column")
        for name, width in self.lists.items():
            if not isinstance(width, int) or width < 1:
                raise DataError(f"lists: {name} = {width!r}, expected the number of items to take, at least 1")

    def names(self) -> list[str]:
        """Return the columns to read, each once."""
        weight = [self.weight] if self.weight else []
        return list(dict.fromkeys([self.label, *self.dense, *self.categorical, *self.lists, *weight, *self.others]))

    def forms(self, schema: Any) -> dict[str, str]:
        """Return the form of each column that is not the same value in every form: the text "7" is no integer 7."""
        own = set(schema.names)
        forms = {name: _form(schema.field(name).type) for name in self.others if name in own}
        for name in [*self.categorical, *self.lists]:
            if name in own:
                forms[name] = _form(schema.field(name).type).removeprefix("lists of ").replace("floats", "integers")
        return {name: form for name, form in forms.items() if form}

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

    def numbers(name: str, missing: float | None, expected: str = _FINITE) -> NDArray[np.float64]:
        return _numbers(_plain(table.column(name)), name, missing, expected, bad)

    def stated(name: str) -> Any:
        column = _plain(table.column(name))
        is_integer = name in of_folders and pc.all(pc.match_substring_regex(column, _INTEGER)).as_py()
        return column.cast(pa.int64()) if is_integer else column

    label_form = "0 or 1" if columns.is_binary else _FINITE
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
        batch[name] = _padded(stated(name), name, width, bad)
    if columns.weight:
        weight = numbers(columns.weight, None, "a number of at least 0")
        _note(bad, weight < 0, columns.weight, weight, "a number of at least 0")
        batch["weight"] = weight.astype(np.float32)
    for name in columns.others:
        batch[name] = _as_it_is(_plain(table.column(name)), name, bad)
    return batch, bad


def moments(column: Any, name: str, limit: Any) -> NDArray[Any]:
    """Return a column of times in a form that compares with :func:`moment`: microseconds of UTC, or numbers.

    Missing or malformed times are before everything.
    """
    column = _plain(column)
    if isinstance(limit, str | date):
        try:
            if _is_text(column.type):
                return np.array([_text_moment(text) for text in _texts(column, name, {}).to_pylist()], np.int64)
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
        column = _parsed(pc.utf8_trim_whitespace(_texts(column, name, bad)))
        malformed = array_of(pc.and_(column.is_null(), cells.is_valid()))
        _note(bad, malformed, name, _Cells(cells), expected)
    if _form(column.type) not in ("", "integers", "floats"):
        raise _wrong(name, column.type, "numbers")
    column = column.cast(pa.float64(), safe=False)
    if missing is None and cells.null_count:
        _note(bad, array_of(cells.is_null()), name, _Cells(cells), expected)
    values = array_of(column, missing or 0.0)
    return values if missing == -np.inf else _finite(values, name, expected, bad)


def _finite(values: NDArray[np.float64], name: str, expected: str, bad: dict[int, Bad]) -> NDArray[np.float64]:
    """Note values that are no finite numbers of float32, and put 0 in their places."""
    with np.errstate(over="ignore"):
        finite = np.isfinite(values.astype(np.float32))
    if finite.all():
        return values
    _note(bad, ~finite, name, values, expected)
    return np.where(finite, values, 0.0)


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
    """Return a column's cells without the forms that writers give them: chunks, dictionaries, runs, views of text."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_run_end_encoded(column.type):
        column = pc.run_end_decode(column)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_string_view(kind):
        return column.cast(pa.string())
    if pa.types.is_binary_view(kind):
        return column.cast(pa.binary())
    return column


def _form(kind: Any) -> str:
    """Return what the values of a type are, in words; equal words are read alike. Empty: it has no values."""
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _form(kind.value_type)
    if _is_list(kind):
        return f"lists of {_form(kind.value_type)}"
    of = {
        "": pa.types.is_null(kind),
        "integers": pa.types.is_integer(kind) or pa.types.is_boolean(kind),
        "floats": pa.types.is_floating(kind) or pa.types.is_decimal(kind),
        "text": _is_text(kind) or pa.types.is_string_view(kind) or pa.types.is_binary_view(kind),
        "dates": pa.types.is_date(kind),
        "times of a day": pa.types.is_time(kind),
        "points in time": pa.types.is_timestamp(kind),
    }
    return next((form for form, holds in of.items() if holds), str(kind))


def _wrong(name: str, kind: Any, expected: str) -> DataError:
    """Return the error for a column of another type, with the remedy for what it has."""
    remedy = "write its fields as columns of their own"
    if pa.types.is_null(kind):
        remedy = "it has no value: leave it out, or write it with a type"
    elif _is_list(kind):
        remedy = "lists of ids are read by lists=, vectors of one length by others="
    elif pa.types.is_temporal(kind):
        remedy = "write a number of a unit, such as seconds"
    return DataError(f"column {name!r} has type {kind}, expected {expected}; {remedy}")


def _categories(column: Any, name: str, bad: dict[int, Bad]) -> NDArray[np.int64]:
    """Return categories in [1, 2^48), missing ones 0.

    A category is text or an integer: a decimal or float that is whole counts as one, a date by its day since 1970, a
    time by its microsecond. Raises DataError.
    """
    form = _form(column.type)
    if not form:
        return np.zeros(len(column), np.int64)
    if form == "text":
        encoded = column.dictionary_encode()
        values = hash_strings(encoded.dictionary.to_pylist())
        if not len(values):
            return np.zeros(len(column), np.int64)
        codes = array_of(encoded.indices, -1)
        return np.where(codes < 0, 0, values[codes])
    if form == "floats":
        column = _whole(column, name, bad)
    elif form == "dates":
        column = column.cast(pa.date32()).cast(pa.int32())
    elif form in ("times of a day", "points in time"):
        column = _microseconds_in(column)
    elif form != "integers":
        raise _wrong(name, column.type, "integers or text")
    absent = array_of(column.is_null()) if column.null_count else None
    return _of_integers(array_of(column.cast(pa.int64(), safe=False)), absent)


def _whole(column: Any, name: str, bad: dict[int, Bad]) -> Any:
    """Return decimals or floats as integers; those that are none, or not to the last digit, are noted and missing."""
    floats = array_of(column.cast(pa.float64()), np.nan)
    if is_decimal := pa.types.is_decimal(column.type):
        wide = column if pa.types.is_decimal256(column.type) else column.cast(pa.decimal128(38, column.type.scale))
        is_broken = array_of(pc.not_equal(pc.floor(wide), wide))
    else:
        is_broken = ~np.isnan(floats) & (floats != np.round(floats)) | np.isinf(floats)
    is_inexact = ~is_broken & (np.abs(floats) >= (2.0**63 if is_decimal else _FLOAT_EXACT))
    _note(bad, is_broken, name, floats, _WHOLE)
    _note(bad, is_inexact, name, floats, _EXACT)
    lost = _truths(is_broken | is_inexact | np.isnan(floats))
    return pc.if_else(lost, pa.nulls(1, column.type)[0], column).cast(pa.int64())


def _truths(values: NDArray[np.bool_]) -> Any:
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(np.packbits(values, bitorder="little"))])


def _of_integers(values: NDArray[np.int64], absent: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    found = values + 1
    outside = (values < 0) | (values >= _KEPT_BELOW)
    if outside.any():
        found[outside] = np.maximum(hash_values(values[outside]), 1)
    if absent is not None:
        found[absent] = 0
    return found


def _padded(column: Any, name: str, width: int, bad: dict[int, Bad]) -> NDArray[np.int64]:
    """Return lists as an array [n, width]: the first ``width`` categories of each, then 0."""
    kind = column.type
    found = np.zeros((len(column), width), np.int64)
    if not _is_list(kind):
        found[:, 0] = _categories(column, name, bad)  # a single category is a list of one
        return found
    lengths = array_of(pc.list_value_length(column)).astype(np.int64)
    rows = np.repeat(np.arange(len(column)), lengths)
    bad_items: dict[int, Bad] = {}
    values = _categories(_plain(pc.list_flatten(column)), name, bad_items)
    for item, each in bad_items.items():
        bad.setdefault(int(rows[item]), each)
    places = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    kept = places < width
    found[rows[kept], places[kept]] = values[kept]
    return found


def _as_it_is(column: Any, name: str, bad: dict[int, Bad]) -> NDArray[Any]:
    """Return a column under its own name: float32, int64 or text [n], vectors float32 [n, width]. Missing: 0 or "".

    Raises DataError.
    """
    kind = column.type
    form = _form(kind)
    if form == "integers" and not pa.types.is_uint64(kind):
        return array_of(column.cast(pa.int64()))
    if form == "integers":
        numbers = array_of(column)
        _note(bad, numbers >= 2**63, name, numbers, "an integer below 2^63")
        return numbers.astype(np.int64)
    if form == "floats":
        return _numbers(column, name, 0.0, _FINITE, bad).astype(np.float32)
    if form == "text":
        return np.array([text or "" for text in _texts(column, name, bad).to_pylist()], dtype=object)
    if form in ("lists of floats", "lists of integers"):
        return _vectors(column, name, bad)
    raise _wrong(name, kind, "numbers, text or vectors")


def _vectors(column: Any, name: str, bad: dict[int, Bad]) -> NDArray[np.float32]:
    """Return lists of numbers as an array [n, width]. Most rows say the width; the others are bad."""
    lengths = array_of(pc.list_value_length(column)).astype(np.int64)
    width = int(np.bincount(lengths[lengths > 0], minlength=1).argmax())
    is_odd = lengths != width
    expected = f"a vector of {counted(width, 'number')}, as most rows have; pad it, or read lists of ids by lists="
    _note(bad, is_odd, name, _Cells(column), expected)
    rows = np.repeat(np.arange(len(column)), lengths)
    bad_items: dict[int, Bad] = {}
    values = _numbers(_plain(pc.list_flatten(column)), name, 0.0, _FINITE, bad_items)
    for item, each in bad_items.items():
        bad.setdefault(int(rows[item]), each)
    found = np.zeros((len(column), width), np.float32)
    found[~is_odd] = values[~is_odd[rows]].reshape((~is_odd).sum(), width)
    return found


def _texts(column: Any, name: str, bad: dict[int, Bad]) -> Any:
    """Return text and bytes as text; bytes that are none are noted, and missing."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        cells = [_decoded(cell) for cell in column.cast(pa.binary()).to_pylist()]
        broken = np.array([cell is None for cell in cells]) & array_of(column.is_valid())
        _note(bad, broken, name, _Cells(column), "text in UTF-8; its bytes are none")
        return pa.array(cells, pa.string())


def _decoded(cell: bytes | None) -> str | None:
    try:
        return None if cell is None else cell.decode()
    except UnicodeDecodeError:
        return None


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

"""Read files that people write as checked values; every fault is one line with field, value and remedy."""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from stretto_wire import given_file

from .errors import BadInput

SHOWN = 60
"""Characters of a wrong value in an error."""
WHOLE_MAX = 2**53
"""Largest whole number: above it, floats do not tell whole numbers apart."""

WORDING = (
    ("Input should be ", ""),
    ("Value error, ", ""),
    ("greater than or equal to ", "at least "),
    ("greater than ", "more than "),
    ("less than or equal to ", "at most "),
    ("a valid integer", "a whole number"),
    ("a valid number", "a number"),
)
"""Words of Stretto for parts of pydantic's messages."""

FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="a file, or - for standard input")]
AlgorithmOption = Annotated[
    str, typer.Option("--algorithm", "-a", help="one of `stretto whatif algorithms`", show_default=True)
]


class BadData(BadInput):
    """Something in a file cannot be used. The error is always one line, also with -o json."""

    one_line = True


class Given(BaseModel):
    """A part of a file: numbers are finite, no text stands for a number, and no field name is misspelled."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, extra="allow")


def _integral(value: object) -> object:
    """Make a whole number that JSON spells with a fraction, such as 512.0 or 5e2, an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Parsed = TypeVar("Parsed", bound=Given)
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Whole = Annotated[int, BeforeValidator(_integral), Field(ge=0, le=WHOLE_MAX)]
Count = Annotated[int, BeforeValidator(_integral), Field(ge=1, le=WHOLE_MAX)]


def refuse(field: str, value: object, expected: str) -> NoReturn:
    """Raise BadData."""
    shown = " ".join((value if isinstance(value, str) else json.dumps(value, default=str)).split())
    shown = shown if len(shown) <= SHOWN else shown[: SHOWN - 1] + "…"
    raise BadData(f"{field}{f' = {shown}' if shown else ' is missing'}: expected {expected}")


def text_of(file: str) -> str:
    """Return the text of the file, or of standard input for "-". Raises BadData."""
    try:
        return given_file.text_of(given_file.read_given(file, given_file.DATA_BYTES))
    except UnicodeDecodeError as error:
        refuse("FILE", file, f"UTF-8 text; byte {error.start} is not")
    except OSError as error:
        refuse("FILE", file, f"a file that can be read ({error.strerror})")


def read_json(file: str, form: type[Parsed]) -> Parsed:
    """Read a JSON file as ``form``. Raises BadData for its first fault."""

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            refuse("FILE", next(name for name in names if names.count(name) > 1), "every field once in its object")
        return found

    try:
        value = json.loads(text_of(file), object_pairs_hook=fields)
    except json.JSONDecodeError as error:
        refuse("FILE", f"line {error.lineno}, column {error.colno}", f"JSON ({error.msg})")
    except ValueError:  # Python's limit for the digits of a whole number
        refuse("FILE", file, f"numbers of at most {sys.get_int_max_str_digits()} digits")
    except RecursionError:
        refuse("FILE", file, "JSON of fewer levels")
    _all_finite(value, "")
    return checked(value, form, "")


def _all_finite(value: Any, place: str) -> None:
    """Refuse the first NaN or infinity by the name of its field, also in a field that no command reads."""
    if isinstance(value, float) and not math.isfinite(value):
        refuse(place or "FILE", value, "a finite number")
    if isinstance(value, dict):
        for name, inner in value.items():
            _all_finite(inner, _joined(place, [name]))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _all_finite(inner, _joined(place, [index]))


def checked(value: Any, form: type[Parsed], place: str) -> Parsed:
    """Return ``value`` as ``form``. Raises BadData for the first fault, with its path below ``place``."""
    if not isinstance(value, dict):
        refuse(place or "FILE", value, "an object with " + ", ".join(form.model_fields))
    try:
        parsed = form.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = _joined(place, first["loc"])
        if first["type"] == "missing":
            refuse(
                at,
                "",
                f"a value; the fields are {', '.join(form.model_fields)}" if len(first["loc"]) == 1 else "a value",
            )
        refuse(at, first["input"], _expected(first["msg"]))
    _nearly_named(parsed, place)
    return parsed


def _expected(message: str) -> str:
    """Turn pydantic's message into what follows "expected"."""
    for theirs, ours in WORDING:
        message = message.replace(theirs, ours)
    return message[:1].lower() + message[1:]


def _joined(place: str, parts: Sequence[str | int]) -> str:
    for part in parts:
        place += f"[{part}]" if isinstance(part, int) else f".{part}" if place else part
    return place


def _nearly_named(parsed: Given, place: str) -> None:
    """Refuse an unknown field whose name is nearly that of a missing one: it is misspelled."""
    left_out = [name for name in type(parsed).model_fields if name not in parsed.model_fields_set]
    for name in parsed.model_extra or {}:
        near = difflib.get_close_matches(name, left_out, n=1, cutoff=0.75)
        if near:
            refuse(_joined(place, [name]), "", f"the field's name to be {near[0]}")
    for name in type(parsed).model_fields:
        inner = getattr(parsed, name)
        for index, part in enumerate(inner) if isinstance(inner, list) else ():
            if isinstance(part, Given):
                _nearly_named(part, _joined(place, [name, index]))
        if isinstance(inner, Given):
            _nearly_named(inner, _joined(place, [name]))


def once(names: Iterable[str], field: str) -> None:
    """Refuse a repeated name."""
    seen = set[str]()
    for name in names:
        if name in seen:
            refuse(field, name, "every id once")
        seen.add(name)


def read_csv(file: str, form: type[Parsed]) -> list[Parsed]:
    """Read a CSV file with a header as one ``form`` per row; a field with a default needs no column. Raises BadData."""
    reader = csv.reader(io.StringIO(text_of(file)), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header, form)
        return [_row(values, header, form, reader.line_num) for values in reader if values]
    except csv.Error as error:
        refuse("FILE", f"line {reader.line_num}", f"CSV ({error})")


def _check_header(header: list[str], form: type[Given]) -> None:
    once(header, "header")
    known = form.model_fields
    for name in header:
        near = difflib.get_close_matches(name, [field for field in known if field not in header], n=1, cutoff=0.75)
        if name not in known and near:
            refuse("header", name, f"the column's name to be {near[0]}")
    for name, field in known.items():
        if field.is_required() and name not in header:
            refuse("header", ",".join(header), f"a column {name}")


def _row(values: list[str], header: list[str], form: type[Parsed], line: int) -> Parsed:
    if len(values) != len(header):
        refuse(f"line {line}", ",".join(values), f"{len(header)} values, one for each column; found {len(values)}")
    return checked(dict(_typed(values, header, form, line)), form, f"line {line}")


def _typed(values: list[str], header: list[str], form: type[Given], line: int) -> Iterator[tuple[str, Any]]:
    for name, text in zip(header, values, strict=True):
        field = form.model_fields.get(name)
        if field is None:
            continue
        if field.annotation is str:
            yield name, text.strip()
            continue
        try:
            number = float(text)
        except ValueError:
            refuse(f"line {line}.{name}", text, "a number")
        if not math.isfinite(number):
            refuse(f"line {line}.{name}", text, "a finite number")
        whole = field.annotation is int
        if whole and number != int(number):
            refuse(f"line {line}.{name}", text, "a whole number")
        yield name, int(number) if whole else number

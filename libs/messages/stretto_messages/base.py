"""The base of every message and the vocabulary of its fields: names, bounds and units.

A field's unit stands in its name (``_s`` seconds, ``_bytes``, ``_cores``, ``_per_hour``); a field without a unit is a
count or a name. Bounds keep every message below :data:`MAX_MESSAGE_BYTES`. They are checked where a message is read or
written (:mod:`stretto_wire.codec`), not where it is made: a machine makes thousands that nobody publishes.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, ClassVar, TypeVar

from annotated_types import Ge, Le, MaxLen, MinLen

GIB = 2**30
MAX_MESSAGE_BYTES = 256 * 1024
"""Largest message that a publisher may send and a reader has to accept; the server's own limit is 1 MiB."""


class InvalidValue(ValueError):
    """A value outside its domain; the text names the field, the value and the remedy."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """The whole text matches this regular expression."""

    regex: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Tell pydantic, which this package does not import, about the pattern."""
        return {**handler(source), "pattern": self.regex}


@dataclass(frozen=True, slots=True)
class Doc:
    """Describes a type that many fields share."""

    text: str

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> Any:
        """Put the description into the JSON Schema."""
        return {**handler(core_schema), "description": self.text}


JOB_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
JobId = Annotated[
    str,
    Pattern(JOB_PATTERN),
    Doc("a DNS label: lower-case letters, digits and hyphens, at most 63; one token of a subject"),
]
NO_SERVERS = (1, 0.001, 2**20)
"""Number, cores and bytes of parameter servers in the plan of a job that has none: no server could run so small."""
EXACT = 3
"""The level of a job that trains a model of Stretto's; programs have lower ones."""
CLUSTER = "_"
"""The key of the one machine that sees the messages of every job, and the job of the questions that it answers."""
ClusterKey = Annotated[str, Pattern(r"^_$"), Doc("stands for the whole cluster")]
POD_PATTERN = r"^(worker|ps|data)-[0-9]{1,9}$"
PodId = Annotated[str, Pattern(POD_PATTERN), Doc("role and number; a number is never used again within a job")]
TEXT_MAX = 2000
"""Longest ``Text``, in characters."""
Text = Annotated[str, MaxLen(TEXT_MAX)]
Name = Annotated[str, MinLen(1), MaxLen(200)]
DEFAULT_TEAM = "default"
"""Team of everybody whose token names none."""
Team = Annotated[str, Pattern(JOB_PATTERN), Doc("lower-case letters, digits and hyphens, at most 63")]
RequestId = Annotated[str, Pattern(r"^[A-Za-z0-9_.:-]{1,100}$")]

Count = Annotated[int, Ge(0), Le(10**15)]
Seconds = Annotated[float, Ge(0), Le(10**9)]
EpochSeconds = Annotated[float, Ge(0), Le(10**11), Doc("seconds since 1970-01-01 UTC")]
RATE_MAX = 10**12
Rate = Annotated[float, Ge(0), Le(RATE_MAX), Doc("samples per second")]
Cores = Annotated[float, Ge(0), Le(100_000)]
RowBytes = Annotated[
    float, Ge(0), Le(2**32), Doc("bytes of an embedding row: weights, slots, entry and share of the index")
]
Bytes = Annotated[int, Ge(0), Le(2**53 - 1)]  # the largest integer all JSON readers agree on (RFC 8259 section 6)
Money = Annotated[float, Ge(0), Le(10**12)]
Fraction = Annotated[float, Ge(0), Le(1)]


def counted(number: int, noun: str, many: str = "") -> str:
    """Return a number with its noun: 1 file, 2,000 files. ``many``: the plural, unless an s makes it."""
    return f"{number:,} {noun if number == 1 else many or f'{noun}s'}"


def three_digits(value: float, sign: str = "") -> str:
    """Return a number with at most three digits that count; thousands are separated. ``sign``: "+" marks a gain."""
    if abs(value) >= 999.5:
        digits = len(f"{abs(value):.0f}") - 3
        return f"{round(value, -digits):{sign},.0f}"
    told = f"{value:{sign}.3g}" if abs(value) >= 0.01 or not sign else f"{value:{sign}.2f}"
    return f"{value:.8f}".rstrip("0").rstrip(".") if "e" in told else told


def bounded(text: str) -> str:
    """Cut a text to the length that ``Text`` allows: a reason that is too long must not cost the message."""
    return text[:TEXT_MAX]


class Described:
    """The base of records whose fields are described by their docstrings."""

    __slots__ = ()

    SELDOM: ClassVar[frozenset[str]] = frozenset()
    """Fields that writers leave out while they are empty: a fact of which most writers have none costs them no byte."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Tell pydantic which fields are left out while they are empty."""
        schema = handler(source)
        fields = schema["schema"]["fields"] if cls.SELDOM and schema["type"] == "dataclass" else ()
        for each in fields:
            if each["name"] in cls.SELDOM:
                each["serialization_exclude_if"] = _is_empty
        return schema

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        """Put the docstrings of fields into the JSON Schema. Pydantic's own way reads them for each validator, too."""
        made = handler(core_schema)
        described = handler.resolve_ref_schema(made)
        for name, text in descriptions_of(cls).items():
            described["properties"][name]["description"] = text
        if cls.SELDOM and "required" in described:
            described["required"] = [name for name in described["required"] if name not in cls.SELDOM]
        return made


def _is_empty(value: object) -> bool:
    return not value


def descriptions_of(kind: type[Any]) -> Mapping[str, str]:
    """Return the docstrings of the fields that a class at the top level of a module states, by their names."""
    return _descriptions_in(kind.__module__).get(kind.__qualname__, {})


@cache
def _descriptions_in(module: str) -> Mapping[str, Mapping[str, str]]:
    classes = [
        each for each in ast.parse(inspect.getsource(sys.modules[module])).body if isinstance(each, ast.ClassDef)
    ]
    return {each.name: dict(_described(each)) for each in classes}


def _described(kind: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in pairwise(kind.body):
        match field, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)
            case _:
                pass


@dataclass(frozen=True, slots=True)
class Record(Described):
    """A value inside messages."""

    # read by pydantic: strict types, unknown fields of a newer writer ignored, bounds checked again before writing
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "strict": True,
        "extra": "ignore",
        "allow_inf_nan": False,
        "ser_json_inf_nan": "null",
        "revalidate_instances": "always",
        "json_schema_serialization_defaults_required": True,  # a writer leaves no field out
        "defer_build": True,  # no process needs all of the messages
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Record):
    """One subject's payload. Every message belongs to a job; the job is the subject's last token."""

    job: JobId


_Record = TypeVar("_Record", bound=Record)
_examples: dict[type[Record], Record] = {}


def example(record: _Record) -> _Record:
    """Register a realistic instance of a message: documents show it, subscribers in other languages test against it."""
    _examples[type(record)] = record
    return record


def examples() -> Mapping[type[Record], Record]:
    """Return the registered examples of all imported modules, by message type."""
    return _examples


def example_of(record_type: type[_Record]) -> _Record:
    """Return the registered example of a message type."""
    found = _examples[record_type]
    assert isinstance(found, record_type)
    return found

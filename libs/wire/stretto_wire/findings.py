"""Findings in a document: each has its place, the value there, and a remedy in plain words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import takewhile
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from stretto_messages.base import Doc, descriptions_of

from .quantities import written_bytes

MOST = 20
"""Largest number of findings that an error lists; further ones are only counted."""

Path = tuple[str | int, ...]
Marks = Mapping[Path, tuple[int, int]]
"""Line and column, from 1, of the value at a path."""

_SURELY_MEANT = 0.9
"""Likeness of two names from which on one is taken for a slip of the other, wherever it stands."""
_WHOLE_TYPES = frozenset({"int_type", "int_from_float", "int_parsing", "int_parsing_size"})
_SCALARS = frozenset({"str", "int", "float", "bool"})
_BOUNDS = ("ge", "gt", "le", "lt", "max_length", "pattern")
_KINDS = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "a mapping of names to values",
    tuple: "a list",
    list: "a list",
}
_BY_TYPE = {
    "string_type": "text",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping of names to values",
    "list_type": "a list",
    "tuple_type": "a list",
    "finite_number": "a finite number",
    "none_required": "nothing",
    "invalid_key": "a name that is text, in quotes if it looks like a number",
    "recursion_loop": "nested less deeply",
    **dict.fromkeys(_WHOLE_TYPES, "a whole number"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One error in a document. ``field``: dotted path; ``line`` and ``column``: from 1, None without a text."""

    field: str
    value: str
    remedy: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = "" if self.line is None else f"line {self.line}, column {self.column}: "
        return f"{place}{self.field} = {self.value}: {self.remedy}"


def short(value: Any, limit: int = 120) -> str:
    """Return ``value`` as short printable text on one line."""
    try:
        text = value if isinstance(value, str) and value else repr(value)
    except (ValueError, RecursionError):  # Python refuses to print integers of thousands of digits
        text = f"a {type(value).__name__} that cannot be printed"
    if len(text) > limit:
        text = f"{text[:limit]}… ({len(text)} characters)"
    return text if text.isprintable() else repr(text)[1:-1]


def finding(path: Iterable[str | int], value: Any, remedy: str, place: tuple[int, int] | None = None) -> Finding:
    """Return a finding whose texts fit a header, a log line or a terminal, whatever the input was."""
    field = ".".join(str(part) for part in path if part != "")
    return Finding(short(field or "(document)"), short(value), short(remedy, 1000), *(place or ()))


class Unfit(ValueError):
    """A part of a document that does not fit its other parts; ``below``: where in the checked part the fault lies."""

    def __init__(self, remedy: str, *below: str) -> None:
        super().__init__(remedy)
        self.below = below


def findings_of(
    errors: Sequence[Any],
    model: type[Any] | None = None,
    marks: Marks | None = None,
    where: str = "",
    document: object = None,
) -> list[Finding]:
    """Return each pydantic error about a document of ``model`` as one finding; ``where`` is prefixed to the paths.

    ``document``: as its author wrote it, for the values of parts that were filled in before the check; None: the
    errors have them.
    """
    found: dict[tuple[Any, ...], Finding] = {}
    for error in errors:
        path: Path = tuple(error["loc"])
        absent = error["type"] == "missing"
        remedy = _remedy(error, path, model)
        unfit = error.get("ctx", {}).get("error")
        if isinstance(unfit, Unfit):
            path += unfit.below
        if path and path[-1] in _SCALARS and error["type"].partition("_")[0] in ("string", "int", "float", "bool"):
            path, remedy = path[:-1], "text, a number, true or false"  # one value, tried as each of the four
        if path and path[-1] == "[key]":
            path = path[:-1]
        value = "absent" if absent else error.get("input")
        if document is not None and isinstance(unfit, Unfit):
            value = _part_of(document, path)
        key = (path, remedy)
        if key not in found:
            found[key] = finding((where, *path), _as_written(value), remedy, place_of(path, marks))
    return sorted(found.values(), key=lambda one: (one.line or 0, one.column or 0))


def _part_of(document: object, path: Path) -> Any:
    """Return what stands at ``path`` of a document, or "absent"."""
    for name in path:
        known: Any = dict(enumerate(document)) if isinstance(document, list) else document
        if not isinstance(known, Mapping) or name not in known:
            return "absent"
        document = known[name]
    return document


def _as_written(value: Any) -> Any:
    """Return a value as its author wrote it: None is "empty", and text that looks like a number has quotes."""
    if value is None:
        return "empty"
    return f'"{value}"' if isinstance(value, str) and _as_number(value) is not None else value


def _as_number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def place_of(path: Path, marks: Marks | None) -> tuple[int, int] | None:
    """Return the place of ``path``, or of its nearest ancestor with a known place."""
    while marks is not None:
        if path in marks:
            return marks[path]
        if not path:
            return None
        path = path[:-1]
    return None


# remedies ----------------------------------------------------------------------------------------------------------


def _remedy(error: Any, path: Path, model: type[Any] | None) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "json_invalid":
        return f"valid JSON: {context['error']}"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return _known_fields(path, model)
    if path and path[-1] == "[key]":
        return f"a name of the form {context['pattern']}" if "pattern" in context else "another name"
    if kind in ("model_type", "model_attributes_type", "dataclass_type") and not path:
        return _mapping(model) if model else "a mapping of fields"
    field = _field(path, model)
    if kind == "missing":
        return "has to be stated" + (f": {_expected(field, {}, least=True)}" if field else "")
    if field is not None:
        return _expected(field, context) + _hint(kind, error.get("input"))
    bounds = _bounded(context)
    if kind in _BY_TYPE:
        return _BY_TYPE[kind] + bounds + _hint(kind, error.get("input"))
    if kind == "literal_error":
        return f"one of {context['expected']}"
    return bounds.lstrip(", ") or str(error["msg"])


NO_SUCH_FIELD = "no such field here"


def _known_fields(path: Path, model: type[Any] | None) -> str:
    name, owner = str(path[-1]), _owner(path, model)
    if owner is None or model is None:
        return NO_SUCH_FIELD
    elsewhere = _paths_of(model)
    if not difflib.get_close_matches(name, _fields_of(owner), cutoff=_SURELY_MEANT):
        for other in difflib.get_close_matches(name, elsewhere, n=1, cutoff=_SURELY_MEANT):
            return f"{NO_SUCH_FIELD}; did you mean {_nearest(path, elsewhere[other])}?"
    near = difflib.get_close_matches(name, _fields_of(owner), n=1, cutoff=0.6)
    if near:
        return f"{NO_SUCH_FIELD}; did you mean {near[0]}?"
    return f"{NO_SUCH_FIELD}; known are {', '.join(_fields_of(owner))}"


def _nearest(path: Path, others: Sequence[Path]) -> str:
    """Return the paths that share most of their beginning with ``path``, of these the shortest, in words."""

    def rank(other: Path) -> tuple[int, int]:
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, other, strict=False)))
        return -shared, len(other)

    best = min(map(rank, others))
    return " or ".join(".".join(map(str, other)) for other in others if rank(other) == best)


def _hint(kind: str, given: Any) -> str:
    """Return a hint for habits of other formats: numbers in quotes, 1e6 for a count, a bare number for text."""
    if kind == "finite_number":
        return "; neither infinite nor NaN"
    if kind == "string_type" and isinstance(given, bool | int | float):
        return f'; in quotes: "{short(given, 40)}"'
    number = _as_number(given) if kind in (*_WHOLE_TYPES, "float_type") else None
    if number is None:
        return ""
    if kind == "float_type":
        return f", without quotes: {given}"
    return f", written {number:.0f}" if number.is_integer() and abs(number) < 2**53 else ""


def _expected(field: FieldInfo, context: Mapping[str, Any], *, least: bool = False) -> str:
    """Return the accepted values of a field: its kind, its bounds and its description.

    ``least``: of a part, name only the fields that it must have, if it must have some.
    """
    plain, kind = _plain(field.annotation), _bare(field.annotation)
    metadata = [*field.metadata, *(get_args(plain)[1:] if plain is not kind else ())]
    description = field.description or next((item.text for item in metadata if isinstance(item, Doc)), "")
    bounds = _bounds_of(metadata)
    if get_origin(kind) is Literal:
        text = "one of " + ", ".join(str(choice) for choice in get_args(kind))
    elif _has_fields(kind):
        text = (_least_of(kind) if least else "") or _mapping(kind)
    else:
        bounds |= {name: bound for name, bound in context.items() if name in _BOUNDS}
        if description:
            bounds.pop("pattern", None)  # the description states it in words
        sizes = description.startswith("bytes")
        text = _KINDS.get(get_origin(kind) or kind, "another value") + _bounded(bounds, sizes)
    return text + (f" ({description})" if description else "")


def _mapping(model: type[Any]) -> str:
    return f"a mapping with the fields {', '.join(_fields_of(model))}"


def _least_of(model: type[Any]) -> str:
    """Return words for the fields that a part must have; empty if it need not have any."""
    needed = [name for name, field in _fields_of(model).items() if field.is_required()]
    return f"a mapping with at least {', '.join(needed)}" if needed else ""


def _bounds_of(metadata: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in metadata:
        found |= _bounds_of(item.metadata) if isinstance(item, FieldInfo) else {}
        found |= {name: bound for name in _BOUNDS if (bound := getattr(item, name, None)) is not None}
    return found


def _bounded(bounds: Mapping[str, Any], sizes: bool = False) -> str:
    limits = [
        f"{words} {written_bytes(bounds[name]) if sizes else _number(bounds[name])}"
        for name, words in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
        if name in bounds
    ]
    text = f", {' and '.join(limits)}" if limits else ""
    if "pattern" in bounds:
        text += f" of the form {bounds['pattern']}"
    return text + (f", at most {bounds['max_length']} long" if "max_length" in bounds else "")


def _number(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


# fields ------------------------------------------------------------------------------------------------------------


def _has_fields(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind))


@cache
def _fields_of(model: type[Any]) -> Mapping[str, FieldInfo]:
    """Return the fields of a pydantic model, or of a dataclass with the docstrings of its attributes."""
    if issubclass(model, BaseModel):
        return model.model_fields
    described = descriptions_of(model)
    hints = get_type_hints(model, include_extras=True)
    found: dict[str, FieldInfo] = {}
    for field in fields(model):
        found[field.name] = info = FieldInfo.from_annotation(hints[field.name])
        info.description = described.get(field.name)
    return found


@cache
def _paths_of(model: type[Any]) -> Mapping[str, Sequence[Path]]:
    """Return the paths of the fields at any depth, by their last name, the less deep ones first."""
    found: dict[str, list[Path]] = {}
    below: list[tuple[Path, type[Any]]] = [((), model)]
    for path, each in below:
        for name, field in _fields_of(each).items():
            found.setdefault(name, []).append((*path, name))
            if _has_fields(inner := _bare(field.annotation)):
                below.append(((*path, name), inner))
    return found


def _plain(annotation: Any) -> Any:
    """Return ``X`` of ``X | None``."""
    if get_origin(annotation) in (Union, UnionType):
        others = [choice for choice in get_args(annotation) if choice is not type(None)]
        return others[0] if len(others) == 1 else annotation
    return annotation


def _bare(annotation: Any) -> Any:
    """Return ``X`` of ``Annotated[X, …] | None``."""
    plain = _plain(annotation)
    return get_args(plain)[0] if get_origin(plain) is Annotated else plain


def _part(annotation: Any) -> type[Any] | None:
    """Return what has fields in an annotation: ``X``, or ``X`` of ``Y | X``; None if nothing has."""
    kind = _bare(annotation)
    choices = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((each for each in choices if _has_fields(each)), None)


def _owner(path: Path, model: type[Any] | None) -> type[Any] | None:
    """Return the model that should have the last part of the path as its field, or None."""
    for part in path[:-1]:
        if model is None or part not in (fields := _fields_of(model)):
            return None
        model = _part(fields[str(part)].annotation)
    return model


def _field(path: Path, model: type[Any] | None) -> FieldInfo | None:
    owner = _owner(path, model)
    return _fields_of(owner).get(str(path[-1])) if owner is not None and path else None

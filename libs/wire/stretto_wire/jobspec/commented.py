"""A job file with every field explained: what is stated stands, what is not stands behind `#` with its default."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, cast

from ..jobspec.schema import Schema, job_schema
from ..quantities import BYTES, written_bytes
from .jobfile import scalar

_WIDTH = 110
_INDENT = "  "
_LEFT_OUT = frozenset({"api"})
"""Fields that nobody states."""


def commented(stated: Mapping[str, Any]) -> str:
    """Return the YAML of a job file with these fields. Deleting the `#` before a name states its default."""
    schema = job_schema()
    return "\n".join(_lines(schema, schema["$defs"], stated, {}, "")) + "\n"


def _lines(
    part: Schema, parts: Schema, stated: Mapping[str, Any] | None, defaults: Mapping[str, Any], indent: str
) -> Iterator[str]:
    """Yield the lines of a part. stated: None if the part itself is not; defaults: those that its place has."""
    fields = cast("dict[str, Schema]", part["properties"])
    for name in sorted(fields, key=lambda name: stated is not None and name not in stated):
        if name in _LEFT_OUT:
            continue
        field, given = fields[name], stated if stated is not None and name in stated else None
        inner = _resolved(field, parts)
        description = str(field.get("description") or inner.get("description", ""))
        yield from _explained(description, indent)
        mark = "#" if given is None else ""
        default = defaults.get(name, _default(field, inner))
        value = default if given is None else given[name]
        if "properties" in inner and inner.get("title") != "Plan" and not isinstance(value, str):
            yield f"{indent}{mark}{name}:"
            defaults_there = default if isinstance(default, Mapping) else {}
            yield from _lines(inner, parts, given and given[name], defaults_there, indent + _INDENT)
        else:
            is_size = isinstance(value, int) and description.startswith(BYTES)
            yield f"{indent}{mark}{name}: {written_bytes(value) if is_size else _flow(value)}"


def _resolved(field: Schema, parts: Schema) -> Schema:
    """Return the schema of a field's value, that of `X` for `X | None`."""
    for choice in [field, *cast("list[Schema]", field.get("anyOf", []))]:
        if "$ref" in choice:
            return parts[choice["$ref"].rpartition("/")[2]]
        if "properties" in choice:
            return choice
    return field


def _default(field: Schema, inner: Schema) -> Any:
    return field.get("default", inner.get("default", {} if inner.get("type") == "object" else None))


def _explained(text: str, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(text, _WIDTH - len(indent), break_long_words=False, break_on_hyphens=False):
        yield f"{indent}# {line}"


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(k)}: {_flow(v)}" for k, v in cast("Mapping[str, Any]", value).items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, cast("list[Any]", value))) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: ".inf", -math.inf: "-.inf"}.get(value, ".nan")
    if isinstance(value, str) and value.replace("-", "").replace("_", "").replace(".", "").replace("/", "").isalnum():
        return value if not _looks_otherwise(value) else json.dumps(value)
    return "".join(each if each.isprintable() else _escaped(each) for each in json.dumps(value, ensure_ascii=False))


def _escaped(character: str) -> str:
    return f"\\U{ord(character):08x}"


def _looks_otherwise(text: str) -> bool:
    """Return whether a job file would read a bare text as a number, a truth value, a date or nothing."""
    try:
        return scalar(text) != text
    except ValueError:
        return True

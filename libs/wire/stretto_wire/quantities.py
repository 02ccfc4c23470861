"""Quantities as people write them: bytes (`2Gi`), cores (`500m`) and durations (`5m`). Numbers pass unchanged.

The units are those of Kubernetes and of Go's durations: in a number of cores `m` is a thousandth, in a duration a
minute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, cast

from pydantic import BeforeValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from stretto_messages.values import WorkerGroup

BYTES = "bytes, or a size such as 512Mi, 2Gi or 1500M"
CORES = "cores, or thousandths of one such as 500m"
SECONDS = "seconds, or a duration such as 90s, 5m, 1h30m or 2d"

_SIZES = {
    "": 1,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
}
_DURATIONS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"(?:[0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})"
_SIZE = re.compile(rf"({_NUMBER}(?:[eE][-+]?[0-9]{{1,2}})?)\s*([A-Za-z]*)")
_CORES = re.compile(rf"({_NUMBER})\s*(m?)")
_DURATION = re.compile(rf"({_NUMBER})\s*(ms|[smhd])")


def parse_bytes(value: Any) -> Any:
    """Return the bytes of a size such as `512Mi`, `2Gi` or `1500M`. Raises ValueError for a text that is none."""
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    unit = found[2].upper().removesuffix("B") if found else None
    if found is None or unit not in _SIZES:
        raise ValueError(BYTES)
    try:
        return int(float(found[1]) * _SIZES[unit])
    except OverflowError as error:  # 1e99 is infinite
        raise ValueError(BYTES) from error


def parse_cores(value: Any) -> Any:
    """Return the cores of a quantity such as `500m` or `2`. Raises ValueError for a text that is none."""
    if not isinstance(value, str):
        return value
    found = _CORES.fullmatch(value.strip())
    if found is None:
        raise ValueError(CORES)
    return float(found[1]) / (1000 if found[2] else 1)


def parse_seconds(value: Any) -> Any:
    """Return the seconds of a duration such as `90`, `90s` or `1h30m`: units descend, each at most once.

    Raises ValueError for a text that is none.
    """
    if not isinstance(value, str):
        return value
    text, position, total_s, last = value.strip(), 0, 0.0, float("inf")
    if re.fullmatch(_NUMBER, text):
        return float(text)
    while position < len(text):
        found = _DURATION.match(text, position)
        if found is None or _DURATIONS[found[2]] >= last:
            raise ValueError(SECONDS)
        last = _DURATIONS[found[2]]
        total_s += float(found[1]) * last
        position = found.end()
    if not position:
        raise ValueError(SECONDS)
    return total_s


def written_bytes(size_bytes: int) -> str:
    """Return bytes with the largest unit that divides them, as in `512Mi`."""
    power = (size_bytes.bit_length() - 1) // 10
    if 0 < power < 5 and size_bytes % (1 << 10 * power) == 0:
        return f"{size_bytes >> 10 * power}{' KMGT'[power]}i"
    return str(size_bytes)


@dataclass(frozen=True, slots=True)
class Quantity:
    """Annotation of a number that may also be written as a text with a unit."""

    parse: Callable[[Any], Any]
    pattern: str
    words: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Parse a text first; the number has to fit as ever."""
        return BeforeValidator(self.parse).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Accept the number or such a text."""
        return {"anyOf": [handler(core), self.text()]}

    def text(self) -> dict[str, Any]:
        """Return the JSON Schema of the text."""
        return {"type": "string", "pattern": self.pattern, "description": self.words}


IN_BYTES = Quantity(parse_bytes, r"^[0-9]+(\.[0-9]+)?([KMGT]i?)?[bB]?$", BYTES)
IN_CORES = Quantity(parse_cores, r"^[0-9]+(\.[0-9]+)?m?$", CORES)
IN_SECONDS = Quantity(parse_seconds, r"^([0-9]+(\.[0-9]+)?(ms|[smhd]))+$|^[0-9]+(\.[0-9]+)?$", SECONDS)


_OF_GROUP = (("cpu_cores", IN_CORES), ("memory_bytes", IN_BYTES))


def _group(given: Any) -> Any:
    """Return a group of workers, with its quantities as numbers, whose bounds the plan's validator checks.

    Raises ValueError for other fields, and for a quantity that cannot be read.
    """
    if not isinstance(given, dict):
        return given
    found = cast("dict[str, Any]", given)
    names = [each.name for each in fields(WorkerGroup)]
    needed = [name for name in names if name not in WorkerGroup.SELDOM]
    if not {*needed} <= found.keys() <= {*names}:
        raise ValueError(
            f"groups = {found}: give each {', '.join(needed)}; of a later stage {', '.join(names[len(needed) :])}, too"
        )
    return WorkerGroup(**_numbers(found, _OF_GROUP))


def _numbers(given: Mapping[str, Any], of: Iterable[tuple[str, Quantity]]) -> dict[str, Any]:
    """Return fields with these quantities as numbers. Raises ValueError, naming the field."""
    found = dict(given)
    for name, quantity in of:
        if name not in found:
            continue
        try:
            found[name] = quantity.parse(found[name])
        except ValueError as error:
            raise ValueError(f"{name} = {found[name]}: {error}") from error
    return found


@dataclass(frozen=True, slots=True)
class PlanQuantities:
    """Annotation of a plan whose fields may be texts with a unit."""

    of: tuple[tuple[str, Quantity], ...]
    """Field and kind of quantity."""

    def parse(self, plan: Any) -> Any:
        """Return a plan with its quantities as numbers, and its groups as such. Raises ValueError, naming the field."""
        if not isinstance(plan, dict):
            return plan
        found = _numbers(cast("dict[str, Any]", plan), self.of)
        if isinstance(groups := found.get("groups"), list | tuple):
            found["groups"] = tuple(_group(each) for each in cast("Sequence[Any]", groups))
        return found

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Parse texts first; the plan has to fit as ever."""
        return BeforeValidator(self.parse).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Accept numbers or such texts."""
        schema = dict(handler.resolve_ref_schema(handler(core)))
        return {**schema, "properties": _with_texts(schema["properties"], self.of)}


def with_texts_of_groups(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a group's fields in a job file, whose quantities may be texts.

    Events and answers have numbers there, as v1 of their schemas says.
    """
    return _with_texts(properties, _OF_GROUP)


def _with_texts(properties: Mapping[str, Any], of: Iterable[tuple[str, Quantity]]) -> dict[str, Any]:
    """Return the JSON Schema of fields whose quantities may be texts."""
    found = dict(properties)
    for name, quantity in of:
        number = dict(found[name])
        description = number.pop("description")
        found[name] = {"anyOf": [number, quantity.text()], "description": description}
    return found


IN_PLAN = PlanQuantities(
    (
        ("worker_cpu_cores", IN_CORES),
        ("ps_cpu_cores", IN_CORES),
        ("worker_memory_bytes", IN_BYTES),
        ("ps_memory_bytes", IN_BYTES),
    )
)

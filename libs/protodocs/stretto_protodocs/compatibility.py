"""Detection of wire changes that break a reader of v1.

Two baselines are compared: the schemas of every message without their prose. The direction depends on the kind of
message (``READERS``):

- an event or telemetry is kept in a stream: old readers meet new messages, and new readers meet old ones on replay;
- a request is read by the answering side, which is upgraded first: new readers meet old requests;
- a reply is read by the caller, which is upgraded last: old readers meet new replies;
- a job specification is written by users: new readers meet old documents.

An added optional field breaks nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from stretto_wire.jobspec.schema import Schema

Baseline = dict[str, Any]

_PROSE = ("title", "description", "examples", "$schema", "$id", "$defs")
_LOWER = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_PARTS = ("items", "additionalProperties", "propertyNames")
_KNOWN = {
    *_PROSE, *_LOWER, *_UPPER, *_PARTS,
    "type", "enum", "const", "anyOf", "$ref", "properties", "required", "default", "patternProperties",
}  # fmt: skip
_UNITS = ("s", "ms", "us", "ns", "bytes", "kib", "mib", "gib", "cores", "per_s", "per_hour", "at_s", "samples")

_V2 = "keep v1 as it is and add a v2 channel beside it"


@dataclass(frozen=True, slots=True)
class Break:
    """One reason why a reader of v1 would fail or be misled."""

    message: str
    field: str
    change: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.message}: {self.field} {self.change}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a comparison, and the readers that cross the versions."""

    message: str
    field: str
    old_readers: bool
    new_readers: bool
    old_defs: Schema
    new_defs: Schema

    def at(self, name: str) -> _Place:
        return replace(self, field=f"{self.field}.{name}" if self.field else name)

    def broken(self, change: str, remedy: str = _V2) -> Break:
        return Break(self.message, self.field or "(document)", change, remedy)

    def narrowed(self, what: str) -> Iterator[Break]:
        if self.new_readers:
            yield self.broken(
                f"{what}, so that stored messages and older senders of v1 would be refused",
                "accept all that v1 accepted, or " + _V2,
            )

    def widened(self, what: str) -> Iterator[Break]:
        if self.old_readers:
            yield self.broken(
                f"{what}, which strict readers of v1 refuse", "publish only values that v1 allowed, or " + _V2
            )


READERS = {
    "evt": (True, True),
    "tel": (True, True),
    "rpc": (False, True),
    "pod": (False, True),
    "reply": (True, False),
    "job": (False, True),
}
"""Per kind of document: (old readers meet new messages, new readers meet old messages)."""


def breaks(old: Baseline, new: Baseline) -> list[Break]:
    """Return every break of v1 between two baselines. Raises ValueError if one of them is not a baseline."""
    for baseline in (old, new):
        if not isinstance(baseline.get("messages"), dict):
            raise ValueError("not a baseline: there is no object 'messages'; write one with `make proto`")
    found: list[Break] = []
    for name, before in old["messages"].items():
        after = new["messages"].get(name)
        if after is None:
            found.append(Break(name, "(message)", "was removed or renamed", "restore it; " + _V2))
        else:
            found.extend(_message(name, before, after))
    return found


def _message(name: str, before: Schema, after: Schema) -> Iterator[Break]:
    for fact in ("subject", "type", "kind"):
        if before.get(fact) != after.get(fact):
            change = f"changed from {before.get(fact)} to {after.get(fact)}"
            yield Break(name, f"({fact})", change, f"subscribers of v1 use the old one: restore it, or {_V2}")
    old_readers, new_readers = READERS[before["kind"]]
    old, new = before["schema"], after["schema"]
    place = _Place(name, "", old_readers, new_readers, old.get("$defs", {}), new.get("$defs", {}))
    yield from _schema(old, new, place)


def _schema(old: Schema, new: Schema, place: _Place) -> Iterator[Break]:
    if "default" in old and "default" in new and not _kept(old["default"], new["default"]):
        yield _default(old["default"], new["default"], place)
    before, after = _variants(old, place.old_defs), _variants(new, place.new_defs)
    gone = sorted(before.keys() - after.keys())
    come = sorted(after.keys() - before.keys())
    if gone == ["integer"] and come == ["number"]:
        yield from place.widened("may now be a fraction")
        after = {**after, "integer": after["number"]}
    elif gone == ["number"] and come == ["integer"]:
        yield from place.narrowed("may no longer be a fraction")
        after = {**after, "number": after["integer"]}
    elif gone and come and len(before) == len(after) == 1:
        yield place.broken(f"changed its type from {gone[0]} to {come[0]}", "add a field of another name instead")
    else:
        for kind in gone:
            yield from place.narrowed(f"may no longer be of type {kind}")
        for kind in come:
            yield from place.widened(f"may now be of type {kind}")
    for kind in sorted(before.keys() & after.keys()):
        yield from _variant(before[kind], after[kind], place)


def _default(old: Any, new: Any, place: _Place) -> Break:
    change = f"changed its default from {old!r} to {new!r}, so that a message without it means something else"
    return place.broken(change, "keep the default and add a field of another name")


def _kept(old: Any, new: Any) -> bool:
    """True if a default is unchanged; the default of an object may have new fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        before, after = cast(Schema, old), cast(Schema, new)
        return all(name in after and _kept(value, after[name]) for name, value in before.items())
    return type(old) is type(new) and old == new


def _variant(old: Schema, new: Schema, place: _Place) -> Iterator[Break]:
    yield from _values(old, new, place)
    yield from _bounds(old, new, place)
    yield from _object(old, new, place)
    for part in _PARTS:
        here = place.at("*" if part != "propertyNames" else "(names)")
        yield from _part(old.get(part), new.get(part), here)
    old_patterns, new_patterns = old.get("patternProperties", {}), new.get("patternProperties", {})
    if old_patterns.keys() != new_patterns.keys():
        yield place.broken("changed the pattern of its names")
    for pattern in old_patterns.keys() & new_patterns.keys():
        yield from _schema(old_patterns[pattern], new_patterns[pattern], place.at("*"))
    for keyword in sorted((old.keys() | new.keys()) - _KNOWN):
        if old.get(keyword) != new.get(keyword):
            yield place.broken(f"changed its {keyword} from {old.get(keyword)!r} to {new.get(keyword)!r}")


def _values(old: Schema, new: Schema, place: _Place) -> Iterator[Break]:
    before, after = _closed_set(old), _closed_set(new)
    if before is None and after is None:
        return
    if before is None:
        yield from place.narrowed(f"is now limited to {_named(after or [])}")
    elif after is None:
        yield from place.widened("is no longer limited to named values")
    else:
        gone = [value for value in before if value not in after]
        come = [value for value in after if value not in before]
        if gone:
            yield from place.narrowed(f"lost the value {_named(gone)}")
        if come:
            yield from place.widened(f"has the new value {_named(come)}")


def _bounds(old: Schema, new: Schema, place: _Place) -> Iterator[Break]:
    for keyword in (*_LOWER, *_UPPER):
        before, after = old.get(keyword), new.get(keyword)
        if before == after:
            continue
        tighter = before is None or (after is not None and ((after > before) == (keyword in _LOWER)))
        what = f"changed {keyword} from {before} to {after}"
        yield from place.narrowed(what) if tighter else place.widened(what)


def _object(old: Schema, new: Schema, place: _Place) -> Iterator[Break]:
    before, after = cast(Schema, old.get("properties", {})), cast(Schema, new.get("properties", {}))
    was, now = set(old.get("required", ())), set(new.get("required", ()))
    for name, schema in before.items():
        here = place.at(name)
        if name not in after:
            yield _removed(name, sorted(after.keys() - before.keys()), here)
            continue
        if name in was - now:
            yield from here.widened("may now be absent")
        if name in now - was:
            yield from here.narrowed("is now required")
        yield from _schema(schema, after[name], here)
    for name in after:
        if name not in before and name in now:
            here = place.at(name)
            if place.new_readers:
                yield here.broken("is new and required, but messages of v1 do not have it", "give it a default")


def _removed(name: str, added: list[str], place: _Place) -> Break:
    stem = _stem(name)
    for other in added:
        if stem and _stem(other) == stem:
            change = f"changed its name, and so its unit, to {other}"
            return place.broken(change, f"keep {name} and add {other} as an optional field beside it")
    return place.broken("was removed", "keep it in v1, filled as before; stop reading it in v2")


def _part(old: Any, new: Any, place: _Place) -> Iterator[Break]:
    """Compare schemas of items, values or names. True and absent accept anything, false accepts nothing."""
    before, after = _open(old), _open(new)
    if isinstance(before, dict) and isinstance(after, dict):  # equal references may lead to different definitions
        yield from _schema(cast(Schema, before), cast(Schema, after), place)
    elif before == after:
        return
    elif before is True or after is False:
        yield from place.narrowed("accepts less than before")
    else:
        yield from place.widened("accepts more than before")


def _open(part: Any) -> Any:
    return True if part is None else part


def _variants(schema: Schema, definitions: Schema) -> dict[str, Schema]:
    """Return the alternatives of a schema by JSON type. Types within one ``anyOf`` are distinct here."""
    if "$ref" in schema:
        return _variants(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions)
    if "anyOf" in schema:
        return {kind: one for part in schema["anyOf"] for kind, one in _variants(part, definitions).items()}
    return {schema.get("type", "any"): schema}


def _closed_set(schema: Schema) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _named(values: list[Any]) -> str:
    return ", ".join(str(value) for value in values)


def _stem(name: str) -> str:
    for unit in sorted(_UNITS, key=len, reverse=True):
        if name.endswith(f"_{unit}"):
            return name.removesuffix(f"_{unit}")
    return ""


def without_prose(node: Any) -> Any:
    """Return a schema reduced to its constraints. Fields named like a keyword are kept."""
    if isinstance(node, list):
        return [without_prose(item) for item in cast(list[Any], node)]
    if not isinstance(node, dict):
        return node
    kept: Schema = {}
    for key, value in cast(Schema, node).items():
        if key in ("properties", "$defs", "patternProperties"):
            kept[key] = {name: without_prose(part) for name, part in value.items()}
        elif key in ("default", "const", "enum"):
            kept[key] = value
        elif key not in _PROSE:
            kept[key] = without_prose(value)
    return kept

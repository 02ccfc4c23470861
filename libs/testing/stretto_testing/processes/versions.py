"""The next version of each service, for rolling upgrades: it decides the same, and keeps one field more in its states.

The versions may also differ in what they write. The older one then leaves out each field that has its default, as if
the newer one had brought it; the newer one adds a field that nobody knows to each record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from typing import Any, cast
from unittest import mock

from pydantic_core import from_json, to_json
from stretto_messages.base import Record
from stretto_runtime import Service
from stretto_wire import codec

from stretto_testing.nodes import NODE, Wording

Json = dict[str, Any]
ADDED = "added_by_the_next_version"
"""The field that no reader knows"""


def next_version(service: Service) -> Service:
    """Turn a service into one of the next version."""
    service.__class__ = _next_service(type(service))
    return service


@cache
def _next_service(kind: type[Service]) -> type[Service]:
    class Next(kind):  # type: ignore[misc, valid-type]
        version = kind.version + 1
        state_types = {scope: _next_state(state) for scope, state in kind.state_types.items()}  # noqa: RUF012

        def machine(self, key: str, state: Any) -> Any:
            scope = "cluster" if key == "_" else "job"
            machine = super().machine(key, self.state_types[scope]() if state is None else state)
            machine.__class__ = _next_machine(type(machine))
            return machine

    return Next


@cache
def _next_state(kind: type) -> type:
    """Return a state with one field more, which follows from the others: how long each of its collections is."""
    added = ("sizes", dict[str, int], field(default_factory=dict[str, int]))
    return make_dataclass(f"Next{kind.__name__}", [added], bases=(kind,), namespace={"__module__": __name__})


@cache
def _next_machine(kind: type) -> type:
    class Next(kind):  # type: ignore[misc]
        version = kind.version + 1
        storage_version = kind.version

        @staticmethod
        def migrate(state: Json, from_version: int) -> Json:
            if from_version < kind.version:
                state = kind.migrate(state, from_version)
            return {**state, "sizes": {name: len(value) for name, value in state.items() if _is_long(value)}}

        @staticmethod
        def migrate_back(state: Json, to_version: int) -> Json:
            return {name: value for name, value in state.items() if name != "sizes"}

        def handle(self, event: Any, now: float) -> Any:
            assert self.state.sizes == _sizes(self.state), "the state is not that of the version before"
            actions = super().handle(event, now)
            self.state.sizes = _sizes(self.state)
            return actions

    return Next


def _is_long(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _sizes(state: Any) -> dict[str, int]:
    """Return the lengths of the lists and tuples of a state, the empty ones left out: both are lists in JSON."""
    values = {each.name: getattr(state, each.name) for each in fields(state)}
    return {name: len(value) for name, value in values.items() if isinstance(value, (list, tuple)) and value}


# what is written ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Worded:
    """An adapter of pydantic that writes as the version of the process does whose turn it is."""

    adapter: Any

    @property
    def validator(self) -> Any:
        return self.adapter.validator

    @property
    def serializer(self) -> _Worded:
        return self

    def to_json(self, record: Any) -> bytes:
        node = NODE.get()
        wording = Wording.PRESENT if node is None else node.wording
        if wording is Wording.OLDER:
            return self.adapter.serializer.to_json(record, exclude_defaults=True)
        written: bytes = self.adapter.serializer.to_json(record)
        return to_json(_widened(record, from_json(written))) if wording is Wording.NEWER else written


def _widened(value: object, written: Any) -> Any:
    """Return the JSON of a value with a field more in each record."""
    if isinstance(value, Record):
        named = {each.name: getattr(value, each.name) for each in fields(cast("Any", value))}
        return {name: _widened(named[name], inner) for name, inner in written.items()} | {ADDED: {"since": 1}}
    if isinstance(value, (list, tuple)):
        return [_widened(one, other) for one, other in zip(value, written, strict=True)]
    if isinstance(value, dict):
        return {name: _widened(value[name], inner) for name, inner in written.items()}
    return written


@contextlib.contextmanager
def worded() -> Generator[None]:
    """Let each process write as its version does."""
    adapter_of = codec.adapter_of
    with mock.patch.object(codec, "adapter_of", lambda kind: _Worded(adapter_of(kind))):
        yield

"""The machines of one partition, each as if its events had happened to it exactly once.

This module knows nothing of the bus. An event that a machine refuses or breaks on must leave no half-changed state, and
copying the state before every event would cost more than handling it. So each key keeps its last saved document and the
events since. After an exception the machine is built again from those, without the bad event, unless the error promises
an unchanged state. A snapshot bounds that list (``session.snapshot_wait_s``).

A machine with a large state may name one field of it in ``parted``: a dict whose keys are tokens of a subject. Its
entries are saved one by one; ``changed`` names those that changed since the last snapshot.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, ClassVar, Protocol, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from stretto_core.machine import Action

from stretto_runtime.inputs import CLUSTER
from stretto_runtime.owner.snapshots import Document, digest, pack, unpack
from stretto_runtime.process.faults import Refusal

LANES = 512
"""Callers whose last reply a key remembers."""


@cache
def _adapter_of(state_type: type) -> TypeAdapter[Any]:
    """Building one takes some ten milliseconds, and every partition needs the same."""
    return TypeAdapter(state_type)


@cache
def _part_adapter_of(state_type: type, field: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_args(get_type_hints(state_type)[field])[1])


class MachineFactory(Protocol):
    """The part of a service that makes its machines."""

    name: ClassVar[str]
    version: ClassVar[int]
    state_types: ClassVar[dict[str, type]]

    def machine(self, key: str, state: Any) -> Any: ...


class Slot:
    """One key: its machine, and the document and events to build it again from."""

    __slots__ = ("base", "events", "machine", "replies", "seq", "time_s", "trace")

    def __init__(self, machine: Any, base: Document | None) -> None:
        self.machine = machine
        self.base = base
        self.seq = base.seq if base else 0
        self.time_s = base.time_s if base else 0.0
        self.trace = base.trace if base else ""
        self.events: list[tuple[object, float]] = []
        self.replies: OrderedDict[str, list[Any]] = OrderedDict(base.replies if base else {})

    def remember(self, request_id: str, code: str, body: str) -> None:
        """Keep the last reply of a lane: a caller repeats only its last request."""
        lane = lane_of(request_id)
        self.replies[lane] = [request_id, code, body]
        self.replies.move_to_end(lane)
        if len(self.replies) > LANES:
            self.replies.popitem(last=False)

    def remembered(self, request_id: str) -> list[Any] | None:
        reply = self.replies.get(lane_of(request_id))
        return reply if reply is not None and reply[0] == request_id else None


def lane_of(request_id: str) -> str:
    """The lane of an id ``<lane>.<n>``, which has one request in flight. An id without a dot is its own lane."""
    lane, dot, _ = request_id.rpartition(".")
    return lane if dot else request_id


class Machines:
    """The slots of one partition."""

    def __init__(self, factory: MachineFactory) -> None:
        self._factory = factory
        self._adapters: dict[str, TypeAdapter[Any]] = {
            scope: _adapter_of(state_type) for scope, state_type in factory.state_types.items()
        }
        self.slots: dict[str, Slot] = {}
        self.dirty: set[str] = set()
        self.lost: frozenset[str] = frozenset()
        """keys whose saved state is damaged: nothing is handled for them"""
        self.saved_bytes = 0
        """size of the states in the last documents"""

    def load(self, documents: dict[str, Document]) -> None:
        """Start from saved documents.

        Raises:
            Refusal: a document is of another version, and the machine does not migrate it, or of another shape.
        """
        for key, document in documents.items():
            self.slots[key] = Slot(self._build(key, document), document)

    async def load_in_thread(self, documents: dict[str, Document]) -> None:
        """Load in a thread while the loop goes on: a machine of a thousand jobs takes 0.4 s. Raises Refusal."""
        collects = gc.isenabled()
        gc.disable()  # everything made here stays alive: collecting garbage took a third of the time
        try:
            await asyncio.to_thread(self.load, documents)
        finally:
            if collects:
                gc.enable()

    def contains(self, key: str, seq: int) -> bool:
        """True if the document of ``key`` was saved after input ``seq``."""
        slot = self.slots.get(key)
        return slot is not None and slot.base is not None and slot.base.seq >= seq

    def handle(
        self, key: str, event: object, now: float, seq: int, commit: Callable[[list[Action]], Any] | None = None
    ) -> Any:
        """Advance one machine; returns its actions, or the result of ``commit`` for them.

        If the machine or ``commit`` raises, the machine is as before the event. A key whose first event leaves its
        state as new (a request about an unknown job) is not kept.
        """
        slot = self.slots.get(key)
        if slot is None:
            return self._first(key, event, now, seq, commit)
        try:
            actions = slot.machine.handle(event, now)
            result = commit(actions) if commit else actions
        except Exception as error:
            if not getattr(error, "unchanged", False):  # rebuilding costs more than refusing a message
                self._restore(key, slot)
            raise
        self._advance(key, slot, event, now, seq)
        return result

    def documents(self, keys: Iterable[str]) -> dict[str, Document]:
        """The documents of ``keys`` as they are now; they count as saved."""
        saved: dict[str, Document] = {}
        self.saved_bytes = 0
        for key in keys:
            slot = self.slots[key]
            slot.base = saved[key] = self._document(key, slot)
            slot.events = []
        self.dirty.clear()
        return saved

    def _document(self, key: str, slot: Slot) -> Document:
        machine, base = slot.machine, slot.base
        parted: str = getattr(machine, "parted", "")
        state = self._adapter(key).dump_json(machine.state, exclude={parted} if parted else None)
        self.saved_bytes += len(state)
        parts, total = (dict(base.parts), base.digest) if base else ({}, 0)
        changed = sorted(machine.changed if parted else parts)  # no longer parted: all of them go
        for name in changed:
            entry = getattr(machine.state, parted).get(name) if parted else None
            total = digest({name: parts.pop(name, None)}, total, -1)
            if entry is not None:
                dumped = self._part_adapter(key, parted).dump_json(entry)
                self.saved_bytes += len(dumped)
                parts[name] = pack(dumped)
                total = digest({name: parts[name]}, total)
        if parted:
            machine.changed.clear()
        one, other = base.behind if base else (set[str](), set[str]())
        return Document(
            slot.seq,
            self._version_of(machine),
            pack(state),
            slot.trace,
            dict(slot.replies),
            parted,
            slot.time_s,
            base.ordinal + base.is_saved if base else 1,
            parts,
            total,
            ({*one, *changed}, {*other, *changed}),
            first=base is None or (base.first and not base.is_saved),
        )

    def dump(self, key: str, machine: Any) -> bytes:
        """JSON of a machine's state."""
        return self._adapter(key).dump_json(machine.state)

    def ticking(self) -> list[str]:
        """The keys that want ticks; a machine may set ``ticking = False`` (a finished job)."""
        return sorted(key for key, slot in self.slots.items() if getattr(slot.machine, "ticking", True))

    def _first(
        self, key: str, event: object, now: float, seq: int, commit: Callable[[list[Action]], Any] | None
    ) -> Any:
        slot = Slot(self._factory.machine(key, None), None)
        new = self.dump(key, slot.machine)
        actions = slot.machine.handle(event, now)
        result = commit(actions) if commit else actions
        if self.dump(key, slot.machine) != new:
            self.slots[key] = slot
            self._advance(key, slot, event, now, seq)
        return result

    def _advance(self, key: str, slot: Slot, event: object, now: float, seq: int) -> None:
        slot.events.append((event, now))
        slot.seq, slot.time_s = seq, now
        self.dirty.add(key)

    def _restore(self, key: str, slot: Slot) -> None:
        slot.machine = self._build(key, slot.base)
        for event, now in slot.events:
            slot.machine.handle(event, now)

    def _build(self, key: str, document: Document | None) -> Any:
        if document is None:
            return self._factory.machine(key, None)
        fresh = self._factory.machine(key, None)
        version, parted = self._version_of(fresh), getattr(fresh, "parted", "")
        whose = f"the snapshot of {self._factory.name} for {key!r} is of version {document.version}, this is {version}"
        if document.version != version:
            migrate = getattr(fresh, "migrate", None)
            if document.version > version or migrate is None:
                raise Refusal(f"{whose}, which cannot continue it; run version {document.version}, or give the machine "
                              "migrate(state, from_version)")  # fmt: skip
            migrated = json.dumps(migrate(document.whole, document.version)).encode()
            machine = self._factory.machine(key, _read(self._adapter(key), migrated, whose))
            if parted:
                machine.changed.update({*document.parts, *getattr(machine.state, parted)})
            return machine
        if document.parted != parted:
            raise Refusal(f"{whose}, but what is saved in parts is {document.parted!r} there, {parted!r} here; raise "
                          "the version, and give the machine migrate(state, from_version)")  # fmt: skip
        state = _read(self._adapter(key), document.state, whose, {parted} if parted else None)
        for name, part in document.parts.items():
            entry = _read(self._part_adapter(key, parted), unpack(part), f"{whose}, in {parted}.{name}")
            getattr(state, parted)[name] = entry
        return self._factory.machine(key, state)

    def _version_of(self, machine: Any) -> int:
        """The version of a machine: its own if it has one, else the service's."""
        return getattr(machine, "version", self._factory.version)

    def _adapter(self, key: str) -> TypeAdapter[Any]:
        return self._adapters["cluster" if key == CLUSTER else "job"]

    def _part_adapter(self, key: str, parted: str) -> TypeAdapter[Any]:
        return _part_adapter_of(self._factory.state_types["cluster" if key == CLUSTER else "job"], parted)


def _read(adapter: TypeAdapter[Any], stored: bytes, whose: str, exclude: set[str] | None = None) -> Any:
    """Read a saved state. Raises Refusal if this code would lose a part of it."""
    try:
        state = adapter.validate_json(stored)
    except ValidationError as error:
        first = error.errors()[0]
        raise Refusal(f"{whose}: {first['loc']} {first['msg']}; give new fields of the state a default, or raise "
                      "the version and migrate") from error  # fmt: skip
    dumped = adapter.dump_json(state, exclude=exclude)
    if dumped != stored and (lost := next(_lost(json.loads(stored), json.loads(dumped)), None)) is not None:
        raise Refusal(f"{whose}: this code does not keep {lost}; raise the version, and let migrate say what "
                      "becomes of it")  # fmt: skip
    return state


def _lost(stored: object, kept: object, path: str = "state") -> Iterator[str]:
    """The parts of a stored state that are missing after it was read."""
    if isinstance(stored, dict) and isinstance(kept, dict):
        for name, value in stored.items():
            if name in kept:
                yield from _lost(value, kept[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif isinstance(stored, list) and isinstance(kept, list) and len(stored) == len(kept):
        for index, (one, other) in enumerate(zip(stored, kept, strict=True)):
            yield from _lost(one, other, f"{path}[{index}]")
    elif stored != kept:
        yield f"{path} = {stored!r}"

"""The machines of one partition, each as if its events had happened to it exactly once.

This module knows nothing of the bus. An event that a machine refuses or breaks on must leave no half-changed state, and
copying the state before every event would cost more than handling it. So each key keeps its last saved document and the
events since. After an exception the machine is built again from those, without the bad event, unless the error promises
an unchanged state. A snapshot bounds that list (``session.snapshot_wait_s``).

An ended machine rests: once it is saved, only its document stays in memory, compressed. A late input or a request
builds it again. When the last input of an ended key is older than ``forgotten_after_s``, a later one finds no such key.
That depends on stored times alone, so a successor and a replay agree, whether the document is still there or not.

A machine with a large state may name one field of it in ``parted``: a dict whose keys are tokens of a subject. Its
entries are saved one by one; ``changed`` names those that changed since the last snapshot.
"""

from __future__ import annotations

import asyncio
import gc
import json
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError
from stretto_core.machine import Action

from stretto_runtime.inputs import CLUSTER
from stretto_runtime.owner.snapshots import Document, digest, pack, unpack
from stretto_runtime.process.faults import Refusal

LANES = 512
"""Callers whose last reply a key remembers."""
FREED_SHARE = 1.05
"""Multiple of ``forgotten_after_s`` after which a document is removed. Stored times may step back by the difference."""
FREED_AT_ONCE = 1000
RESTING = "resting"
"""The place of a resting document, instead of a subject."""


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
    forgotten_after_s: ClassVar[float]

    def machine(self, key: str, state: Any) -> Any: ...


class Slot:
    """One key: its machine, and the document and events to build it again from."""

    __slots__ = ("base", "events", "forgotten", "machine", "replies", "seq", "time_s", "trace")

    def __init__(self, machine: Any, base: Document | None, forgotten: int = 0) -> None:
        self.machine = machine
        self.base = base
        self.forgotten = forgotten
        """ordinal of the stored document of a forgotten job of this name, which the first one of this key follows"""
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


class Resting(NamedTuple):
    """An ended key: the stored time of its last input, and its saved document, compressed."""

    time_s: float
    packed: bytes

    @classmethod
    def of(cls, document: Document) -> Resting:
        return cls(document.time_s, zlib.compress(document.encode(RESTING), 1))

    @property
    def document(self) -> Document:
        return Document.decode(RESTING, zlib.decompress(self.packed))


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
        self.resting: dict[str, Resting] = {}
        """ended keys, about in the order of their last inputs"""
        self.dirty: set[str] = set()
        self.lost: frozenset[str] = frozenset()
        """keys whose saved state is damaged: nothing is handled for them"""
        self.saved_bytes = 0
        """size of the states in the last documents"""

    def load(self, documents: dict[str, Document]) -> None:
        """Start from saved documents. Those of ended machines rest, unread: ``check`` has read them.

        Raises:
            Refusal: a document is of another version, and the machine does not migrate it, or of another shape.
        """
        for key, document in sorted(documents.items(), key=lambda item: item[1].time_s):
            fresh_version = self._version_of(self._factory.machine(key, None))
            if document.ended and document.is_saved and document.version == fresh_version:
                self.resting[key] = Resting.of(document)
            else:
                self.slots[key] = Slot(self._build(key, document), document)

    def check(self, documents: dict[str, Document]) -> None:
        """Read every document, and keep nothing. Raises Refusal, as ``load`` does."""
        for key, document in documents.items():
            self._build(key, document)

    async def load_in_thread(self, documents: dict[str, Document]) -> None:
        """Load in a thread while the loop goes on: a machine of a thousand jobs takes 0.4 s. Raises Refusal."""
        collects = gc.isenabled()
        gc.disable()  # everything made here stays alive: collecting garbage took a third of the time
        try:
            await asyncio.to_thread(self.load, documents)
        finally:
            if collects:
                gc.enable()

    @property
    def keys(self) -> list[str]:
        """All keys, those of ended machines included."""
        return [*self.slots, *self.resting]

    def find(self, key: str, now: float = 0.0) -> Slot | None:
        """Return the slot of ``key``; None if it is unknown, or forgotten at ``now``. One that rests is a copy."""
        slot = self.slots.get(key)
        if slot is None:
            resting = self.resting.get(key)
            if resting is None or now - resting.time_s > self._factory.forgotten_after_s:
                return None
            document = resting.document
            return Slot(self._build(key, document), document)
        if now - slot.time_s > self._factory.forgotten_after_s and _is_ended(slot.machine):
            return None
        return slot

    def remember(self, key: str, now: float, request_id: str, code: str, body: str) -> None:
        """Keep the last reply of a lane, if the key is known: of an unknown job nothing is kept."""
        slot = self.find(key, now)
        if slot is not None:
            slot.remember(request_id, code, body)
            self._keep(key, slot)

    def contains(self, key: str, seq: int) -> bool:
        """True if the document of ``key`` was saved after input ``seq``."""
        slot = self.slots.get(key)
        if slot is None:
            resting = self.resting.get(key)
            return resting is not None and resting.document.seq >= seq
        return slot.base is not None and slot.base.seq >= seq

    def handle(
        self, key: str, event: object, now: float, seq: int, commit: Callable[[list[Action]], Any] | None = None
    ) -> Any:
        """Advance one machine; returns its actions, or the result of ``commit`` for them.

        If the machine or ``commit`` raises, the machine is as before the event. A key whose first event leaves its
        state as new (a request about an unknown job) is not kept.
        """
        slot = self.find(key, now)
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
            slot = self.find(key)
            assert slot is not None, key
            self._keep(key, slot)
            slot.base = saved[key] = self._document(key, slot)
            slot.events = []
        self.dirty.clear()
        return saved

    def rest(self, keys: Iterable[str]) -> None:
        """Let every ended machine rest that is saved as it is."""
        for key in keys:
            slot = self.slots.get(key)
            if slot is None or slot.base is None or slot.events or key in self.dirty:
                continue
            if slot.base.ended and slot.base.is_saved:
                self.resting[key] = Resting.of(slot.base)
                del self.slots[key]

    def aged_out(self, now: float) -> dict[str, Document]:
        """The documents of resting keys, some at a time, that no input stored after ``now`` can reach any more."""
        found: dict[str, Document] = {}
        for key, resting in self.resting.items():
            if now - resting.time_s <= FREED_SHARE * self._factory.forgotten_after_s or len(found) == FREED_AT_ONCE:
                break
            found[key] = resting.document
        return found

    def forget(self, keys: Iterable[str]) -> None:
        """Drop resting keys, whose documents are removed."""
        for key in keys:
            del self.resting[key]

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
            base.ordinal + base.is_saved if base else slot.forgotten + 1,
            parts,
            total,
            ({*one, *changed}, {*other, *changed}),
            first=not slot.forgotten if base is None else base.first and not base.is_saved,
            ended=_is_ended(machine),
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
        slot = Slot(self._factory.machine(key, None), None, self._stored_ordinal(key))
        new = self.dump(key, slot.machine)
        actions = slot.machine.handle(event, now)
        result = commit(actions) if commit else actions
        if self.dump(key, slot.machine) != new:
            self._advance(key, slot, event, now, seq)
        return result

    def _advance(self, key: str, slot: Slot, event: object, now: float, seq: int) -> None:
        slot.events.append((event, now))
        slot.seq, slot.time_s = seq, now
        self._keep(key, slot)

    def _keep(self, key: str, slot: Slot) -> None:
        """Note a changed slot, which may be new, or a copy of one that rested."""
        if key not in self.slots or self.slots[key] is not slot:
            self.slots[key] = slot
            self.resting.pop(key, None)
        self.dirty.add(key)

    def _stored_ordinal(self, key: str) -> int:
        """Ordinal of the last stored document of a forgotten key; 0 if there is none."""
        if key in self.resting:
            return self.resting[key].document.ordinal
        slot = self.slots.get(key)
        return 0 if slot is None else slot.base.stored_ordinal if slot.base is not None else slot.forgotten

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


def _is_ended(machine: Any) -> bool:
    """Return whether a machine is finished for good. One that is saved in parts is never taken for it."""
    return bool(getattr(machine, "ended", False)) and not getattr(machine, "parted", "")


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

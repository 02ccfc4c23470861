"""The machines of one partition, each as if its events had happened to it exactly once.

This module knows nothing of the bus. An event that a machine refuses or breaks on must leave no half-changed state, and
copying the state before every event would cost more than handling it. So each key keeps its last saved document and the
events since. After an exception the machine is built again from those, without the bad event, unless the error promises
an unchanged state. A snapshot bounds that list (``state.saving``).

An ended machine rests: once it is saved, only its document stays in memory, compressed. A late input or a request
builds it again. When the last input of an ended key is older than ``forgotten_after_s``, a later one finds no such key.
That depends on stored times alone, so a successor and a replay agree, whether the document is still there or not.

A machine with a large state may name one field of it in ``parted``: a dict whose keys are tokens of a subject. Its
entries are saved one by one; ``changed`` names those that changed since the last snapshot.
"""

from __future__ import annotations

import asyncio
import gc
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from stretto_core.machine import Action

from stretto_runtime.owner.state.snapshots import Document
from stretto_runtime.owner.state.state_codec import MachineFactory, StateCodec

LANES = 512
"""Callers whose last reply a key remembers."""
FREED_SHARE = 1.05
"""Multiple of ``forgotten_after_s`` after which a document is removed. Stored times may step back by the difference."""
FREED_AT_ONCE = 1000
RESTING = "resting"
"""The place of a resting document, instead of a subject."""


class Slot:
    """One key: its machine, and the document and events to build it again from."""

    __slots__ = ("base", "events", "forgotten", "machine", "replies", "seq", "time_s", "trace")

    def __init__(self, machine: Any, base: Document | None, forgotten: int = 0) -> None:
        self.machine = machine
        self.base = base
        self.forgotten = forgotten
        """Ordinal of the stored document of a forgotten job of this name: the key's first document has the next one."""
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
        self._codec = StateCodec(factory)
        self.slots: dict[str, Slot] = {}
        self.resting: dict[str, Resting] = {}
        """Ended keys, about in the order of their last inputs"""
        self.dirty: set[str] = set()
        self.lost: frozenset[str] = frozenset()
        """Keys whose saved state is damaged or too large: nothing is handled for them"""
        self.saved_bytes = 0
        """Size of the states in the last documents"""
        self.no_way_back: dict[str, str] = {}
        """Keys that the machine's storage version cannot continue, with the reason"""

    def load(self, documents: dict[str, Document]) -> None:
        """Start from saved documents. Those of ended machines rest, unread: ``check`` has read them.

        Raises:
            Refusal: a document is of another version, and the machine does not migrate it, or of another shape.
        """
        for key, document in sorted(documents.items(), key=lambda item: item[1].time_s):
            fresh = self._factory.machine(key, None)
            if document.version > self._codec.storage_version_of(fresh):
                self.no_way_back[key] = f"its last snapshot is of version {document.version}"
            rests = document.ended and document.is_saved
            if rests and document.written_by == self._codec.version_of(fresh):
                self.resting[key] = Resting.of(document)
                continue
            machine = self._codec.build(key, document)
            if rests and _is_ended(machine):  # other code wrote it, and may have meant another end
                self.resting[key] = Resting.of(document)
            else:
                self.slots[key] = Slot(machine, document)

    def check(self, documents: dict[str, Document]) -> None:
        """Read every document, and keep nothing.

        Raises:
            Refusal: as ``load`` does.
            RuntimeFault: a machine names a way back that it does not have.
        """
        self._codec.check_machines()
        for key, document in documents.items():
            self._codec.build(key, document)

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
            return Slot(self._codec.build(key, document), document)
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
        self.dirty.difference_update(saved)
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

    def give_up(self, keys: Iterable[str]) -> None:
        """Drop keys whose state is too large to be saved: nothing is handled for them any more."""
        self.lost = self.lost.union(keys)
        for key in keys:
            self.slots.pop(key, None)
            self.no_way_back.pop(key, None)

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
            self.no_way_back.pop(key, None)

    def _document(self, key: str, slot: Slot) -> Document:
        machine, base = slot.machine, slot.base
        content = self._codec.content(key, machine, base)
        self.saved_bytes += content.size_bytes
        if content.no_way_back:
            self.no_way_back[key] = content.no_way_back
        else:
            self.no_way_back.pop(key, None)
        one, other = base.behind if base else (set[str](), set[str]())
        return Document(
            slot.seq,
            content.version,
            content.packed,
            slot.trace,
            dict(slot.replies),
            content.parted,
            slot.time_s,
            base.ordinal + base.is_saved if base else slot.forgotten + 1,
            content.parts,
            content.digest,
            ({*one, *content.changed}, {*other, *content.changed}),
            first=not slot.forgotten if base is None else base.first and not base.is_saved,
            ended=_is_ended(machine),
            written_by=self._codec.version_of(machine),
        )

    def ticking(self) -> list[str]:
        """The keys that want ticks; a machine may set ``ticking = False`` (a finished job)."""
        return sorted(key for key, slot in self.slots.items() if getattr(slot.machine, "ticking", True))

    def _first(
        self, key: str, event: object, now: float, seq: int, commit: Callable[[list[Action]], Any] | None
    ) -> Any:
        slot = Slot(self._factory.machine(key, None), None, self._stored_ordinal(key))
        new = self._codec.dump(key, slot.machine)
        actions = slot.machine.handle(event, now)
        result = commit(actions) if commit else actions
        if self._codec.dump(key, slot.machine) != new:
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
        slot.machine = self._codec.build(key, slot.base)
        for event, now in slot.events:
            slot.machine.handle(event, now)


def _is_ended(machine: Any) -> bool:
    """Return whether a machine is finished for good. One that is saved in parts is never taken for it."""
    return bool(getattr(machine, "ended", False)) and not getattr(machine, "parted", "")

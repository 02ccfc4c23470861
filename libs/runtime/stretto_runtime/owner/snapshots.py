"""Snapshots of one partition in the key-value bucket ``STATE``, written only by the rightful owner.

``snap.<service>.<partition>.<key>``  one document per key, with the sequence of the last input it contains
``snap.<service>.<partition>.<key>.<part>``  a part of a large state, beside its document
``cursor.<service>.<partition>``      every input up to here is in the documents, every output up to ``out_seq`` stored
``mark.<service>.<partition>``        how often the inputs after the cursor may have been handled before

A document may be newer than the cursor (death between the two): replay then skips, for that key, what it contains.
Parts are written before their document, and only those that changed. So that together they are always of one moment, a
part brings along what it was before: that holds while the document is older than the part.
Every write expects the owner entry to be of our epoch, so a former owner cannot overwrite its heir's.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from stretto_bus.bus import PIPELINED, Bus
from stretto_bus.connection import lines_of
from stretto_bus.faults import BusFault
from stretto_bus.ordered_consumer import Stored, read
from stretto_bus.writer import Fence, Output, chunks, store_together
from stretto_wire.registry import STATE, STATE_PREFIX

COMPRESSED_FROM_BYTES = 4096
ZLIB = b"x"
"""what compressed data begins with, and no JSON"""
REMOVED_AFTER = "60s"
READINGS = 8
"""of a document that its owner replaces every second"""


@dataclass(frozen=True, slots=True)
class Cursor:
    """``seq``: last input contained; ``out_seq``: last own output stored by then; ``version`` of the machine code;
    ``fence`` of the owner that wrote it.
    """

    seq: int = 0
    out_seq: int = 0
    version: int = 0
    fence: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """One key. ``packed``: the state (``pack``); ``replies``: lane -> (request id, error code or empty, body).

    ``parted`` names the field of the state that is saved entry by entry: ``parts`` has all of them, packed. ``unsaved``
    has those that the bucket has otherwise, or not at all, and what it has; ``gone`` those that are only to be removed.
    """

    seq: int
    version: int
    packed: bytes
    trace: str = ""
    replies: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    parted: str = ""
    parts: dict[str, bytes] = field(default_factory=dict[str, bytes], compare=False)
    unsaved: dict[str, bytes | None] = field(default_factory=dict[str, bytes | None], compare=False)
    gone: set[str] = field(default_factory=set[str], compare=False)

    def encode(self) -> bytes:
        head = {"seq": self.seq, "version": self.version, "trace": self.trace, "replies": self.replies}
        if self.parted:
            head["parted"] = self.parted
        return json.dumps(head).encode() + b"\n" + self.packed

    @classmethod
    def decode(cls, data: bytes) -> Document:
        head, _, packed = data.partition(b"\n")
        return cls(packed=packed, **json.loads(head))

    @property
    def state(self) -> bytes:
        """JSON of the machine's state, without its parts."""
        return unpack(self.packed)

    @property
    def whole(self) -> dict[str, Any]:
        """The machine's state, its parts included."""
        state = json.loads(self.state)
        if self.parted:
            state[self.parted] = {name: json.loads(unpack(part)) for name, part in self.parts.items()}
        return state

    def part_outputs(self, subject: str) -> list[Output]:
        """What the bucket lacks of the parts. An entry that is gone is first written as such, then removed."""
        outputs: list[Output] = []
        for name, before in self.unsaved.items():
            now = self.parts.get(name)
            left = now is None and before is None
            outputs.append(_removal(f"{subject}.{name}") if left else self._part(f"{subject}.{name}", now, before))
        return [*outputs, *(_removal(f"{subject}.{name}") for name in self.gone - self.unsaved.keys())]

    def _part(self, subject: str, now: bytes | None, before: bytes | None) -> Output:
        sizes = [None if part is None else len(part) for part in (now, before)]
        data = json.dumps([self.seq, self.version, *sizes]).encode() + b"\n" + (now or b"") + (before or b"")
        return Output(subject, data)

    def take_part(self, name: str, data: bytes) -> None:
        """Add a part as it is in the bucket, as far as it is of this document's time."""
        head, _, rest = data.partition(b"\n")
        seq, version, size, size_before = json.loads(head)
        now = None if size is None else rest[:size]
        before = None if size_before is None else rest[size or 0 :]
        newer = (seq, version) > (self.seq, self.version)  # a migration writes anew what no input has changed
        holds = None if not self.parted else before if newer else now  # else it is left of an earlier version
        if holds is not None:
            self.parts[name] = holds
        if newer:
            self.unsaved[name] = before
        elif holds is None:
            self.gone.add(name)

    def saved(self) -> None:
        """The bucket has it all."""
        self.gone.clear()
        self.gone.update(name for name, before in self.unsaved.items() if before is not None and name not in self.parts)
        self.unsaved.clear()


def documents_of(entries: Iterable[Stored]) -> dict[tuple[str, str], Document]:
    """(partition, key) -> its document, its parts included."""
    return sorted_out(entries)[0]


def sorted_out(entries: Iterable[Stored]) -> tuple[dict[tuple[str, str], Document], list[Output]]:
    """Documents by place; and what removes parts whose document was never written: a later one would take them for its
    own."""
    found: dict[tuple[str, str], Document] = {}
    parts: list[tuple[tuple[str, str], str, Stored]] = []
    for stored in entries:
        partition, key, *part = stored.subject.removeprefix(f"{STATE_PREFIX}snap.").split(".")[1:]
        if part and stored.data:
            parts.append(((partition, key), part[0], stored))
        elif stored.data:
            found[partition, key] = Document.decode(stored.data)
    for place, name, stored in parts:
        if place in found:
            found[place].take_part(name, stored.data)
    return found, [_removal(stored.subject) for place, _, stored in parts if place not in found]


async def document_of(bus: Bus, service: str, partition: int, key: str) -> Document | None:
    """The last saved document of one key; its parts are of its moment, though its owner may be writing.

    Raises:
        BusFault: it was replaced whenever it was read.
    """
    subject = f"{STATE_PREFIX}snap.{service}.{partition}.{key}"
    for _ in range(READINGS):
        entries = await read(bus, STATE, [subject, f"{subject}.*"], deliver_policy="last_per_subject")
        document = documents_of(entries).get((str(partition), key))
        if document is None or not document.parted:
            return document
        # a part knows what it was one document before, not two
        last = await read(bus, STATE, [subject], deliver_policy="last_per_subject")
        if last and last[-1].seq == max(entry.seq for entry in entries if entry.subject == subject):
            return document
    raise BusFault(f"{subject} was replaced {READINGS} times while it was read; ask again")


def _removal(subject: str) -> Output:
    return Output(subject, b"", lines_of({"Nats-TTL": REMOVED_AFTER}))


def unpack(packed: bytes) -> bytes:
    """What ``pack`` was given."""
    return zlib.decompress(packed) if packed.startswith(ZLIB) else packed


def pack(state: bytes) -> bytes:
    """A state as it is stored: as it is, or compressed where it is large. The server takes no more than 8 MiB."""
    return zlib.compress(state, 1) if len(state) >= COMPRESSED_FROM_BYTES else state


@dataclass(slots=True)
class Loaded:
    cursor: Cursor
    documents: dict[str, Document]
    attempt: int
    """how many owners may have handled the inputs after the cursor before us"""


class Snapshots:
    """Reads and writes of the owner of one partition."""

    def __init__(self, bus: Bus, service: str, partition: int, owner_key: str, epoch: int) -> None:
        self._bus = bus
        self._base = f"{service}.{partition}"
        self._fence = Fence(owner_key, epoch)
        self._fence_seq = 0

    async def left_after(self) -> int | None:
        """The last input that is handled, if the last owner left in peace; None if it may have decided more."""
        marks = [stored.data for stored in await self._read("mark") if stored.subject != self._fence.subject]
        mark = json.loads(marks[-1]) if marks else {"clean": False}
        return int(mark["cursor"]) if mark["clean"] else None

    async def load(self, fence_seq: int) -> Loaded:
        """Everything of this partition; then marks it, which proves that we were still the owner after our fence.

        Raises:
            Fenced: we are not the owner any more.
        """
        entries = await self._read("cursor", "mark", "snap")
        self._fence_seq = fence_seq
        cursor, mark = Cursor(), dict[str, Any]()
        snaps: list[Stored] = []
        for stored in entries:
            kind = stored.subject.removeprefix(STATE_PREFIX).partition(".")[0]
            if kind == "cursor":
                cursor = Cursor(**json.loads(stored.data))
            elif kind == "mark":
                mark = json.loads(stored.data)
            elif kind == "snap":
                snaps.append(stored)
        found, left = sorted_out(snaps)
        documents = {key: document for (_, key), document in found.items()}
        if left:
            await self._store(left)
        again = bool(mark) and mark["cursor"] == cursor.seq and not mark["clean"]
        attempt = int(mark["attempt"]) + 1 if again else (1 if mark and not mark["clean"] else 0)
        await self.mark(cursor, attempt)
        return Loaded(cursor, documents, attempt)

    async def _read(self, *kinds: str) -> list[Stored]:
        """With our own entry among them, whichever server answers has all that our predecessors wrote."""
        names = [f"{STATE_PREFIX}{kind}.{self._base}" + (".>" if kind == "snap" else "") for kind in kinds]
        filters = [*names, self._fence.subject]
        return await read(self._bus, STATE, filters, until=self._fence.seq, deliver_policy="last_per_subject")

    async def mark(self, cursor: Cursor, attempt: int, clean: bool = False) -> None:
        body = json.dumps({"cursor": cursor.seq, "attempt": attempt, "clean": clean}).encode()
        await self._bus.store(f"{STATE_PREFIX}mark.{self._base}", body, self._fence.headers())

    async def save(self, dirty: dict[str, Document], cursor: Cursor) -> None:
        """Write the documents, then the cursor. All outputs up to ``cursor`` must be stored already.

        Raises:
            Fenced: we are not the owner any more.
        """
        base = f"{STATE_PREFIX}snap.{self._base}"
        parts = [output for key, document in dirty.items() for output in document.part_outputs(f"{base}.{key}")]
        documents = [Output(f"{base}.{key}", document.encode()) for key, document in dirty.items()]
        body = json.dumps({**asdict(cursor), "fence": self._fence_seq}).encode()
        last = Output(f"{STATE_PREFIX}cursor.{self._base}", body)
        if self._bus.batch_from == PIPELINED:
            groups, threshold = [parts, documents, [last]], len(parts) + len(documents) + 2
        else:
            groups, threshold = chunks([*parts, *documents, last]), self._bus.batch_from
        for group in groups:
            if group:
                await store_together(self._bus, self._fence, group, threshold)
        for document in dirty.values():
            document.saved()

    async def _store(self, outputs: list[Output]) -> None:
        threshold = len(outputs) + 1 if self._bus.batch_from == PIPELINED else self._bus.batch_from
        for group in chunks(outputs):
            await store_together(self._bus, self._fence, group, threshold)

"""Snapshots of one partition in the key-value bucket ``STATE``, written only by the rightful owner.

``snap.<service>.<partition>.<key>``  one document per key, with the sequence of the last input it contains
``snap.<service>.<partition>.<key>.<part>``  a part of a large state, beside its document
``cursor.<service>.<partition>``      inputs up to here are in the documents, outputs up to ``out_seq`` stored
``mark.<service>.<partition>``        how often the inputs after the cursor may have been handled before

A document may be newer than the cursor (death between the two writes); a replay then skips, for that key, the inputs
that it contains. Parts are written before their document, and only those that changed. Each part carries its former
content: while the document is older than the part, that is the content that belongs to it.
Every write expects the owner entry to be of our epoch, so a former owner cannot overwrite its successor's.
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
"""first byte of compressed data, which begins no JSON"""
REMOVED_AFTER = "60s"
READINGS = 8
"""attempts to read a document that its owner replaces every second"""


@dataclass(frozen=True, slots=True)
class Cursor:
    """``seq``: last input contained; ``out_seq``: last own output stored by then.

    ``version`` is that of the service, ``fence`` that of the owner that wrote it.
    """

    seq: int = 0
    out_seq: int = 0
    version: int = 0
    fence: int = 0


@dataclass(frozen=True, slots=True)
class Document:
    """One key. ``packed`` is its state (``pack``); ``replies`` map a lane to (request id, error code or empty, body).

    ``parted`` names the field of the state that is saved entry by entry. ``parts`` has all its entries, packed.
    ``unsaved`` has the entries that differ in the bucket, with the bucket's content; ``gone`` those to be removed.
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
        """Outputs that bring the bucket's parts up to date. A gone entry is first written as gone, then removed."""
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
        """Add a part from the bucket: its content of this document's time."""
        head, _, rest = data.partition(b"\n")
        seq, version, size, size_before = json.loads(head)
        now = None if size is None else rest[:size]
        before = None if size_before is None else rest[size or 0 :]
        newer = (seq, version) > (self.seq, self.version)  # a migration rewrites parts that no input has changed
        holds = None if not self.parted else before if newer else now  # else it is a leftover of an earlier version
        if holds is not None:
            self.parts[name] = holds
        if newer:
            self.unsaved[name] = before
        elif holds is None:
            self.gone.add(name)

    def saved(self) -> None:
        """Note that the bucket is up to date."""
        self.gone.clear()
        self.gone.update(name for name, before in self.unsaved.items() if before is not None and name not in self.parts)
        self.unsaved.clear()


def documents_of(entries: Iterable[Stored]) -> dict[tuple[str, str], Document]:
    """(partition, key) -> its document, its parts included."""
    return sorted_out(entries)[0]


def sorted_out(entries: Iterable[Stored]) -> tuple[dict[tuple[str, str], Document], list[Output]]:
    """Documents by place, and outputs that remove parts without a document.

    Such parts were written before a death; a later document of the key would take them for its own.
    """
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
    """The last saved document of one key, consistent with its parts even while its owner writes.

    Raises:
        BusFault: it was replaced during every reading.
    """
    subject = f"{STATE_PREFIX}snap.{service}.{partition}.{key}"
    for _ in range(READINGS):
        entries = await read(bus, STATE, [subject, f"{subject}.*"], deliver_policy="last_per_subject")
        document = documents_of(entries).get((str(partition), key))
        if document is None or not document.parted:
            return document
        # a part carries the content of one document before, not of two
        last = await read(bus, STATE, [subject], deliver_policy="last_per_subject")
        if last and last[-1].seq == max(entry.seq for entry in entries if entry.subject == subject):
            return document
    raise BusFault(f"{subject} was replaced {READINGS} times while it was read; ask again")


def _removal(subject: str) -> Output:
    return Output(subject, b"", lines_of({"Nats-TTL": REMOVED_AFTER}))


def unpack(packed: bytes) -> bytes:
    """The inverse of ``pack``."""
    return zlib.decompress(packed) if packed.startswith(ZLIB) else packed


def pack(state: bytes) -> bytes:
    """A state as it is stored, compressed if it is large. The server takes no more than 8 MiB."""
    return zlib.compress(state, 1) if len(state) >= COMPRESSED_FROM_BYTES else state


@dataclass(slots=True)
class Loaded:
    cursor: Cursor
    documents: dict[str, Document]
    attempt: int
    """number of owners before us that may have handled the inputs after the cursor"""


class Snapshots:
    """Reads and writes the snapshots of one partition, for its owner."""

    def __init__(self, bus: Bus, service: str, partition: int, owner_key: str, epoch: int) -> None:
        self._bus = bus
        self._base = f"{service}.{partition}"
        self._fence = Fence(owner_key, epoch)
        self._fence_seq = 0

    async def clean_shutdown(self) -> int | None:
        """The last input handled, if the last owner shut down cleanly; None if it may have decided more."""
        marks = [stored.data for stored in await self._read("mark") if stored.subject != self._fence.subject]
        mark = json.loads(marks[-1]) if marks else {"clean": False}
        return int(mark["cursor"]) if mark["clean"] else None

    async def load(self, fence_seq: int) -> Loaded:
        """Load everything of this partition, then mark it: that proves that we still owned it after our fence.

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
        """Read with our own entry: a server that has it has all writes of our predecessors."""
        names = [f"{STATE_PREFIX}{kind}.{self._base}" + (".>" if kind == "snap" else "") for kind in kinds]
        filters = [*names, self._fence.subject]
        return await read(self._bus, STATE, filters, until=self._fence.seq, deliver_policy="last_per_subject")

    async def mark(self, cursor: Cursor, attempt: int, clean: bool = False) -> None:
        body = json.dumps({"cursor": cursor.seq, "attempt": attempt, "clean": clean}).encode()
        await self._bus.store(f"{STATE_PREFIX}mark.{self._base}", body, self._fence.headers())

    async def save(self, dirty: dict[str, Document], cursor: Cursor) -> None:
        """Write the documents, then the cursor. All outputs up to ``cursor`` must be stored before.

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

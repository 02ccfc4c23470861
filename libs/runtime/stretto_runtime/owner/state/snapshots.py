"""Snapshots of one partition in the key-value bucket ``STATE``, written only by the rightful owner.

``snap.<service>.<partition>.<key>.<side>``  one document per key, with the sequence of the last input it contains
``snap.<service>.<partition>.<key>.<side>.<part>``  a part of a large state, beside its document
``cursor.<service>.<partition>.<side>``  inputs up to here are in the documents, outputs up to ``out_seq`` stored
``mark.<service>.<partition>``           how often the inputs after the cursor may have been handled before

The last two snapshots of a key are kept, on the sides ``a`` and ``b``. Each snapshot replaces the older of the two, so
keeping one more costs no further write; only the first snapshot of a key goes to both sides. A document numbers its
snapshots, and the parity of that ``ordinal`` names the side. If a document is damaged, the one of the other side is
continued, and the inputs since then are replayed (``recovery``).

Each side is complete by itself: a document and the parts that belong to it. A snapshot writes the parts that changed
since the last snapshot of the same side, then the document, which holds a digest of all parts of its side. An owner
that dies in between leaves a side whose digest does not fit, and the other side whole. So a part that changes is
written once to each side, without its former content; one that changes in every snapshot costs one write a snapshot.
Bytes are as many as with a former content in every part; messages are more where each snapshot changes other parts.

When every input of an ended key has aged out of the stream, both sides are removed (``forget``).

Every body carries a checksum (``seals``): 1.4 microseconds for 4 kB. A document may be newer than the cursor (``save``
without one, or death between the two writes); a replay then skips, for that key, the inputs that it contains. The
cursor, too, is written to the sides in turn: the older one is always safe to begin from. Every write expects the owner
entry to be of our epoch, so a former owner cannot overwrite its successor's.

A document that is larger than the server takes costs its own key alone: a short text replaces both of its sides, which
every reader takes for damage. The machine of all jobs is never given up like that: its session ends with the reason.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic_core import from_json
from stretto_bus.bus import PIPELINED, Bus
from stretto_bus.connection import lines_of
from stretto_bus.faults import BusFault
from stretto_bus.reading.ordered_consumer import Stored, read
from stretto_bus.writer import Fence, OutgoingMessage, chunks, store_together
from stretto_wire.contract.registry import STATE, STATE_PREFIX

from stretto_runtime.inputs import CLUSTER
from stretto_runtime.owner.state.seals import Damage, Damaged, seal, unseal
from stretto_runtime.process.faults import VersionRefusal

SIDES = "ab"
COMPRESSED_FROM_BYTES = 4096
ZLIB = b"x"
"""First byte of compressed data, which begins no JSON"""
REMOVED_AFTER = "60s"
FENCE_BYTES_MAX = 4096
"""Room for the headers of a fence and a batch, which count to what the server takes."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place of a partition in the log when its owner saved it.

    ``seq``: last input contained; ``out_seq``: last own output stored by then. ``version`` is the service's, ``fence``
    the owner's. ``reports`` is the sequence of the last report contained, in the stream of telemetry; None: unknown.
    ``time_us``: when the server stored the message ``seq``, microseconds since the epoch; 0: unknown.
    """

    seq: int = 0
    out_seq: int = 0
    version: int = 0
    fence: int = 0
    reports: int | None = 0
    time_us: int = 0

    def encode(self, subject: str) -> bytes:
        numbers = asdict(self) | {"reports": -1 if self.reports is None else self.reports}
        return seal(subject, json.dumps(numbers).encode())

    @classmethod
    def decode(cls, subject: str, data: bytes) -> Cursor:
        """Read a cursor. Raises Damaged."""
        numbers = _numbers(subject, data, ("seq", "out_seq", "version", "fence", "reports"), ("time_us",))
        reports = numbers.pop("reports")
        return cls(**numbers, reports=reports if reports >= 0 else None)


@dataclass(frozen=True, slots=True)
class Mark:
    """``cursor``: that of the owner; ``attempt``: owners before it that may have handled the inputs after the cursor.

    ``clean``: the owner shut down, and has handled nothing after the cursor.
    """

    cursor: int
    attempt: int
    clean: bool

    def encode(self, subject: str) -> bytes:
        return seal(subject, json.dumps(asdict(self)).encode())

    @classmethod
    def decode(cls, subject: str, data: bytes) -> Mark:
        """Read a mark. Raises Damaged."""
        numbers = _numbers(subject, data, ("cursor", "attempt", "clean"))
        return cls(numbers["cursor"], numbers["attempt"], bool(numbers["clean"]))


def _numbers(subject: str, data: bytes, names: tuple[str, ...], later: tuple[str, ...] = ()) -> dict[str, int]:
    """Read numbers; those that a ``later`` version added are 0 without it."""
    body = unseal(subject, data)
    try:
        found: Any = from_json(body)
        return {name: int(found[name]) for name in names} | {name: int(found.get(name, 0)) for name in later}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Damaged(f"not the numbers {', '.join(names)}: {error!r}") from error


@dataclass(slots=True)
class Document:
    """One key. ``packed`` is its state (``pack``); ``replies`` map a lane to (request id, error code or empty, body).

    ``time_s`` is when its last input was stored, seconds since the epoch. ``parted`` names the field of the state that
    is saved entry by entry; ``parts`` has all its entries, packed, and ``digest`` is theirs. ``behind`` names, for
    each side, the parts whose content there is another one. ``first``: no side holds a snapshot of this key yet.
    """

    seq: int
    version: int
    packed: bytes
    trace: str = ""
    replies: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    parted: str = ""
    time_s: float = field(default=0.0, compare=False)
    ordinal: int = field(default=1, compare=False)
    parts: dict[str, bytes] = field(default_factory=dict[str, bytes], compare=False)
    digest: int = field(default=0, compare=False)
    behind: tuple[set[str], set[str]] = field(default_factory=lambda: (set[str](), set[str]()), compare=False)
    first: bool = field(default=True, compare=False)
    is_saved: bool = field(default=False, compare=False)
    """True if the document's side holds it. A document that follows an unsaved one has the same ordinal."""
    ended: bool = field(default=False, compare=False)
    """True if the machine said that it is finished for good."""
    written_by: int = field(default=0, compare=False)
    """Version of the code that wrote the document; ``version`` is of the state's shape, which may be earlier."""

    def __post_init__(self) -> None:
        self.written_by = self.written_by or self.version

    @property
    def side(self) -> str:
        """The side that holds this snapshot."""
        return SIDES[self.ordinal % 2]

    @property
    def stored_ordinal(self) -> int:
        """Ordinal of the last stored document of this key; 0 if none is stored."""
        return self.ordinal if self.is_saved else 0 if self.first else self.ordinal - 1

    def encode(self, subject: str) -> bytes:
        """The sealed bytes for ``subject``, which names the side."""
        head = {
            "seq": self.seq,
            "version": self.version,
            "time_s": self.time_s,
            "ordinal": self.ordinal,
            "trace": self.trace,
            "replies": self.replies,
            "parted": self.parted,
            "digest": self.digest,
            **({"ended": True} if self.ended else {}),
            **({"written_by": self.written_by} if self.written_by != self.version else {}),
        }
        return seal(subject, json.dumps(head).encode(), b"\n", self.packed)

    @classmethod
    def decode(cls, subject: str, data: bytes) -> Document:
        """Read a document without its parts.

        Raises:
            Damaged: these are not the bytes that an owner wrote there.
            Refusal: another version of this code wrote them.
        """
        head, _, packed = unseal(subject, data).partition(b"\n")
        try:
            fields: dict[str, Any] = from_json(head)
            return cls(packed=packed, first=False, is_saved=True, **fields)
        except (ValueError, TypeError) as error:
            text = f"{subject} was written by another version of stretto, which alone can continue it: {error!r}"
            raise VersionRefusal(text) from error

    @property
    def state(self) -> bytes:
        """JSON of the machine's state, without its parts."""
        return unpack(self.packed)

    @property
    def whole(self) -> dict[str, Any]:
        """The machine's state, its parts included."""
        state = from_json(self.state)
        if self.parted:
            state[self.parted] = {name: from_json(unpack(part)) for name, part in self.parts.items()}
        return state

    def outputs(self, subject: str) -> tuple[list[OutgoingMessage], list[OutgoingMessage]]:
        """Outputs of this snapshot below ``subject``: the parts, then the document."""
        parts: list[OutgoingMessage] = []
        documents: list[OutgoingMessage] = []
        for one in (replace(self, ordinal=self.ordinal - 1), self) if self.first else (self,):
            place = f"{subject}.{one.side}"
            for name in sorted(self.behind[one.ordinal % 2]):
                part, at = self.parts.get(name), f"{place}.{name}"
                parts.append(removal(at) if part is None else OutgoingMessage(at, seal(at, part)))
            documents.append(OutgoingMessage(place, one.encode(place)))
        return parts, documents

    def saved(self) -> None:
        """Note that the sides of this snapshot are up to date."""
        self.is_saved = True
        self.behind[self.ordinal % 2].clear()
        if self.first:
            self.behind[(self.ordinal - 1) % 2].clear()


def digest(parts: Mapping[str, bytes | None], start: int = 0, sign: int = 1) -> int:
    """``start`` plus (or minus, by ``sign``) a number for the name and content of each part, in whatever order."""
    numbers = (zlib.crc32(part, zlib.crc32(name.encode())) for name, part in parts.items() if part is not None)
    return (start + sign * sum(numbers)) & 0xFFFFFFFF


def removal(subject: str) -> OutgoingMessage:
    """An output that removes ``subject``; the marker goes by itself."""
    return OutgoingMessage(subject, b"", lines_of({"Nats-TTL": REMOVED_AFTER}))


def is_removed(stored: Stored) -> bool:
    """Return whether ``stored`` marks the removal of what was there. Empty bytes alone do not: they are damage."""
    marks = ("Nats-TTL", "KV-Operation", "Nats-Marker-Reason")
    return not stored.data and any(mark in stored.headers for mark in marks)


def unpack(packed: bytes) -> bytes:
    """The inverse of ``pack``."""
    return zlib.decompress(packed) if packed.startswith(ZLIB) else packed


def pack(state: bytes) -> bytes:
    """A state as it is stored, compressed if it is large. The server takes no more than 8 MiB."""
    return zlib.compress(state, 1) if len(state) >= COMPRESSED_FROM_BYTES else state


def cursor_in(entries: Iterable[Stored]) -> tuple[Cursor | None, str, list[Damage]]:
    """Return the cursor that was written last, its side, and what is damaged. None: there is no sound one."""
    last: tuple[int, Cursor, str] | None = None
    damages: list[Damage] = []
    for stored in entries:
        if is_removed(stored):
            continue
        try:
            cursor = Cursor.decode(stored.subject, stored.data)
        except Damaged as damage:
            damages.append(Damage(stored.subject, stored.seq, str(damage), stored.data))
        else:
            last = max(last or (0, cursor, ""), (stored.seq, cursor, stored.subject[-1]), key=lambda found: found[0])
    return (last[1], last[2], damages) if last else (None, SIDES[1], damages)


@dataclass(slots=True)
class Saved:
    """Content of the bucket for one partition. ``cursor`` None: none is sound; ``mark`` None: none, or not a sound one.

    ``now_s``: when the owner entry was stored, by the server's clock.
    """

    cursor: Cursor | None
    mark: Mark | None
    snaps: list[Stored]
    damages: list[Damage]
    now_s: float


class Snapshots:
    """Reads and writes the snapshots of one partition, for its owner."""

    def __init__(self, bus: Bus, service: str, partition: int, owner_key: str, epoch: int) -> None:
        self._bus = bus
        self._base = f"{service}.{partition}"
        self._fence = Fence(owner_key, epoch)
        self._fence_seq = 0
        self._cursor_side = SIDES[1]
        """Side of the last cursor; the next one replaces the other"""

    async def clean_shutdown(self) -> int | None:
        """The last input handled, if the last owner shut down cleanly; None if it may have decided more."""
        mark = (await self._saved("mark")).mark
        return mark.cursor if mark is not None and mark.clean else None

    async def saved(self, fence_seq: int) -> Saved:
        """Read everything of this partition. The next cursors name our fence, ``fence_seq``. Raises BusFault."""
        self._fence_seq = fence_seq
        return await self._saved("cursor", "mark", "snap")

    async def _saved(self, *kinds: str) -> Saved:
        """Read with our own entry: a server that has it has all writes of our predecessors."""
        names = [f"{STATE_PREFIX}{kind}.{self._base}" + ("" if kind == "mark" else ".>") for kind in kinds]
        filters = [*names, self._fence.subject]
        entries = await read(self._bus, STATE, filters, until=self._fence.seq, deliver_policy="last_per_subject")
        found: dict[str, list[Stored]] = {}
        for stored in entries:
            kind = stored.subject.removeprefix(STATE_PREFIX).partition(".")[0]
            found.setdefault(kind, []).append(stored)
        cursor, self._cursor_side, damages = cursor_in(found.get("cursor", ()))
        mark: Mark | None = None
        for stored in found.get("mark", ()):
            try:
                mark = Mark.decode(stored.subject, stored.data)
            except Damaged as damage:
                damages.append(Damage(stored.subject, stored.seq, str(damage), stored.data))
        now_s = max((stored.time_s for stored in found.get("owner", ())), default=0.0)
        return Saved(cursor, mark, found.get("snap", []), damages, now_s)

    async def mark(self, cursor: Cursor, attempt: int, clean: bool = False) -> None:
        """Record how far the inputs may have been handled; it proves that we still own the partition.

        Raises:
            Fenced: we are not the owner any more.
        """
        subject = f"{STATE_PREFIX}mark.{self._base}"
        await self._bus.store(subject, Mark(cursor.seq, attempt, clean).encode(subject), self._fence.headers())

    async def save(self, dirty: dict[str, Document], cursor: Cursor | None) -> frozenset[str]:
        """Write the documents, then the cursor, if there is one. All outputs up to here must be stored before.

        Return the keys whose documents are larger than the server takes: they are lost.

        Raises:
            Fenced: we are not the owner any more.
            BusFault: not stored, or the document of all jobs is larger than the server takes.
        """
        parts: list[OutgoingMessage] = []
        documents: list[OutgoingMessage] = []
        too_large: set[str] = set()
        room_bytes = self._bus.connection.max_payload - FENCE_BYTES_MAX
        for key, document in dirty.items():
            place = f"{STATE_PREFIX}snap.{self._base}.{key}"
            of_parts, of_document = document.outputs(place)
            size_bytes = max(len(output.data) for output in (*of_parts, *of_document))
            if size_bytes > room_bytes:
                text = f"the saved state has {size_bytes} bytes, and the server takes {room_bytes}"
                if key == CLUSTER:
                    raise BusFault(f"{place}: {text}: raise max_payload of nats-server")
                too_large.add(key)
                of_parts, of_document = [], [OutgoingMessage(f"{place}.{side}", text.encode()) for side in SIDES]
            parts += of_parts
            documents += of_document
        side = SIDES[1 - SIDES.index(self._cursor_side)]
        last: list[OutgoingMessage] = []
        if cursor is not None:
            subject = f"{STATE_PREFIX}cursor.{self._base}.{side}"
            last.append(OutgoingMessage(subject, replace(cursor, fence=self._fence_seq).encode(subject)))
        if self._bus.batch_from == PIPELINED:
            groups, threshold = [parts, documents, last], len(parts) + len(documents) + 2
        else:
            groups, threshold = chunks([*parts, *documents, *last]), self._bus.batch_from
        for group in groups:
            if group:
                await store_together(self._bus, self._fence, group, threshold)
        if cursor is not None:
            self._cursor_side = side
        for key in dirty.keys() - too_large:
            dirty[key].saved()
        return frozenset(too_large)

    async def forget(self, documents: Mapping[str, Document]) -> None:
        """Remove both sides of keys, the older one first. ``recovery`` takes the newer one alone for half of a removal.

        Raises:
            Fenced: we are not the owner any more.
        """
        places = {f"{STATE_PREFIX}snap.{self._base}.{key}": document.side for key, document in documents.items()}
        await self.remove([f"{place}.{SIDES[1 - SIDES.index(side)]}" for place, side in places.items()])
        await self.remove([f"{place}.{side}" for place, side in places.items()])

    async def remove(self, subjects: Iterable[str]) -> None:
        """Remove messages that belong to no snapshot. Raises Fenced: we are not the owner any more."""
        outputs = [removal(subject) for subject in subjects]
        threshold = len(outputs) + 1 if self._bus.batch_from == PIPELINED else self._bus.batch_from
        for group in chunks(outputs):
            await store_together(self._bus, self._fence, group, threshold)

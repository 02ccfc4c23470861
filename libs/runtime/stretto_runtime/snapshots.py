"""Snapshots of one partition in the key-value bucket ``STATE``, written only by the rightful owner.

``snap.<service>.<partition>.<key>``  one document per key, with the sequence of the last input it contains
``cursor.<service>.<partition>``      every input up to here is in the documents, every output up to ``out_seq`` stored
``mark.<service>.<partition>``        how often the inputs after the cursor may have been handled before

A document may be newer than the cursor (death between the two): replay then skips, for that key, what it contains.
Every write expects the owner entry to be of our epoch, so a former owner cannot overwrite its heir's.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any

from stretto_runtime.bus import PIPELINED, STATE, STATE_PREFIX, Bus
from stretto_runtime.log import Fence, Stored, read
from stretto_runtime.writer import Output, chunks, store_together

COMPRESSED_FROM_BYTES = 4096
ZLIB = b"x"
"""what compressed data begins with, and no JSON"""


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
    """One key. ``packed``: the state (``pack``); ``replies``: lane -> (request id, error code or empty, body)."""

    seq: int
    version: int
    packed: bytes
    trace: str = ""
    replies: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def encode(self) -> bytes:
        head = {"seq": self.seq, "version": self.version, "trace": self.trace, "replies": self.replies}
        return json.dumps(head).encode() + b"\n" + self.packed

    @classmethod
    def decode(cls, data: bytes) -> Document:
        head, _, packed = data.partition(b"\n")
        return cls(packed=packed, **json.loads(head))

    @property
    def state(self) -> bytes:
        """JSON of the machine's state."""
        return zlib.decompress(self.packed) if self.packed.startswith(ZLIB) else self.packed


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
        cursor, documents, mark = Cursor(), dict[str, Document](), dict[str, Any]()
        for stored in entries:
            kind = stored.subject.removeprefix(STATE_PREFIX).partition(".")[0]
            if kind == "cursor":
                cursor = Cursor(**json.loads(stored.data))
            elif kind == "mark":
                mark = json.loads(stored.data)
            elif kind == "snap":
                documents[stored.subject.rpartition(".")[2]] = Document.decode(stored.data)
        again = bool(mark) and mark["cursor"] == cursor.seq and not mark["clean"]
        attempt = int(mark["attempt"]) + 1 if again else (1 if mark and not mark["clean"] else 0)
        await self.mark(cursor, attempt)
        return Loaded(cursor, documents, attempt)

    async def _read(self, *kinds: str) -> list[Stored]:
        """With our own entry among them, whichever server answers has all that our predecessors wrote."""
        names = [f"{STATE_PREFIX}{kind}.{self._base}" + (".*" if kind == "snap" else "") for kind in kinds]
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
        documents = [
            Output(f"{STATE_PREFIX}snap.{self._base}.{key}", document.encode()) for key, document in dirty.items()
        ]
        body = json.dumps({**asdict(cursor), "fence": self._fence_seq}).encode()
        last = Output(f"{STATE_PREFIX}cursor.{self._base}", body)
        if self._bus.batch_from == PIPELINED:
            groups, threshold = [documents, [last]], len(documents) + 2
        else:
            groups, threshold = chunks([*documents, last]), self._bus.batch_from
        for group in groups:
            if group:
                await store_together(self._bus, self._fence, group, threshold)

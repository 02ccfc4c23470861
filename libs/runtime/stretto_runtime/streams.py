"""Stored messages for a replay, from the bus or from whoever hands them on."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Protocol

from stretto_bus.bus import Bus
from stretto_bus.reading.damage import Damage, find_damage
from stretto_bus.reading.ordered_consumer import Stored, scan
from stretto_bus.writer import kept_s_in
from stretto_wire.contract.excerpts import Excerpt, Stream, StreamFacts
from stretto_wire.contract.registry import STREAM


class Streams(Protocol):
    """The streams of an installation, read only."""

    async def facts(self, stream: Stream) -> StreamFacts:
        """Return the facts of a stream now. Raises Fault."""
        ...

    def scan(self, excerpt: Excerpt) -> AsyncGenerator[Stored]:
        """Yield the messages of ``excerpt`` that are stored now, in stored order. Raises Fault."""
        ...

    async def unreadable(self) -> list[str]:
        """Return what could not be read since this was last asked, in words: sequences, subjects. Raises Fault."""
        ...


class BusStreams:
    """The streams as the bus has them. Raises BusFault."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._scanned: set[str] = set()
        """Subjects of the event stream that were scanned since ``unreadable`` was last asked."""
        self._damages: dict[str, Damage | None] = {}

    async def facts(self, stream: Stream) -> StreamFacts:
        """Return the facts of a stream now."""
        info = await self._bus.ask(f"STREAM.INFO.{stream}")
        kept_s = kept_s_in(info["config"])
        return StreamFacts(
            created_at_s=datetime.fromisoformat(info["created"]).timestamp(),
            last_seq=int(info["state"]["last_seq"]),
            kept_s=kept_s if kept_s < math.inf else None,
        )

    async def scan(self, excerpt: Excerpt) -> AsyncGenerator[Stored]:
        """Yield the messages of ``excerpt`` that are stored now."""
        if not excerpt.subject:
            return  # to a consumer, no filter is every message
        options: dict[str, Any] = {"headers_only": True} if excerpt.headers_only else {}
        if excerpt.stream is Stream.FACTS:
            self._scanned.update(excerpt.subject)
        if excerpt.last:
            options["deliver_policy"] = "last_per_subject"
        found = scan(self._bus, excerpt.stream, excerpt.subject, excerpt.after + 1, **options)
        try:
            async for stored in found:
                yield stored
        finally:
            await found.aclose()

    async def unreadable(self) -> list[str]:
        """Return what could not be read of the event stream since this was last asked, in words."""
        subjects, self._scanned = self._scanned, set()
        for subject in subjects - self._damages.keys():
            self._damages[subject] = await find_damage(self._bus, STREAM, [subject])
        return sorted({str(damage) for subject in subjects if (damage := self._damages[subject]) is not None})


async def read(streams: Streams, excerpt: Excerpt) -> list[Stored]:
    """Return the messages of ``excerpt`` that are stored now."""
    return [stored async for stored in streams.scan(excerpt)]

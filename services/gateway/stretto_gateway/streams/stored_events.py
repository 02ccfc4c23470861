"""Stored events of the bus, and the selections by which they are read."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stretto_bus.reading.lost_end import LogPlace

from .continuity import BreakSignal

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
ROUNDS = 5
"""Pages that are read, at most, for one page of the newest events of a team."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event of the stream. ``data`` is the JSON text that its publisher wrote."""

    seq: int
    time_s: float
    type: str
    service: str
    name: str
    job: str
    trace_id: str | None
    data: str


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of events. Without a job: events of all jobs; without names: events of every name."""

    job: str | None = None
    names: tuple[str, ...] = ()

    @property
    def filters(self) -> list[str]:
        """Return the subjects in the stream, by which the server selects."""
        return [f"*.evt.v1.*.{name}.{self.job or '*'}" for name in dict.fromkeys(self.names or ("*",))]


@dataclass(frozen=True, slots=True)
class NewestEvents:
    """Events, newest first. Older ones may lie below the sequence ``before``; None: there are none."""

    events: Sequence[StoredEvent]
    before: int | None


class EventSource(Protocol):
    """A source of stored events."""

    breaks: BreakSignal
    """The breaks of the connection to the source"""

    async def kept_of(self, place: LogPlace) -> int | None:
        """Return the last sequence that is left, if the event at a place is lost; None: it is not. Raises BusFault."""
        ...

    def follow(self, start_seq: int, selection: Selection, live: bool) -> AsyncIterator[StoredEvent]:
        """Yield events from ``start_seq`` on. Without ``live``, end after the last event stored now."""
        ...

    async def newest(self, selection: Selection, limit: int, before: int | None, since_s: float | None) -> NewestEvents:
        """Return at most ``limit`` events below the sequence ``before`` that are no older than ``since_s``."""
        ...


class ReadableEvents:
    """Events of a source that a reader may read."""

    def __init__(self, source: EventSource, readable: Callable[[StoredEvent], Awaitable[bool]]) -> None:
        self._source, self._readable = source, readable
        self.breaks, self.kept_of = source.breaks, source.kept_of

    async def follow(self, start_seq: int, selection: Selection, live: bool) -> AsyncGenerator[StoredEvent]:
        """Yield the readable events (``EventSource.follow``)."""
        events = self._source.follow(start_seq, selection, live)
        try:
            async for event in events:
                if await self._readable(event):
                    yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    async def newest(self, selection: Selection, limit: int, before: int | None, since_s: float | None) -> NewestEvents:
        """Return readable events (``EventSource.newest``).

        The answer has fewer than ``limit`` if most events are others', even if further readable ones lie below
        ``before``.
        """
        found: list[StoredEvent] = []
        for _ in range(ROUNDS):
            page = await self._source.newest(selection, limit, before, since_s)
            for event in page.events:
                if await self._readable(event):
                    found.append(event)
                if len(found) == limit:
                    return NewestEvents(found, event.seq)
            before = page.before
            if before is None:
                break
        return NewestEvents(found, before)


def trace_id_of(traceparent: str) -> str | None:
    """Return the trace id of a W3C ``traceparent`` header; None for any other text, since the id becomes part of an
    address."""
    found = TRACEPARENT.fullmatch(traceparent)
    return found[1] if found else None

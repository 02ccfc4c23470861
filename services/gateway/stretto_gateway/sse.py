"""Server-sent events: the stored events of the bus, resumable by their sequence."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from .problems import Problem

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

ALLOWED_S = 2.0
"""Interval at which a reader's token is checked again."""


ROUNDS = 5
"""Times that more is read for a page of the newest events of one team."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """One event of the stream. ``data`` is the JSON text that its publisher wrote."""

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
    """The wanted events. No job: of all jobs; no names: of every name."""

    job: str | None = None
    names: tuple[str, ...] = ()

    @property
    def filters(self) -> list[str]:
        """Return the subjects in the stream, by which the server selects."""
        return [f"*.evt.v1.*.{name}.{self.job or '*'}" for name in dict.fromkeys(self.names or ("*",))]


@dataclass(frozen=True, slots=True)
class NewestEvents:
    """Events, newest first. Older ones may lie before the sequence ``before``; None: there are none."""

    events: Sequence[StoredEvent]
    before: int | None


class EventSource(Protocol):
    """Source of stored events."""

    def follow(self, start_seq: int, selection: Selection, live: bool) -> AsyncIterator[StoredEvent]:
        """Yield events from ``start_seq`` on; end after the last one stored now unless ``live``."""
        ...

    async def newest(self, selection: Selection, limit: int, before: int | None, since_s: float | None) -> NewestEvents:
        """Return at most ``limit`` events below the sequence ``before`` that are no older than ``since_s``."""
        ...


class ReadableEvents:
    """The events of a source that their reader may read."""

    def __init__(self, source: EventSource, readable: Callable[[StoredEvent], Awaitable[bool]]) -> None:
        self._source, self._readable = source, readable

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
        """Return readable events (``EventSource.newest``). Fewer than ``limit`` if most are others', even if more lie
        before: ``before`` says where to go on."""
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


def document(event: StoredEvent) -> str:
    """Return an event as JSON."""
    head: dict[str, Any] = {
        "seq": event.seq,
        "time_s": event.time_s,
        "type": event.type,
        "service": event.service,
        "event": event.name,
        "job": event.job,
        "trace_id": event.trace_id,
    }
    # the publisher's JSON has no line breaks outside strings, and inside they are escaped: one line is enough
    return json.dumps(head)[:-1] + ', "data": ' + event.data.replace("\n", " ").replace("\r", " ") + "}"


def frame(event: StoredEvent) -> bytes:
    """Format an event as text/event-stream; ``id`` is the stream sequence."""
    return f"id: {event.seq}\nevent: {event.name}\ndata: {document(event)}\n\n".encode()


def start_of(last_event_id: str | None, after: int | None) -> int:
    """Return the first sequence to send; a reconnecting client's header wins over ``after``. Raises Problem 400."""
    if last_event_id is None or last_event_id == "":
        return (after or 0) + 1
    if not last_event_id.isascii() or not last_event_id.isdigit() or len(last_event_id) > 18:
        raise Problem(
            400,
            "bad-request",
            "Last-Event-ID is not a sequence of this stream",
            field="Last-Event-ID",
            value=last_event_id,
            remedy="the id of the last event received, a whole number",
        )
    return int(last_event_id) + 1


class Readers:
    """Number of open streams of each caller: at most ``most``. ``name``: of such streams, ``remedy``: against more."""

    def __init__(self, most: int, name: str, remedy: str) -> None:
        self._most, self._name, self._remedy = most, name, remedy
        self._open: Counter[str] = Counter()

    def check(self, caller: str) -> None:
        """Check that the caller may open another stream. Raises Problem 429."""
        if self._open[caller] >= self._most:
            raise Problem(
                429,
                "too-many-streams",
                f"{caller} reads {self._most} {self._name} already",
                field="streams",
                value=str(self._most),
                remedy=self._remedy,
            )

    @contextmanager
    def reading(self, caller: str) -> Generator[None]:
        """Count a stream of the caller meanwhile. Raises Problem 429."""
        self.check(caller)
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]

    async def counted(self, caller: str, frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the frames of one stream, which counts meanwhile."""
        if self._open[caller] >= self._most:  # several began at once
            yield b": too many event streams\n\n"
            return
        with self.reading(caller):
            async with aclosing(frames):
                async for each in frames:
                    yield each


async def stream(
    source: EventSource,
    start_seq: int,
    selection: Selection,
    live: bool,
    keepalive_s: float,
    allowed: Callable[[], Awaitable[bool]],
) -> AsyncGenerator[bytes]:
    """Yield the frames of the selected events, and a comment after ``keepalive_s`` without any.

    The stream ends soon after the reader is no longer ``allowed`` to read.
    """
    yield b"retry: 1000\n\n"
    events = source.follow(start_seq, selection, live)
    clock = asyncio.get_running_loop().time
    sent_s = checked_s = clock()
    pending: asyncio.Task[StoredEvent] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(events))  # type: ignore[arg-type]
            done, _ = await asyncio.wait([pending], timeout=min(keepalive_s, ALLOWED_S))
            if clock() - checked_s >= ALLOWED_S:
                checked_s = clock()
                if not await allowed():
                    yield b": the token is no longer valid\n\n"
                    return
            if not done:
                if clock() - sent_s >= keepalive_s:
                    sent_s = clock()
                    yield b": still here\n\n"
                continue
            try:
                event = pending.result()
            except StopAsyncIteration:
                return
            finally:
                pending = None
            sent_s = clock()
            yield frame(event)
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.wait([pending])
        await events.aclose()  # type: ignore[attr-defined]


def trace_id_of(traceparent: str) -> str | None:
    """Return the trace id of a W3C ``traceparent`` header, None for any other text: it becomes part of an address."""
    found = TRACEPARENT.fullmatch(traceparent)
    return found[1] if found else None

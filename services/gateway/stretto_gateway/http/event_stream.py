"""Event streams as server-sent events: their frames, and the number of streams that a caller may open."""

from __future__ import annotations

import asyncio
import json
import re
from asyncio import FIRST_COMPLETED
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import Any

from stretto_bus.faults import BusFault
from stretto_bus.reading.lost_end import LogPlace
from stretto_wire.surroundings import wall_s

from ..problems import Problem
from ..streams.stored_events import EventSource, Selection, StoredEvent

LAST_EVENT_ID = re.compile(r"([0-9]{1,18})(?:@([0-9]{1,12}(?:\.[0-9]{1,9})?))?")
"""Sequence of an event, and the time at which it was stored: by both, a server knows whether it has lost it."""
END_LOST = "end-lost"
"""Name of the frame after which a stream ends: nothing that came with a later id is stored any more."""
ALLOWED_S = 2.0
"""Interval at which the token of a stream's reader is checked again."""


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
    """Format an event as text/event-stream; its ``id`` is the sequence in the stream."""
    return f"id: {event.seq}\nevent: {event.name}\ndata: {document(event)}\n\n".encode()


def loss(kept: int) -> StoredEvent:
    """Return the news that nothing is stored any more of what was after the sequence ``kept``."""
    kind, data = f"stretto.gateway.{END_LOST}.v1", json.dumps({"kept": kept})
    return StoredEvent(kept, wall_s(), kind, "gateway", END_LOST, "", None, data)


def place_of(last_event_id: str | None, after: int | None) -> LogPlace:
    """Return the place of the last event that a reader has. The header of a reconnecting client wins over ``after``.
    Raises Problem 400.
    """
    if last_event_id is None or last_event_id == "":
        return LogPlace(after or 0, 0.0)
    if (found := LAST_EVENT_ID.fullmatch(last_event_id)) is None:
        raise Problem(
            400,
            "bad-request",
            "Last-Event-ID is not a sequence of this stream",
            field="Last-Event-ID",
            value=last_event_id,
            remedy="the id of the last event received, a whole number; @ and its time_s may follow",
        )
    return LogPlace(int(found[1]), float(found[2] or 0.0))


class Readers:
    """Open streams of each caller: at most ``most``.

    ``name``: how a refusal calls such streams, ``remedy``: what it advises against too many.
    """

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
        """Count a stream of the caller until the block ends. Raises Problem 429."""
        self.check(caller)
        self._open[caller] += 1
        try:
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]

    async def counted(self, caller: str, frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        """Yield the frames of a stream, which counts until it ends."""
        if self._open[caller] >= self._most:  # other streams of the caller began since `check`
            yield b": too many event streams\n\n"
            return
        with self.reading(caller):
            async with aclosing(frames):
                async for each in frames:
                    yield each


async def stream(
    source: EventSource,
    after: LogPlace,
    selection: Selection,
    live: bool,
    keepalive_s: float,
    allowed: Callable[[], Awaitable[bool]],
) -> AsyncGenerator[bytes]:
    """Yield the frames of the selected events after a place, and a comment whenever ``keepalive_s`` pass without one.

    The stream ends soon after its reader is no longer ``allowed`` to read. At its begin, and a ``live`` one after each
    break of the connection to the bus, it looks whether the last event still is stored. If the server has lost that,
    the stream tells what is left, and ends: its reader forgets what came later, and reads on from there.
    """
    yield b"retry: 1000\n\n"
    while True:
        broke = source.breaks.next
        try:
            kept = await source.kept_of(after)
        except BusFault:  # whoever resumes asks again
            yield b": whether the last event is stored is not known yet\n\n"
            return
        if kept is not None:
            yield frame(loss(kept))
            return
        events = source.follow(after.seq + 1, selection, live)
        async with aclosing(_until(broke if live else None, events, keepalive_s, allowed)) as parts:
            async for part in parts:
                if isinstance(part, StoredEvent):
                    after = LogPlace(part.seq, part.time_s)
                yield frame(part) if isinstance(part, StoredEvent) else part
        if not (live and broke.done()):
            return


async def _until(
    broke: asyncio.Future[None] | None,
    events: AsyncIterator[StoredEvent],
    keepalive_s: float,
    allowed: Callable[[], Awaitable[bool]],
) -> AsyncGenerator[StoredEvent | bytes]:
    """Yield events and comments until the connection breaks. What has arrived since is not yielded."""
    clock = asyncio.get_running_loop().time
    sent_s = checked_s = clock()
    pending: asyncio.Task[StoredEvent] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(events))  # type: ignore[arg-type]
            waited = [pending] if broke is None else [pending, broke]
            done, _ = await asyncio.wait(waited, timeout=min(keepalive_s, ALLOWED_S), return_when=FIRST_COMPLETED)
            if broke is not None and broke.done():
                return
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
            yield event
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.wait([pending])
        await events.aclose()  # type: ignore[attr-defined]

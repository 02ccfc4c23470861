"""Event streams as server-sent events: their frames, and the number of streams that a caller may open."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import Any

from ..problems import Problem
from ..streams.stored_events import EventSource, Selection, StoredEvent

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


def start_of(last_event_id: str | None, after: int | None) -> int:
    """Return the first sequence to send. The header of a reconnecting client wins over ``after``. Raises Problem
    400."""
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
    start_seq: int,
    selection: Selection,
    live: bool,
    keepalive_s: float,
    allowed: Callable[[], Awaitable[bool]],
) -> AsyncGenerator[bytes]:
    """Yield the frames of the selected events, and a comment whenever ``keepalive_s`` pass without a frame.

    The stream ends soon after its reader is no longer ``allowed`` to read.
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

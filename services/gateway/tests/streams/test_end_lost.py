"""An open stream of events tells its reader what the server has lost of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from stretto_bus.faults import BusFault
from stretto_bus.reading.lost_end import LogPlace
from stretto_client.protocol import events as client
from stretto_gateway.http.event_stream import END_LOST, place_of, stream
from stretto_gateway.streams.continuity import BreakSignal
from stretto_gateway.streams.stored_events import NewestEvents, Selection, StoredEvent


class Source:
    """Five events, and then no more. ``kept``: what it tells of the place of a reader that resumes."""

    def __init__(self, kept: int | None = None) -> None:
        self.breaks = BreakSignal()
        self.asked: list[LogPlace] = []
        self.kept = kept
        self.is_silent = False

    async def kept_of(self, place: LogPlace) -> int | None:
        self.asked.append(place)
        if self.is_silent:
            raise BusFault("nobody answers")
        return self.kept if place.seq else None

    async def follow(self, start_seq: int, selection: Selection, live: bool) -> AsyncGenerator[StoredEvent]:
        for seq in range(start_seq, 6):
            yield StoredEvent(seq, 1.0, "t", "s", "job-cancelled", "a", None, "{}")
        await asyncio.Event().wait()

    async def newest(self, selection: Selection, limit: int, before: int | None, since_s: float | None) -> NewestEvents:
        raise NotImplementedError


async def allowed() -> bool:
    return True


def frames(source: Source, after: LogPlace) -> AsyncGenerator[bytes]:
    return stream(source, after, Selection(), True, 15.0, allowed)


def told(frame: bytes) -> tuple[str, str]:
    lines = dict(line.split(": ", 1) for line in frame.decode().strip().splitlines())
    return lines["event"], lines["id"]


async def opened(source: Source, events: int) -> AsyncGenerator[bytes]:
    """Open a stream and read so many of its events."""
    found = frames(source, LogPlace(0, 0.0))
    for _ in range(1 + events):
        await anext(found)
    return found


async def test_an_open_stream_looks_after_a_break_says_what_is_left_and_ends() -> None:
    source = Source(kept=3)
    found = await opened(source, 5)
    source.breaks.note()
    async with asyncio.timeout(60):
        assert [told(frame) async for frame in found] == [(END_LOST, "3")]
    assert source.asked[-1] == LogPlace(5, 1.0)


async def test_an_open_stream_of_which_nothing_is_lost_goes_on_after_a_break() -> None:
    source = Source()
    found = await opened(source, 3)
    source.breaks.note()
    async with asyncio.timeout(60):
        assert [told(await anext(found)) for _ in range(2)] == [("job-cancelled", "4"), ("job-cancelled", "5")]
    await found.aclose()


async def test_an_open_stream_ends_if_nobody_knows_what_is_left_so_that_its_reader_asks_again() -> None:
    source = Source()
    found = await opened(source, 3)
    source.is_silent = True
    source.breaks.note()
    async with asyncio.timeout(60):
        assert [frame async for frame in found if frame.startswith(b"id:")] == []


async def test_who_comes_back_with_an_event_that_is_lost_is_told() -> None:
    source = Source(kept=2)
    place = place_of("5@1800000000.25", None)
    assert [told(frame) async for frame in frames(source, place) if b"id:" in frame] == [(END_LOST, "2")]
    assert source.asked == [LogPlace(5, 1_800_000_000.25)]
    assert place_of("5", 9) == LogPlace(5, 0.0)
    assert place_of(None, 9) == LogPlace(9, 0.0)


def test_client_and_gateway_mean_the_same_event() -> None:
    assert client.END_LOST == END_LOST

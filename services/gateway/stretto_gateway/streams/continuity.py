"""Finds out whether the stream of facts still is what was read of it: without power, a server may lose its end.

Events that come later then have sequences that were read already. One look after each break of the connection tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import NoReturn

import stretto_wire as wire
import structlog
from stretto_bus import Bus, BusFault
from stretto_bus.reading.lost_end import LogPlace, is_replaced, kept_until, state_of
from stretto_bus.reading.ordered_consumer import OrderedConsumer, Stored
from stretto_bus.tasks import end

LOOKS_AGAIN_S = 1.0
log = structlog.get_logger("stretto.gateway")


class EndLost(BusFault):
    """The server has lost events that were read."""


class BreakSignal:
    """Tells whoever reads a stream that the connection was broken: what comes next may have other sequences."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    @property
    def next(self) -> asyncio.Future[None]:
        """Return what is done once the connection has broken, and before anything comes of the new one."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def note(self) -> None:
        """Note that the connection was broken."""
        if self._next is not None:
            self._next.set_result(None)
            self._next = None


class Continuity:
    """The last event that was read, now and before a break that nobody has looked at."""

    def __init__(self) -> None:
        self.consumer: OrderedConsumer | None = None
        """The consumer that brings the events, once it is open"""
        self._last = LogPlace(0, 0.0)
        self._before = self._last
        self._broke = asyncio.Event()

    def read(self, stored: Stored) -> None:
        """Note an event that was read."""
        self._last = LogPlace(stored.seq, stored.time_s)

    def reconnected(self) -> None:
        """Note that the connection was broken: what has arrived will be read, and comes from before."""
        if not self._broke.is_set():
            newest = self.consumer.newest if self.consumer is not None else None
            self._before = self._last if newest is None else LogPlace(newest.seq, newest.time_s)
            self._broke.set()

    async def lost(self, bus: Bus) -> NoReturn:
        """Look after each break. Raises EndLost."""
        while True:
            await self._broke.wait()
            try:
                kept = await kept_of(bus, self._before)
            except BusFault as fault:
                log.warning("the end of the stream is not known yet", fault=str(fault))
                await asyncio.sleep(LOOKS_AGAIN_S)
                continue
            if kept is not None:
                raise EndLost(f"{wire.STREAM} has lost what was read from {kept + 1} to {self._before.seq}")
            self._broke.clear()


async def kept_of(bus: Bus, place: LogPlace) -> int | None:
    """Return the last sequence of the stream that its server has kept, if it has lost the message at a place; None: it
    has not, or the message has left the stream, as old ones do. Raises BusFault.
    """
    for pause_s in (0.0, LOOKS_AGAIN_S):  # a new leader of a cluster may lag for a moment
        await asyncio.sleep(pause_s)
        state = await state_of(bus)
        first, end = int(state["first_seq"]), int(state["last_seq"])
        if end >= place.seq and (first > place.seq or not await is_replaced(bus, place)):
            return None
    # where the server's clock went back meanwhile, times alone would tell that all is kept
    return min(await kept_until(bus, LogPlace(0, 0.0), place, end + 1), place.seq - 1)


async def while_whole(bus: Bus, reading: Callable[[Continuity], Coroutine[None, None, None]]) -> None:
    """Read the stream of facts as long as its server has what was read. Raises EndLost, and what ``reading`` raises."""
    continuity = Continuity()
    bus.on_reconnect.append(continuity.reconnected)
    tasks = [asyncio.create_task(reading(continuity)), asyncio.create_task(continuity.lost(bus))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        bus.on_reconnect.remove(continuity.reconnected)
        for task in tasks:
            await end(task)

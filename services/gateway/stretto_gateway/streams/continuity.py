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
from stretto_bus.reading.lost_end import LogPlace, is_replaced, state_of
from stretto_bus.reading.ordered_consumer import OrderedConsumer, Stored
from stretto_bus.tasks import end

LOOKS_AGAIN_S = 1.0
log = structlog.get_logger("stretto.gateway")


class EndLost(BusFault):
    """The server has lost events that were read."""


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
                is_lost = await self._is_lost(bus)
                if is_lost:  # a new leader of a cluster may lag for a moment
                    await asyncio.sleep(LOOKS_AGAIN_S)
                    is_lost = await self._is_lost(bus)
            except BusFault as fault:
                log.warning("the end of the stream is not known yet", fault=str(fault))
                await asyncio.sleep(LOOKS_AGAIN_S)
                continue
            if is_lost:
                raise EndLost(f"{wire.STREAM} has lost what was read up to {self._before.seq}: its server lost its end")
            self._broke.clear()

    async def _is_lost(self, bus: Bus) -> bool:
        return await state_of(bus, "last_seq") < self._before.seq or await is_replaced(bus, self._before)


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

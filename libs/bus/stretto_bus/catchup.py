"""A tail that begins far behind: one consumer per filter until the end of then, merged in stored order.

To find the next message of several filters the server (2.15) looks through all the subjects that they match and walks
on from each: with some hundred jobs that costs more than everything else about a message. One filter is a plain walk.
Close to the end of the stream there is nothing to look through, and one consumer has all filters again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from stretto_bus.bus import Bus
from stretto_bus.ordered_consumer import BATCH, QUEUE_MESSAGES, OrderedConsumer, Stored

FAR_BEHIND = 2000
"""messages from which on it pays to open and close a consumer per filter"""
STALLED_S = 2.0
"""A filter that brings nothing for so long has nothing: what it had when it was opened has expired."""


class LaneConsumer(OrderedConsumer):
    """Of several, each of which may hold half as much as a single one. Of what it was pushed beyond that, it threw
    away as much again (1.7 deliveries of each message of a backlog of 100,000)."""

    most_waiting = QUEUE_MESSAGES // 2
    asks = True


class Lane:
    """The messages of one filter, up to the sequence ``end``."""

    def __init__(self, tail: OrderedConsumer, end: int) -> None:
        self._tail = tail
        self._end = end
        self._seen = False
        self.waiting: deque[Stored] = deque()
        self.done = tail.backlog == 0  # whatever comes was stored later

    async def fill(self) -> None:
        """Take what has arrived."""
        if self.done or self.waiting:
            return
        self.waiting.extend(await self._tail.take())
        self._seen = self._seen or bool(self.waiting)
        if self.waiting and self.waiting[-1].seq >= self._end:
            self.done = True
            while self.waiting and self.waiting[-1].seq > self._end:
                self.waiting.pop()
        elif self._seen and self._tail.pending == 0 and not self._tail.ready():
            self.done = True  # all that was stored when it was opened

    @property
    def ready(self) -> bool:
        return self.done or bool(self.waiting) or self._tail.ready()

    def on_arrival(self, wake: asyncio.Event) -> None:
        self._tail.on_arrival(wake)

    async def close(self) -> None:
        await self._tail.close()


class MergedConsumer:
    """What ``OrderedConsumer`` gives, from the same place on; cheap also far behind the end."""

    def __init__(self, bus: Bus, stream: str, filters: Sequence[str], start: int, end: int, lanes: list[Lane]) -> None:
        self._bus, self._stream, self._filters = bus, stream, filters
        self._next, self._end = start, end
        self._lanes = lanes
        self._tail: OrderedConsumer | None = None
        self._wake = asyncio.Event()
        self._stalled: asyncio.TimerHandle | None = None
        self._give_up = False

    def ready(self) -> bool:
        """Whether ``take`` would bring something, or get on."""
        return self._tail.ready() if self._tail is not None else all(lane.ready for lane in self._lanes)

    def on_arrival(self, wake: asyncio.Event) -> None:
        """Set ``wake`` whenever something arrives."""
        self._wake = wake
        for each in self._lanes if self._tail is None else (self._tail,):
            each.on_arrival(wake)

    async def take(self, limit: int = BATCH) -> list[Stored]:
        """What has arrived and nothing earlier can come before, at most ``limit``; possibly nothing.

        Raises:
            BusFault: the server refused the consumer that all filters end in.
        """
        if self._tail is not None:
            return await self._tail.take(limit)
        taken: list[Stored] = []
        while len(taken) < limit:
            for lane in self._lanes:
                await lane.fill()
            heads = sorted((lane.waiting[0].seq, index) for index, lane in enumerate(self._lanes) if lane.waiting)
            if any(not lane.done and not lane.waiting for lane in self._lanes):  # it may bring the next
                await self._wait()
                return taken
            if not heads:
                self._next = self._end + 1
                await self._arrive()
                return taken
            waiting = self._lanes[heads[0][1]].waiting
            bound = heads[1][0] if len(heads) > 1 else self._end + 1
            while waiting and waiting[0].seq < bound and len(taken) < limit:
                taken.append(waiting.popleft())
            self._next = taken[-1].seq + 1
            self._get_on()
        return taken

    def _get_on(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled, self._give_up = None, False

    async def _wait(self) -> None:
        """Nothing more for now; for too long, and one consumer goes on from here."""
        if self._give_up:
            await self._arrive()
        elif self._stalled is None:
            self._stalled = asyncio.get_running_loop().call_later(STALLED_S, self._stall)

    def _stall(self) -> None:
        self._give_up = True
        self._wake.set()

    async def _arrive(self) -> None:
        """From here on all filters in one consumer."""
        await self._close_lanes()
        self._tail = await OrderedConsumer.open(self._bus, self._stream, self._filters, self._next)
        self._tail.on_arrival(self._wake)
        self._wake.set()

    async def close(self) -> None:
        await self._close_lanes()
        if self._tail is not None:
            await self._tail.close()

    async def _close_lanes(self) -> None:
        lanes, self._lanes = self._lanes, []
        if self._stalled is not None:
            self._stalled.cancel()
        for lane in lanes:
            await lane.close()


async def open_consumer(bus: Bus, stream: str, filters: Sequence[str], start: int) -> OrderedConsumer | MergedConsumer:
    """The messages of ``filters`` from ``start`` on.

    In a cluster always one consumer: what one replica has may be less than what another told to be the end.

    Raises:
        BusFault: the server refused a consumer.
    """
    tail = await OrderedConsumer.open(bus, stream, filters, start)
    if tail.backlog < FAR_BEHIND or len(filters) < 2 or bus.clustered:
        return tail
    await tail.close()
    lanes: list[Lane] = []
    end = int((await bus.ask(f"STREAM.INFO.{stream}"))["state"]["last_seq"])
    try:
        for each in filters:
            lanes.append(Lane(await LaneConsumer.open(bus, stream, [each], start), end))
    except BaseException:
        for lane in lanes:
            await lane.close()
        raise
    return MergedConsumer(bus, stream, filters, start, end, lanes)

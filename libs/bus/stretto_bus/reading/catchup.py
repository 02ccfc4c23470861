"""A consumer that begins far behind: one consumer per filter up to the present end, merged in stored order.

To find the next message of several filters, the server (2.15) searches all subjects that they match and walks on from
each. With some hundred jobs that costs more than everything else about a message. One filter is a plain walk. Near the
end of the stream there is nothing to search, and one consumer takes all filters again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from stretto_bus.bus import Bus
from stretto_bus.reading.ordered_consumer import BATCH, QUEUE_MESSAGES, OrderedConsumer, Stored

MERGE_FROM = 2000
"""Backlog from which a consumer per filter pays."""
STALLED_S = 2.0
"""A filter that brings nothing for so long has nothing: its messages have expired since it was opened."""


class PullConsumer(OrderedConsumer):
    """An ordered consumer that pulls, with half the bound, because several run at once.

    Pushed ones had no room, dropped messages and received them again: 1.7 deliveries of each message of a backlog of
    100,000.
    """

    queue_max = QUEUE_MESSAGES // 2
    pulls = True


class Branch:
    """The messages of one filter, up to sequence ``end``."""

    def __init__(self, consumer: OrderedConsumer, end: int) -> None:
        self._consumer = consumer
        self._end = end
        self._seen = False
        self.waiting: deque[Stored] = deque()
        self.done = consumer.backlog == 0  # later messages are not ours to bring

    async def fill(self) -> None:
        """Take the messages that have arrived."""
        if self.done or self.waiting:
            return
        self.waiting.extend(await self._consumer.take())
        self._seen = self._seen or bool(self.waiting)
        if self.waiting and self.waiting[-1].seq >= self._end:
            self.done = True
            while self.waiting and self.waiting[-1].seq > self._end:
                self.waiting.pop()
        elif self._seen and self._consumer.pending == 0 and not self._consumer.ready():
            self.done = True  # everything that was stored when it was opened has come

    @property
    def ready(self) -> bool:
        return self.done or bool(self.waiting) or self._consumer.ready()

    def on_arrival(self, wake: asyncio.Event) -> None:
        self._consumer.on_arrival(wake)

    async def close(self) -> None:
        await self._consumer.close()


class SequenceSpan(NamedTuple):
    """The messages of ``filters`` of a stream, from sequence ``start`` on; branches bring those up to ``end``."""

    stream: str
    filters: Sequence[str]
    start: int
    end: int


class MergedConsumer:
    """The same messages as an ``OrderedConsumer``, cheap also far behind the end."""

    def __init__(self, bus: Bus, span: SequenceSpan, branches: list[Branch]) -> None:
        self._bus = bus
        self._span = span
        self._next = span.start
        self._branches = branches
        self._consumer: OrderedConsumer | None = None
        self._wake = asyncio.Event()
        self._stalled: asyncio.TimerHandle | None = None
        self._give_up = False

    def ready(self) -> bool:
        """True if ``take`` would bring messages or make progress."""
        return self._consumer.ready() if self._consumer is not None else all(branch.ready for branch in self._branches)

    def on_arrival(self, wake: asyncio.Event) -> None:
        """Set ``wake`` whenever something arrives."""
        self._wake = wake
        for each in self._branches if self._consumer is None else (self._consumer,):
            each.on_arrival(wake)

    async def take(self, limit: int = BATCH) -> list[Stored]:
        """Take at most ``limit`` messages that nothing earlier can precede any more; possibly none.

        Raises:
            BusFault: the server refused the consumer of all filters.
        """
        if self._consumer is not None:
            return await self._consumer.take(limit)
        taken: list[Stored] = []
        while len(taken) < limit:
            for branch in self._branches:
                await branch.fill()
            heads = sorted(
                (branch.waiting[0].seq, index) for index, branch in enumerate(self._branches) if branch.waiting
            )
            if any(not branch.done and not branch.waiting for branch in self._branches):  # it may bring the next
                await self._wait()
                return taken
            if not heads:
                self._next = self._span.end + 1
                await self._join()
                return taken
            waiting = self._branches[heads[0][1]].waiting
            bound = heads[1][0] if len(heads) > 1 else self._span.end + 1
            while waiting and waiting[0].seq < bound and len(taken) < limit:
                taken.append(waiting.popleft())
            self._next = taken[-1].seq + 1
            self._progressed()
        return taken

    def _progressed(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled, self._give_up = None, False

    async def _wait(self) -> None:
        """Wait for the branch that may bring the next message; after ``STALLED_S``, go on with one consumer."""
        if self._give_up:
            await self._join()
        elif self._stalled is None:
            self._stalled = asyncio.get_running_loop().call_later(STALLED_S, self._stall)

    def _stall(self) -> None:
        self._give_up = True
        self._wake.set()

    async def _join(self) -> None:
        """Go on from here with one consumer of all filters."""
        await self._close_branches()
        self._consumer = await OrderedConsumer.open(self._bus, self._span.stream, self._span.filters, self._next)
        self._consumer.on_arrival(self._wake)
        self._wake.set()

    async def close(self) -> None:
        await self._close_branches()
        if self._consumer is not None:
            await self._consumer.close()

    async def _close_branches(self) -> None:
        branches, self._branches = self._branches, []
        if self._stalled is not None:
            self._stalled.cancel()
        for branch in branches:
            await branch.close()


async def open_consumer(bus: Bus, stream: str, filters: Sequence[str], start: int) -> OrderedConsumer | MergedConsumer:
    """The messages of ``filters`` from ``start`` on.

    In a cluster it is always one consumer: a replica may hold less than the end that another one reports.

    Raises:
        BusFault: the server refused a consumer.
    """
    consumer = await OrderedConsumer.open(bus, stream, filters, start)
    if consumer.backlog < MERGE_FROM or len(filters) < 2 or bus.clustered:
        return consumer
    await consumer.close()
    branches: list[Branch] = []
    end = int((await bus.ask(f"STREAM.INFO.{stream}"))["state"]["last_seq"])
    try:
        for each in filters:
            branches.append(Branch(await PullConsumer.open(bus, stream, [each], start), end))
    except BaseException:
        for branch in branches:
            await branch.close()
        raise
    return MergedConsumer(bus, SequenceSpan(stream, filters, start, end), branches)

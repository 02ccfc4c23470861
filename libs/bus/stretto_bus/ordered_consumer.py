"""The ordered log: read it by tails that are never acknowledged; ``writer`` writes it through a fence.

A tail is an ephemeral consumer without acknowledgements that starts at a sequence of our choosing: the snapshot is
the cursor, the server keeps none. A fence (RUNTIME.md, step 3) is a message of the same stream whose sequence every
output must expect to be the last of its subject: when a newer owner has written its own, the server refuses ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple

import structlog
from nats.aio.msg import Msg

from stretto_bus.bus import Bus
from stretto_bus.faults import BusFault
from stretto_bus.received import Headers

HEARTBEAT_S = 10.0
CLUSTER_HEARTBEAT_S = 1.0
"""A consumer lives on one server of a cluster, and may die there while our connection, to another one, stays."""
BATCH = 256
QUEUE_MESSAGES = 4096
"""A reader that is slower than the server has at most so much in memory: then the consumer is given up, and opened
again after the last message that was taken in once a quarter is left. Of large messages the server's flow control
sends at most 32 MiB ahead."""
SILENCE_S = 15.0
ASKED_S = 30.0
ASKED_BYTES = 16 << 20
"""At most so much is asked for at once, which any message fits into: a server's flow control is for pushes."""
HEARTBEAT, EXPIRED, ENDED = "100", "408", "409"
SENT = ("Batch Completed", "Message Size Exceeds MaxBytes")
"""how a request ends for which all was sent that there was room for"""

NO_HEADERS = Headers()

log = structlog.get_logger("stretto.log")


class Stored(NamedTuple):
    """A message of a stream. ``time_s``: when the server stored it, seconds since the epoch."""

    seq: int
    time_s: float
    subject: str
    headers: Mapping[str, str]
    data: bytes


class OrderedConsumer:
    """Every message of ``filters`` from sequence ``start`` on, in stored order, none missing, none twice.

    A gap, a silent server, a reconnect or a reader that was too slow reopens the consumer after the last message that
    was taken in.
    """

    most_waiting = QUEUE_MESSAGES
    asks = False
    """for as much as there is room for, instead of being sent all there is: worth a request where much is far behind"""

    def __init__(self, bus: Bus, stream: str, filters: Sequence[str], start: int = 1, **options: Any) -> None:
        self._bus = bus
        self._stream = stream
        self._filters = list(filters)
        self._options = options
        self._next = start
        self._first = True
        self._queue: deque[Stored | str] = deque()  # a str is a flow-control reply, sent when it is reached
        self._wake = asyncio.Event()
        self._consumer = ""
        self._expected = 1
        self._subscription: Any = None
        self._reopening: asyncio.Task[None] | None = None
        self._heard = False
        self._heard_s = 0.0
        self._closed = False
        self._paused = False
        self._drained = asyncio.Event()
        self._inbox = ""
        self._asked = 0
        """messages that are asked for and have not come"""
        self.pauses = 0
        """how often the reader was too slow"""
        self._heartbeat_s = CLUSTER_HEARTBEAT_S if bus.clustered else HEARTBEAT_S
        self.backlog = 0
        """how many messages the server still had when the tail was opened"""
        self.pending = 0
        """how many the server still had after the last one that arrived"""

    @classmethod
    async def open(
        cls, bus: Bus, stream: str, filters: Sequence[str], start: int = 1, **options: Any
    ) -> OrderedConsumer:
        """Open; ``options`` are consumer settings (``headers_only``, ``deliver_policy``).

        Raises:
            BusFault: the server refused the consumer.
        """
        tail = cls(bus, stream, filters, start, **options)
        bus.consumers.add(tail)
        bus.on_reconnect.append(tail._reopen)
        bus.sweeps.append(tail._watch)
        try:
            await tail._create()
        except BaseException:
            await tail.close()
            raise
        return tail

    def ready(self) -> bool:
        """Whether ``batch`` would return at once."""
        return bool(self._queue)

    @property
    def waiting(self) -> int:
        """Messages that are stored and not taken, as far as is known: here and, after the last arrival, there."""
        return len(self._queue) + self.pending

    def on_arrival(self, wake: asyncio.Event) -> None:
        """Set ``wake`` whenever something arrives (a reader that also waits for other things)."""
        if self._queue:
            wake.set()
        self._wake = wake

    async def take(self, limit: int = BATCH) -> list[Stored]:
        """What has arrived, at most ``limit``; possibly nothing."""
        queue = self._queue
        taken: list[Stored] = []
        while queue and len(taken) < limit:
            item = queue.popleft()
            if isinstance(item, str):
                with contextlib.suppress(BusFault):
                    await self._bus.send(item, b"")
            else:
                taken.append(item)
        if self._paused and len(queue) <= self.most_waiting // 4:
            self._drained.set()
        if self.asks and self._consumer:
            with contextlib.suppress(BusFault):  # the reconnect opens it anew
                await self._ask()
        return taken

    async def _ask(self) -> None:
        """For the next, once there is room for half of what may wait."""
        room = self.most_waiting - len(self._queue) - self._asked
        if room >= self.most_waiting // 2:
            self._asked += room
            wanted = {
                "batch": room,
                "max_bytes": ASKED_BYTES,
                "expires": int(ASKED_S * 1e9),
                "idle_heartbeat": int(self._heartbeat_s * 1e9),
            }
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
            await self._bus.send(subject, json.dumps(wanted).encode(), reply=self._inbox)

    async def batch(self, limit: int = BATCH) -> list[Stored]:
        """Wait for at least one message."""
        while True:
            if taken := await self.take(limit):
                return taken
            self._wake.clear()
            await self._wake.wait()

    async def close(self) -> None:
        self._closed = True
        self._bus.consumers.discard(self)
        if self._reopen in self._bus.on_reconnect:
            self._bus.on_reconnect.remove(self._reopen)
        if self._watch in self._bus.sweeps:
            self._bus.sweeps.remove(self._watch)
        if self._reopening is not None:
            self._reopening.cancel()
        await self._drop()

    async def _drop(self) -> None:
        subscription, self._subscription = self._subscription, None
        consumer, self._consumer = self._consumer, ""
        if subscription is not None:
            with contextlib.suppress(Exception):  # the connection may be gone: then the consumer goes by itself
                await subscription.unsubscribe()
                await self._bus.send(f"$JS.API.CONSUMER.DELETE.{self._stream}.{consumer}", b"")

    async def _create(self) -> None:
        bus = self._bus
        consumer = uuid.uuid4().hex[:16]
        self._consumer = consumer
        self._expected = 1
        self._heard_s = asyncio.get_running_loop().time()
        self._inbox = f"{bus.inbox}.tail.{consumer}"
        self._asked = self.most_waiting  # nobody is to ask for more before it is there

        def arrived(msg: Msg) -> None:  # carries the stored subject: only the closure knows whose it is
            if self._consumer == consumer and not self._paused:
                self._arrived(msg)

        self._subscription = await bus.subscribe(self._inbox, arrived)
        heartbeat_ns = int(self._heartbeat_s * 1e9)
        pushed = {"deliver_subject": self._inbox, "flow_control": True, "idle_heartbeat": heartbeat_ns}
        config: dict[str, Any] = {
            "name": consumer,
            **({} if self.asks else pushed),
            "ack_policy": "none",
            "max_deliver": 1,
            "filter_subjects": self._filters,
            "inactive_threshold": int(30e9),
            "mem_storage": True,
            "num_replicas": 1,
            **self._options,
        }
        if not (self._first and "deliver_policy" in config):
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, self._next)}
        body = {"stream_name": self._stream, "config": config}
        answer = await bus.ask(f"CONSUMER.CREATE.{self._stream}.{consumer}", body)
        # what was already delivered counts: the server may push before it answers
        delivered = int(answer.get("delivered", {}).get("consumer_seq", 0))
        if self._first:
            self.backlog = int(answer.get("num_pending", 0)) + delivered
        self._first = False
        if self.asks:
            self._asked = 0
            await self._ask()

    def _arrived(self, msg: Msg) -> None:
        self._heard = True
        tokens = msg.reply.split(".")
        if tokens[0] != "$JS" or tokens[1] != "ACK":
            self._control(msg, msg.headers or NO_HEADERS)
            return
        if len(tokens) > 9:  # with domain and account
            tokens = tokens[2:]
        if int(tokens[6]) != self._expected:
            log.warning("gap in a tail", expected=self._expected, got=int(tokens[6]))
            self._reopen()
            return
        self._expected += 1
        self._asked -= 1
        seq = int(tokens[5])
        self._next = seq + 1
        self.pending = int(tokens[8])
        self._queue.append(Stored(seq, int(tokens[7]) / 1e9, msg.subject, msg.headers or NO_HEADERS, msg.data))
        self._wake.set()
        if len(self._queue) >= self.most_waiting and not self.asks:
            self._pause()

    def _control(self, msg: Msg, headers: Mapping[str, str]) -> None:
        if msg.reply:  # flow control: answer once everything before it has been handled
            self._queue.append(msg.reply)
            self._wake.set()
            return
        status = headers.get("Status", "")
        if self.asks and status != HEARTBEAT:
            if status == EXPIRED or (status == ENDED and headers.get("Description") in SENT):
                self._asked -= int(headers.get("Nats-Pending-Messages", self._asked))
                self._wake.set()
            else:  # the consumer is gone
                self._reopen()
            return
        stalled = headers.get("Nats-Consumer-Stalled")
        if stalled:
            self._queue.append(stalled)
            self._wake.set()
        last = headers.get("Nats-Last-Consumer")
        if last is not None and int(last) >= self._expected:
            log.warning("lost end of a tail", expected=self._expected, last=int(last))
            self._reopen()

    def _watch(self, now: float) -> None:
        if self._heard:
            self._heard, self._heard_s = False, now
        if self.asks and not self._asked:
            self._heard_s = now  # nothing is to come
        if now - self._heard_s > 3 * self._heartbeat_s and self._bus.connected:
            self._heard_s = now
            self._reopen()

    def _reopen(self) -> None:
        if self._closed or (self._reopening is not None and not self._reopening.done()):
            return
        self._reopening = asyncio.get_running_loop().create_task(self._reopen_surely())

    def _pause(self) -> None:
        if self._closed or (self._reopening is not None and not self._reopening.done()):
            return
        self._paused = True
        self.pauses += 1
        self._drained.clear()
        self._reopening = asyncio.get_running_loop().create_task(self._reopen_drained())

    async def _reopen_drained(self) -> None:
        await self._drop()
        await self._drained.wait()
        self._paused = False
        await self._reopen_surely()

    async def _reopen_surely(self) -> None:
        await self._drop()
        delay_s = 0.05
        while not self._closed:
            try:
                await self._create()
                return
            except BusFault as fault:
                log.warning("tail not reopened yet", stream=self._stream, fault=str(fault))
                await self._drop()
            await asyncio.sleep(delay_s)
            delay_s = min(2.0, 2 * delay_s)


async def read(
    bus: Bus, stream: str, filters: Sequence[str], start: int = 1, until: int = 0, **options: Any
) -> list[Stored]:
    """Everything that the stream holds of ``filters`` from ``start`` on, at this moment; ``until`` as in ``scan``."""
    return [stored async for stored in scan(bus, stream, filters, start, until, **options)]


async def scan(
    bus: Bus, stream: str, filters: Sequence[str], start: int = 1, until: int = 0, **options: Any
) -> AsyncGenerator[Stored]:
    """As ``read``, one by one.

    In a cluster the replica that answers may lag behind what was acknowledged. Who must not miss anything names a
    sequence that ``filters`` bring: the scan then does not end before a message from ``until`` on.

    Raises:
        BusFault: the server stopped in the middle.
    """
    tail = await OrderedConsumer.open(bus, stream, filters, start, **options)
    try:
        left, reached = tail.backlog, 0
        while left > 0 or reached < until:
            async with asyncio.timeout(SILENCE_S):
                batch = await tail.batch()
            for stored in batch:
                left, reached = left - 1, stored.seq
                yield stored
            if tail.pending == 0 and not tail.ready():  # what was replaced meanwhile never comes
                left = 0
    except TimeoutError:
        raise BusFault(f"the server stopped in the middle of {list(filters)}") from None
    finally:
        await tail.close()


async def follow(bus: Bus, stream: str, filters: Sequence[str], start: int = 1) -> AsyncGenerator[Stored]:
    """Everything of ``filters`` from ``start`` on, for ever. Raises BusFault: the server refused the consumer."""
    consumer = await OrderedConsumer.open(bus, stream, filters, start)
    try:
        while True:
            for stored in await consumer.batch():
                yield stored
    finally:
        await consumer.close()

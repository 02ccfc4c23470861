"""Read the ordered log: every message, in stored order, none missing, none twice.

An ordered consumer is ephemeral, acknowledges nothing and starts at a sequence of our choosing. The reader's snapshot
is its cursor; the server keeps none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple

import structlog
from nats.aio.msg import Msg
from stretto_wire.surroundings import new_id

from stretto_bus.bus import Bus, Subscription
from stretto_bus.faults import BusFault, Fenced, Unreadable
from stretto_bus.received import Headers

HEARTBEAT_S = 10.0
CLUSTER_HEARTBEAT_S = 1.0
"""A consumer lives on one server of a cluster, and may die there while our connection, to another one, stays."""
BATCH = 256
QUEUE_MESSAGES = 4096
"""Bound of the messages in memory. A slower reader drops the consumer, and opens another one after the last message
that arrived, once a quarter of the bound is left. The server's flow control sends at most 32 MiB ahead."""
SILENCE_S = 15.0
QUIET_S = 1.0
"""Time without a message after which the server is asked whether what it still counts will come."""
INACTIVE_S = 30.0
"""A consumer without a subscriber for so long is deleted by the server."""
PULL_EXPIRES_S = 30.0
PULL_BYTES = 16 << 20
"""Bound of one pull request, larger than any message: the server's flow control covers pushes only."""
HEARTBEAT, EXPIRED, ENDED = "100", "408", "409"
SATISFIED = ("Batch Completed", "Message Size Exceeds MaxBytes")
"""Descriptions of the status that ends a pull request with nothing lost."""

NEVER_SEQ = 1 << 62
"""A sequence that no stream reaches."""
LAST = re.compile(r"wrong last sequence: ([0-9]+)")
"""Words of the refusal of a message that expects another last sequence."""

NO_HEADERS = Headers()

log = structlog.get_logger("stretto.log")


class Stored(NamedTuple):
    """A message of a stream. ``time_s``: when the server stored it, seconds since the epoch."""

    seq: int
    time_s: float
    subject: str
    headers: Mapping[str, str]
    data: bytes


def delivered_as(reply: str) -> tuple[int, int, float, int] | None:
    """Return the facts in the reply subject of a delivered message, ``$JS.ACK.…``; None for another reply.

    They are its sequence in the stream, its number among those of its consumer, when it was stored (seconds since the
    epoch), and how many messages the server still had for the consumer.
    """
    if not reply.startswith("$JS.ACK."):
        return None
    if reply.count(".") > 8:  # with domain, account and a last token without meaning
        reply = ".".join(reply.split(".")[2 : 2 + 9])
    _, seq, consumer_seq, time_ns, pending = reply.rsplit(".", 4)
    return int(seq), int(consumer_seq), int(time_ns) / 1e9, int(pending)


class Quiet:
    """A consumer that has been quiet although messages are due: they cannot be read once the server has no more."""

    def __init__(self) -> None:
        self.arrived_s = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._has_ended = False

    def look(self, now: float, bus: Bus, consumer: str, delivered: int, wake: asyncio.Event) -> None:
        """Ask, after a second and once a second, whether the server has more than it has ``delivered``."""
        if now - self.arrived_s > QUIET_S and (self._asking is None or self._asking.done()):
            self.arrived_s = now
            self._asking = asyncio.get_running_loop().create_task(self._ask(bus, consumer, delivered, wake))

    async def _ask(self, bus: Bus, consumer: str, delivered: int, wake: asyncio.Event) -> None:
        asked_s = self.arrived_s
        with contextlib.suppress(BusFault):
            answer = await bus.ask(f"CONSUMER.INFO.{consumer}")
            has_all = int(answer["num_pending"]) == 0 and int(answer["delivered"]["consumer_seq"]) == delivered
            if has_all and asked_s == self.arrived_s:
                log.warning("messages cannot be read", consumer=consumer)
                self._has_ended = True
                wake.set()

    def ends(self) -> bool:
        """Return, once, that nothing more comes."""
        ended, self._has_ended = self._has_ended, False
        return ended

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()


class OrderedConsumer:
    """Every message of ``filters`` from sequence ``start`` on, in stored order, none missing, none twice.

    A gap, a silent server, a reconnect or a slow reader reopens the consumer after the last message that arrived.
    """

    queue_max = QUEUE_MESSAGES
    pulls = False
    """True: the consumer asks for as many messages as the queue has room for; False: the server pushes all."""

    def __init__(self, bus: Bus, stream: str, filters: Sequence[str], start: int = 1, **options: Any) -> None:
        self._bus = bus
        self._stream, self._filters = stream, list(filters)
        self._options = options
        self._next = start
        self._first = True
        self._queue: deque[Stored | str] = deque()  # a str is a flow-control reply, sent in its turn
        self._wake, self._drained = asyncio.Event(), asyncio.Event()
        self._name, self._expected = "", 1
        self._subscription: Subscription | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._active, self._active_s = False, 0.0
        self._clock = asyncio.get_running_loop().time  # finding the loop costs a system call
        self._closed = self._paused = False
        self._inbox = ""
        self._requested = 0  # messages that have not come
        self.pauses = 0
        """Number of times that the reader was too slow."""
        self._heartbeat_s = CLUSTER_HEARTBEAT_S if bus.clustered else HEARTBEAT_S
        self.backlog = 0
        """Number of messages that the server still had when the consumer was opened."""
        self.pending = 0
        """Number of messages that the server still had after the last arrival, or the reopening."""
        self._quiet = Quiet()

    @classmethod
    async def open(
        cls, bus: Bus, stream: str, filters: Sequence[str], start: int = 1, **options: Any
    ) -> OrderedConsumer:
        """Open a consumer; ``options`` are consumer settings (``headers_only``, ``deliver_policy``).

        Raises:
            BusFault: the server refused the consumer.
        """
        consumer = cls(bus, stream, filters, start, **options)
        bus.consumers.add(consumer)
        bus.on_reconnect.append(consumer._reopen)
        bus.sweeps.append(consumer._watch)
        try:
            await consumer._create()
        except BaseException:
            await consumer.close()
            raise
        return consumer

    def ready(self) -> bool:
        """True if ``batch`` would return at once."""
        return bool(self._queue)

    @property
    def waiting(self) -> int:
        """Messages that are stored and not taken: those here, and those that the server had after the last arrival."""
        return len(self._queue) + self.pending

    @property
    def newest(self) -> Stored | None:
        """The last message that has arrived and was not taken."""
        return next((each for each in reversed(self._queue) if isinstance(each, Stored)), None)

    def on_arrival(self, wake: asyncio.Event) -> None:
        """Set ``wake`` whenever something arrives, for a reader that also waits for other things."""
        if self._queue:
            wake.set()
        self._wake = wake

    async def take(self, limit: int = BATCH) -> list[Stored]:
        """Take at most ``limit`` of the messages that have arrived; possibly none."""
        queue = self._queue
        taken: list[Stored] = []
        while queue and len(taken) < limit:
            item = queue.popleft()
            if isinstance(item, str):
                with contextlib.suppress(BusFault):
                    await self._bus.send(item, b"")
            else:
                taken.append(item)
        if self._paused and len(queue) <= self.queue_max // 4:
            self._drained.set()
        if self.pulls and self._name:
            with contextlib.suppress(BusFault):  # the reconnect opens it anew
                await self._pull()
        return taken

    async def _pull(self) -> None:
        """Request more, once there is room for half of the bound."""
        room = self.queue_max - len(self._queue) - self._requested
        if room >= self.queue_max // 2:
            self._requested += room
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
            await self._bus.send(subject, _request(room, self._heartbeat_s), reply=self._inbox)

    async def batch(self, limit: int = BATCH) -> list[Stored]:
        """Wait for a message, then take at most ``limit``; none, once, if what was due cannot be read."""
        while True:
            if taken := await self.take(limit):
                return taken
            if self._quiet.ends():
                self.pending = 0
                return []
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
        self._quiet.close()
        await self._drop()

    async def _drop(self) -> None:
        subscription, self._subscription = self._subscription, None
        consumer, self._name = self._name, ""
        if subscription is not None:
            with contextlib.suppress(Exception):  # the connection may be gone: then the consumer goes by itself
                await subscription.unsubscribe()
                await self._bus.send(f"$JS.API.CONSUMER.DELETE.{self._stream}.{consumer}", b"")

    async def _create(self) -> None:
        bus = self._bus
        consumer = self._name = new_id(16)
        self._expected = 1
        self._active_s = self._clock()
        self._inbox = f"{bus.inbox}.consumer.{consumer}"
        self._requested = self.queue_max  # no request before the consumer exists

        def arrived(msg: Msg) -> None:  # the subject is the stored one, so only the closure knows its consumer
            if self._name == consumer and not self._paused:
                self._arrived(msg)

        self._subscription = await bus.subscribe(self._inbox, arrived)
        config = {**_configuration(consumer, self._filters), **self._options}
        if not self.pulls:
            heartbeat_ns = int(self._heartbeat_s * 1e9)
            config |= {"deliver_subject": self._inbox, "flow_control": True, "idle_heartbeat": heartbeat_ns}
        if not (self._first and "deliver_policy" in config):
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": max(1, self._next)}
        body = {"stream_name": self._stream, "config": config}
        answer = await bus.ask(f"CONSUMER.CREATE.{self._stream}.{consumer}", body)
        # what was already delivered counts: the server may push before it answers
        delivered = int(answer.get("delivered", {}).get("consumer_seq", 0))
        stored = int(answer.get("num_pending", 0)) + delivered
        if self._first:
            self.backlog = stored
        self._first = False
        if self._expected == 1:  # else the first that arrived has said it
            self.pending = stored
        if self.pulls:
            self._requested = 0
            await self._pull()

    def _arrived(self, msg: Msg) -> None:
        self._active = True
        facts = delivered_as(msg.reply)
        if facts is None:
            self._control(msg, msg.headers or NO_HEADERS)
            return
        seq, consumer_seq, time_s, pending = facts
        if consumer_seq != self._expected:
            log.warning("gap in a consumer", expected=self._expected, got=consumer_seq)
            self._reopen()
            return
        self._expected += 1
        self._requested -= 1
        self._next = seq + 1
        self.pending = pending
        self._quiet.arrived_s = self._clock()
        self._queue.append(Stored(seq, time_s, msg.subject, msg.headers or NO_HEADERS, msg.data))
        self._wake.set()
        if len(self._queue) >= self.queue_max and not self.pulls:
            self._pause()

    def _control(self, msg: Msg, headers: Mapping[str, str]) -> None:
        if msg.reply:  # flow control: answer once everything before it has been handled
            self._queue.append(msg.reply)
            self._wake.set()
            return
        status = headers.get("Status", "")
        if self.pulls and status != HEARTBEAT:
            if status == EXPIRED or (status == ENDED and headers.get("Description") in SATISFIED):
                self._requested -= int(headers.get("Nats-Pending-Messages", self._requested))
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
            log.warning("lost end of a consumer", expected=self._expected, last=int(last))
            self._reopen()

    def _watch(self, now: float) -> None:
        if self.pending and self._name and not self._queue:
            self._quiet.look(now, self._bus, f"{self._stream}.{self._name}", self._expected - 1, self._wake)
        if self._active:
            self._active, self._active_s = False, now
        if self.pulls and not self._requested:
            self._active_s = now  # no message is due
        if now - self._active_s > 3 * self._heartbeat_s and self._bus.connected:
            self._active_s = now
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
                log.warning("consumer not reopened yet", stream=self._stream, fault=str(fault))
                await self._drop()
            await asyncio.sleep(delay_s)
            delay_s = min(2.0, 2 * delay_s)


def _request(count: int, heartbeat_s: float) -> bytes:
    wanted = {
        "batch": count,
        "max_bytes": PULL_BYTES,
        "expires": int(PULL_EXPIRES_S * 1e9),
        "idle_heartbeat": int(heartbeat_s * 1e9),
    }
    return json.dumps(wanted).encode()


def _configuration(name: str, filters: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "ack_policy": "none",
        "max_deliver": 1,
        "filter_subjects": filters,
        "inactive_threshold": int(INACTIVE_S * 1e9),
        "mem_storage": True,
        "num_replicas": 1,
    }


async def read(
    bus: Bus, stream: str, filters: Sequence[str], start: int = 1, until: int = 0, **options: Any
) -> list[Stored]:
    """All messages of ``filters`` from ``start`` on that the stream holds now; ``until`` as in ``scan``."""
    return [stored async for stored in scan(bus, stream, filters, start, until, **options)]


async def scan(
    bus: Bus, stream: str, filters: Sequence[str], start: int = 1, until: int = 0, **options: Any
) -> AsyncGenerator[Stored]:
    """Yield what ``read`` returns, one message at a time.

    In a cluster the replica that answers may lag behind what was acknowledged. A reader that must not miss anything
    names a sequence that ``filters`` match: the scan does not end before it has brought a message from ``until`` on.

    Raises:
        Unreadable: the bytes of the message ``until``, or of one before it, are damaged.
        BusFault: the server stopped in the middle.
    """
    consumer = await OrderedConsumer.open(bus, stream, filters, start, **options)
    try:
        left, reached = consumer.backlog, 0
        while left > 0 or reached < until:
            async with asyncio.timeout(SILENCE_S):
                batch = await consumer.batch()
            if not batch and reached < until:
                raise Unreadable(f"message {until} of {stream}, or one before it, cannot be read")
            for stored in batch:
                left, reached = left - 1, stored.seq
                yield stored
            if consumer.pending == 0 and not consumer.ready():  # messages that were replaced meanwhile never come
                left = 0
    except TimeoutError:
        raise BusFault(f"the server stopped in the middle of {' and '.join(filters)}") from None
    finally:
        await consumer.close()


async def last_of(bus: Bus, subject: str) -> int:
    """Return the last sequence of a subject in its stream, 0 if it has none: a bound for ``scan``.

    The leader of the stream tells the sequence when it refuses a message that expects another one, so whoever may
    write there may ask. Nothing is stored.

    Raises:
        BusFault: there was no answer, or one that tells no sequence.
    """
    try:
        await bus.store(subject, b"", {"Nats-Expected-Last-Subject-Sequence": str(NEVER_SEQ)})
    except Fenced as refused:
        if told := LAST.match(str(refused)):
            return int(told[1])
        raise BusFault(f"{subject}: the refusal tells no last sequence: {refused}", refused.code) from refused
    raise BusFault(f"{subject}: the server does not check the expected last sequence")


async def follow(bus: Bus, stream: str, filters: Sequence[str], start: int = 1) -> AsyncGenerator[Stored]:
    """Yield all messages of ``filters`` from ``start`` on, for ever. Raises BusFault: the server refused it."""
    consumer = await OrderedConsumer.open(bus, stream, filters, start)
    try:
        while True:
            for stored in await consumer.batch():
                yield stored
    finally:
        await consumer.close()

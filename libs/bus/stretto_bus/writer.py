"""Outputs of one owner, in order, behind its fence: pipelined where the server allows it, else as atomic batches.

A single replica of the stream takes hundreds of fenced messages in flight. A cluster takes one per expected subject
(error 10164), and a disk that is synced on every write prefers few writes. There, outputs that wait while one write is
on its way go together as an atomic batch. Its first message alone carries the fence (ADR-50 of NATS); the server checks
it at the commit.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stretto_wire.contract.registry import STREAM
from stretto_wire.surroundings import new_id

from stretto_bus.bus import PIPELINED, Bus, Receiver
from stretto_bus.connection import Sent, lines_of
from stretto_bus.faults import BusFault
from stretto_bus.tasks import end

BATCH_MESSAGES = 256
BATCH_BYTES = 1 << 20
CLUSTER_BATCH_FROM = 2
SYNCED_BATCH_FROM = 16
"""Below it single messages share the disk's sync as well as a batch does (measured)."""
SYNC_METADATA = "stretto-sync"
SECOND_NS = 10**9

OLDEST_SERVER = (2, 14, 6)
"""The oldest NATS with every repair that our use of streams needs, as far as we know; the README of
stretto-installation has a table of them. Our tests pass on it. They fail on 2.12.0, 2.12.1 and 2.12.3, which reorder or
refuse batches."""
INVALID_JSON = 10025


@dataclass(frozen=True, slots=True)
class Fence:
    """A write is stored only while sequence ``seq`` is the last one of ``subject``.

    The owner of a partition writes a message there when it takes over. The server refuses every write of a former one.
    """

    subject: str
    seq: int

    def headers(self) -> dict[str, str]:
        return {
            "Nats-Expected-Last-Subject-Sequence": str(self.seq),
            "Nats-Expected-Last-Subject-Sequence-Subject": self.subject,
        }


class OutgoingMessage(NamedTuple):
    """A message for the stream. ``lines`` are its headers (``lines_of``); ``stored`` receives the answer."""

    subject: str
    data: bytes
    lines: str = ""
    stored: Receiver | None = None


async def check_server(bus: Bus) -> None:
    """Check that the streams can rely on the server: it is recent, and refuses unknown fields of its API.

    Acknowledgements go to the reply subject that a publisher names, whatever it is. One that reaches
    ``$JS.API.STREAM.PURGE.…`` is a valid request but for its further fields. In a cluster the version is told by the
    server of this connection, strictness by the server that answers: run the same on all servers.

    Raises:
        BusFault: the server is too old, takes unknown fields, or did not answer.
    """
    if bus.server_version < OLDEST_SERVER:
        raise BusFault(
            f"the server is NATS {'.'.join(map(str, bus.server_version))}, whose batches and consumers lack repairs: "
            f"run {'.'.join(map(str, OLDEST_SERVER))} or later"
        )
    try:
        await bus.ask(f"STREAM.INFO.{STREAM}", {"stretto_no_such_field": 1})
    except BusFault as fault:
        if fault.code == INVALID_JSON:
            return
        raise
    raise BusFault("the server takes API requests with unknown fields: write `strict: true` into its block jetstream")


def kept_s_in(config: Mapping[str, Any]) -> float:
    """Return the age at which a stream of this configuration drops its messages."""
    return int(config.get("max_age", 0)) / SECOND_NS or math.inf


def fullness_in(info: Mapping[str, Any]) -> float | None:
    """Return the used share of the bytes of the stream with this ``STREAM.INFO``; None without a bound."""
    bound = int(info["config"].get("max_bytes", -1))
    return int(info["state"]["bytes"]) / bound if bound > 0 else None


async def learn_streams(bus: Bus) -> None:
    """Learn how the streams want to be written (``bus.batch_from``), and how long facts are kept.

    Raises:
        BusFault: the configuration of the event stream could not be read, or lets its messages be removed; or the
            server may not be relied on.
    """
    await check_server(bus)
    config = (await bus.ask(f"STREAM.INFO.{STREAM}"))["config"]
    for field in ("deny_delete", "deny_purge"):
        if not config.get(field):
            raise BusFault(
                f"the stream {STREAM} has {field} = false, so that its messages can be removed: make the streams again "
                "(`python -m stretto_installation`), which sets it"
            )
    bus.facts_kept_s = kept_s_in(config)
    if int(config.get("num_replicas", 1)) > 1:
        bus.batch_from = CLUSTER_BATCH_FROM
    else:
        bus.batch_from = SYNCED_BATCH_FROM if config.get("metadata", {}).get(SYNC_METADATA) == "always" else PIPELINED


def chunks(outputs: Sequence[OutgoingMessage]) -> list[list[OutgoingMessage]]:
    """Cut outputs, in order, into chunks of at most ``BATCH_MESSAGES`` and ``BATCH_BYTES`` (or one message)."""
    found: list[list[OutgoingMessage]] = []
    size = 0
    for output in outputs:
        size += len(output.data) + 500
        if not found or len(found[-1]) >= BATCH_MESSAGES or size > BATCH_BYTES:
            found.append([])
            size = len(output.data) + 500
        found[-1].append(output)
    return found


async def store_together(bus: Bus, fence: Fence, outputs: Sequence[OutgoingMessage], threshold: int) -> list[int]:
    """Store one chunk behind ``fence``, all or nothing from ``threshold`` messages on; returns their sequences.

    It sends each once, even where the server says that it stored nothing. When a network that was cut comes back, the
    former leader of the stream leads on for some milliseconds: it refuses (error 10164) what the new one stores.

    Raises:
        Fenced: a newer owner has written.
        BusFault: refused or not answered; unknown whether stored.
    """
    if len(outputs) >= threshold:
        return await _commit(bus, fence, outputs)
    return await _single(bus, fence, outputs)


async def _single(bus: Bus, fence: Fence, outputs: Sequence[OutgoingMessage]) -> list[int]:
    behind = lines_of(fence.headers())
    posted = [await bus.post(one.subject, one.data, one.lines + behind) for one in outputs]
    results = await asyncio.gather(*posted, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [int((await answer)["seq"]) for answer in posted]  # messages of others may stand in between


async def _commit(bus: Bus, fence: Fence, outputs: Sequence[OutgoingMessage]) -> list[int]:
    batch = new_id()
    last = len(outputs)
    for index, output in enumerate(outputs, 1):
        lines = f"Nats-Batch-Id: {batch}\r\nNats-Batch-Sequence: {index}\r\n"
        if index == 1:
            lines += lines_of(fence.headers())
        if index == last:
            answer = await bus.post(output.subject, output.data, f"{output.lines}{lines}Nats-Batch-Commit: 1\r\n")
            end = int((await answer)["seq"]) + 1
            return list(range(end - last, end))
        await bus.send(output.subject, output.data, output.lines + lines)
    raise ValueError("outputs is empty; a batch has at least one message")


class Writer:
    """Outputs of one owner: sent in order without waiting, acknowledged later, all behind one fence.

    The stream keeps the order of sending: a connection is a queue, and nothing is sent twice under one fence. Any
    failure (connection, full stream, timeout) sets ``fault`` and ends this writer. Its owner takes the partition anew
    under a higher fence, which refuses stragglers of this one, and publishes what is missing.
    """

    IN_FLIGHT = 1024

    def __init__(self, bus: Bus, fence: Fence, wake: asyncio.Event) -> None:
        self._bus = bus
        self._fence = fence
        self._behind = lines_of(fence.headers())
        self._wake = wake
        self._batch_from = bus.batch_from
        self._queue: deque[OutgoingMessage] = deque()
        self._flusher: asyncio.Task[None] | None = None
        self._in_flight = 0
        self._receiver = _Acknowledgements(self)
        self._idle = asyncio.Event()
        self._idle.set()
        self._roomy = asyncio.Event()
        self.last_seq = fence.seq
        self.fault: BaseException | None = None

    def send(self, output_id: str, subject: str, data: bytes, lines: str = "") -> None:
        """Send behind the fence, with the headers ``lines``. A sender of many awaits ``room`` first.

        ``output_id`` stands in ``lines`` as ``ce-id``. It is no ``Nats-Msg-Id``: nothing is sent twice under one fence,
        and whoever stored such an id before would have the server take the output for a duplicate, and drop it.

        Raises:
            BusFault: not sent, or something before it was not stored.
        """
        self.check()
        if self._batch_from == PIPELINED:
            self._put(subject, data, lines + self._behind)
        else:
            self._enqueue(OutgoingMessage(subject, data, lines))

    def send_plain(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        """Send to another stream (dead letters), which does not know our fence; ``drain`` waits for it too."""
        self.check()
        self._put(subject, data, headers)

    def store(self, subject: str, data: bytes, lines: str, receiver: Receiver) -> None:
        """Send a message behind the fence that is no output.

        It waits for no output that is not stored yet, unless a cluster takes one at a time. ``receiver`` gets the
        server's answer, with ``seq``, or ``Fenced`` or ``BusFault``.

        Raises:
            BusFault: not sent; ``receiver`` gets nothing.
        """
        if self._batch_from == CLUSTER_BATCH_FROM:
            self.check()
            self._enqueue(OutgoingMessage(subject, data, lines, receiver))
        else:
            self._bus.put(subject, data, lines + self._behind, receiver)

    @property
    def full(self) -> bool:
        """True if too many messages are on their way."""
        return self._in_flight >= self.IN_FLIGHT or self._bus.connection.crowded

    async def room(self) -> None:
        """Wait until fewer messages are on their way, or one failed."""
        if self._bus.connection.crowded:
            await self._bus.connection.room()
        if self._in_flight >= self.IN_FLIGHT and self.fault is None:
            self._roomy.clear()
            await self._roomy.wait()

    async def drain(self) -> None:
        """Wait until everything sent is stored. Raises what went wrong."""
        await self._idle.wait()
        self.check()

    async def close(self) -> None:
        """Drop what waits: the next owner finds out what is missing."""
        try:
            if self._flusher is not None:
                await end(self._flusher)
        finally:
            self._fail(BusFault("the partition was given up before this was stored"))

    @property
    def idle(self) -> bool:
        return self._in_flight == 0

    def check(self) -> None:
        """Raise what went wrong, if anything did."""
        if self.fault is not None:
            raise self.fault

    def _put(self, subject: str, data: bytes, headers: Sent) -> None:
        self._bus.put(subject, data, headers, self._receiver)
        self._begin()

    def _enqueue(self, output: OutgoingMessage) -> None:
        self._queue.append(output)
        self._begin()
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._flush())

    def _begin(self) -> None:
        if self._in_flight == 0:
            self._idle.clear()
        self._in_flight += 1

    def _end(self, count: int) -> None:
        self._in_flight -= count
        if self._in_flight <= self.IN_FLIGHT // 2:
            self._roomy.set()
        if self._in_flight == 0:
            self._idle.set()

    async def _flush(self) -> None:
        """Keep one write in flight; outputs that come meanwhile share the next."""
        try:
            while self._queue:
                chunk = chunks([self._queue[i] for i in range(min(BATCH_MESSAGES, len(self._queue)))])[0]
                sequences = await store_together(self._bus, self._fence, chunk, self._batch_from)
                self.last_seq = max(self.last_seq, *sequences)
                for output, sequence in zip(chunk, sequences, strict=True):
                    self._queue.popleft()
                    if output.stored is not None and not output.stored.done():
                        output.stored.set_result({"seq": sequence})
                self._end(len(chunk))
        except BusFault as fault:
            self._fail(fault)
        finally:
            self._flusher = None

    def _fail(self, fault: BaseException) -> None:
        self.fault = self.fault or fault
        for output in self._queue:
            if output.stored is not None and not output.stored.done():
                output.stored.set_exception(fault)
                output.stored.exception()  # nobody may be waiting any more
        self._in_flight -= len(self._queue)
        self._queue.clear()
        for waited in (self._idle, self._roomy, self._wake):
            waited.set()

    def stored(self, answer: dict[str, Any]) -> None:
        """Note that one message of ``_put`` is stored."""
        if answer.get("stream") == STREAM:
            self.last_seq = max(self.last_seq, int(answer["seq"]))
        self._end(1)

    def failed(self, fault: BaseException) -> None:
        """Note that one message of ``_put`` is not stored, as far as is known."""
        self._end(1)
        self._fail(fault)


class _Acknowledgements:
    """Counts the answers to all messages of ``_put``: a future for each would cost as much as sending it."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._fault: BaseException | None = None

    def done(self) -> bool:
        return False

    def set_result(self, result: dict[str, Any]) -> None:
        self._fault = None
        self._writer.stored(result)

    def set_exception(self, exception: BaseException) -> None:
        self._fault = exception
        self._writer.failed(exception)

    def exception(self) -> BaseException | None:
        return self._fault

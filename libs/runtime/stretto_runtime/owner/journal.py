"""The journal of requests: an owner writes them in frames before it handles them.

One frame is in flight on ``journal.<service>.<partition>``; requests that arrive meanwhile share the next one (group
commit). The owner handles the requests of a frame only when its own consumer brings the frame back, because a replay
reads them in that order.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import Any

from pydantic_core import to_json
from stretto_bus.connection import lines_of
from stretto_bus.faults import BusFault
from stretto_bus.writer import Writer
from stretto_wire.contract.registry import TELEMETRY_KEPT_S

from stretto_runtime.inputs import REPORTS
from stretto_runtime.process.faults import PartitionLost

FRAME_ENTRIES = 256
FRAME_BYTES = 384 * 1024
"""Encoded bytes from which on a frame takes no further entry.

Together with one entry (``inputs.LARGEST_BYTES``) it has room in the stream, which takes messages of 1 MiB. A frame
that the stream refuses would end the session of all jobs of the partition.
"""
RANGES_TTL_S = TELEMETRY_KEPT_S + 60
"""Longest life of a frame of nothing but ranges of reports: it says nothing once these are gone."""
QUEUE_ENTRIES = 8192
QUEUE_ENTRIES_OF_A_JOB = QUEUE_ENTRIES // 8
"""Requests of one job that wait: one that floods is told to ask again before others have no place left."""
GATHERING_TURNS = 4
"""Turns of the loop between two frames: requests that have arrived meanwhile share the next. A turn with nothing to do
takes microseconds; ``tests.bench.log.dispatcher`` measures the CPU time of a pair, which this saves."""


class Frame:
    """A frame that was sent. It receives the server's answer and passes it to whoever waits."""

    def __init__(self, journal: Journal, waiting: list[asyncio.Future[None]]) -> None:
        self._journal = journal
        self._waiting = waiting
        self._fault: BaseException | None = None

    def done(self) -> bool:
        return False

    def set_result(self, result: dict[str, Any]) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_result(None)
        self._journal.stored(self, int(result["seq"]))

    def set_exception(self, exception: BaseException) -> None:
        self._fault = exception
        self._journal.failed(exception)

    def exception(self) -> BaseException | None:
        return self._fault

    def give_up(self, fault: BaseException) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_exception(fault)
                each.exception()  # nobody may be waiting any more


class Journal:
    """The frames of one owner. When a frame could not be stored, ``fault`` is set, and ``wake`` with it.

    A frame leaves when the last one has come back. Requests that arrived meanwhile share it, and it shares a write with
    the replies to the last one.
    """

    def __init__(self, writer: Writer, subject: str, ttl_s: int, wake: asyncio.Event) -> None:
        self.subject = subject
        self.fault: BaseException | None = None
        self.stored_seq = 0
        """Highest sequence of a stored frame"""
        self._writer = writer
        self._headers = lines_of({"Nats-TTL": f"{ttl_s}s"})
        self._headers_of_ranges = lines_of({"Nats-TTL": f"{min(ttl_s, RANGES_TTL_S)}s"})
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[dict[str, Any], asyncio.Future[None] | None]] = deque()
        self._waiting_of = Counter[str]()
        """Key -> number of its entries in the queue whose storing nobody awaits."""
        self._away = False
        """True while a frame is about to leave, or has left and is not back."""
        self._unsure: set[Frame] = set()
        """Frames that were sent and not acknowledged"""

    def add(self, entry: dict[str, Any], stored: asyncio.Future[None] | None = None) -> bool:
        """Queue an entry for the next frame; False when too many wait already, of all or of its key."""
        key = "" if stored is not None else str(entry["key"])
        if self.fault is not None or len(self._queue) >= QUEUE_ENTRIES:
            return False
        if key:
            if self._waiting_of[key] >= QUEUE_ENTRIES_OF_A_JOB:
                return False
            self._waiting_of[key] += 1
        self._queue.append((entry, stored))
        if not self._away:
            self._gather()
        return True

    async def add_surely(self, entry: dict[str, Any]) -> None:
        """Queue an entry and wait until its frame is stored.

        Raises:
            PartitionLost: it was not stored; the new owner decides what to do.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        if not self.add(entry, future):
            raise PartitionLost(f"{self.subject}: not the owner any more, or overloaded; observe again later")
        await future

    def came_back(self) -> None:
        """Note that the last frame is about to be handled; the next one may leave."""
        self._away = False
        if self._queue and self.fault is None:
            self._gather()

    @property
    def idle(self) -> bool:
        """True if every entry is stored."""
        return not self._queue and not self._unsure

    @property
    def at_rest(self) -> bool:
        """True if no frame is about to leave, or has left and is not back."""
        return not self._away

    def close(self) -> None:
        """Send nothing more. Whoever waits gets PartitionLost, though the entry may have been stored."""
        self._end(PartitionLost("ownership ended"))

    def stored(self, frame: Frame, seq: int) -> None:
        self._unsure.discard(frame)
        self.stored_seq = max(self.stored_seq, seq)
        if self.idle:
            self._wake.set()

    def failed(self, fault: BaseException) -> None:
        self._end(fault)
        self._wake.set()

    def _end(self, fault: BaseException) -> None:
        self.fault = self.fault or fault
        queued = Frame(self, [future for _, future in self._queue if future is not None])
        lost = PartitionLost(f"{self.subject}: {fault}")
        for frame in (queued, *self._unsure):
            frame.give_up(lost)
        self._queue.clear()
        self._waiting_of.clear()
        self._unsure.clear()

    def _gather(self, turns: int = GATHERING_TURNS) -> None:
        self._away = True
        if turns:
            self._loop.call_soon(self._gather, turns - 1)
        elif self.fault is None:
            self._send()

    def _send(self) -> None:
        entries: list[bytes] = []
        waiting: list[asyncio.Future[None]] = []
        size_bytes = 0
        headers = self._headers_of_ranges
        while self._queue and len(entries) < FRAME_ENTRIES and size_bytes < FRAME_BYTES:
            entry, future = self._queue.popleft()
            entries.append(to_json(entry))
            size_bytes += len(entries[-1]) + 1
            if entry["kind"] != REPORTS:
                headers = self._headers
            if future is not None:
                waiting.append(future)
            elif entry["key"]:
                self._left(entry["key"])
        frame = Frame(self, waiting)
        self._unsure.add(frame)
        try:
            self._writer.store(self.subject, b"[%b]" % b",".join(entries), headers, frame)
        except BusFault as fault:
            self.failed(fault)

    def _left(self, key: str) -> None:
        self._waiting_of[key] -= 1
        if not self._waiting_of[key]:
            del self._waiting_of[key]

"""Telemetry of one partition, handled in ranges that its owner journals.

Telemetry stands in a stream of its own, which drops the oldest: no pod can fill the stream of facts. So two streams
have to be brought into one order. The owner gathers what has arrived, ``TURN_S`` after the last time, or at once if
that is longer ago, and journals only its place, ``(after, to]``. When that entry comes back, the reports of the range
are handled, as if they stood in the journal. A replay finds the same ranges in the same order.

A pod that floods loses its own reports: of those that came within a short time, only the last are handled. Reports that
the stream no longer holds are left out, too; ``stretto_missing_reports_total`` counts them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

from pydantic_core import from_json
from stretto_bus.bus import Bus
from stretto_bus.reading.ordered_consumer import OrderedConsumer, Stored
from stretto_wire.contract.excerpts import Excerpt, Stream
from stretto_wire.contract.registry import TELEMETRY

from stretto_runtime.inputs import REPORTS, Arrival, Routes
from stretto_runtime.streams import Streams

TURN_S = 0.05
"""Least time between two ranges: every range costs a journal entry."""
FLOODED_TURN_S = 0.5
"""The same after a range with more than ``TURN_REPORTS`` of one pod: a flood costs a reader no more than the stream
keeps of a pod, twice a second."""
TURN_REPORTS = 4
"""Reports of one pod that a turn may bring: no more a second than are left of a flood."""
RANGE_MAX = 4096
"""Reports in one range: some 0.1 s of handling."""
POD_BURST, POD_REPORTS_PER_S = 16, 8.0
"""Reports of one pod that a range may hold: a number, and another for each second between its first and last."""
BEHIND_S = 0.01
"""The pause instead, while more wait than one range takes."""
LAGGING_S = 1.0
"""In a cluster the replica that answers may lag behind the one that the range was read from, by less than this."""
STALLED_S = 2.0
"""A server that brings nothing for so long has nothing: the reports have expired since the consumer was opened."""
STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class ReportRange:
    """The reports of one partition after sequence ``after``, up to ``to``; ``count`` of them were there."""

    after: int
    to: int
    count: int

    def entry(self) -> dict[str, Any]:
        """The range as an entry of a journal frame."""
        return {"kind": REPORTS, "key": "", "d": json.dumps(asdict(self), separators=(",", ":"))}

    @classmethod
    def read(cls, data: bytes) -> ReportRange:
        """Read the body of an entry. Raises ValueError: no owner wrote it."""
        body: Any = from_json(data)
        fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
        after, to, count = (fields.get(name) for name in ("after", "to", "count"))
        if type(after) is int and type(to) is int and type(count) is int and 0 <= after <= to:
            return cls(after, to, count)
        raise ValueError(f"not a range of reports: {data[:100]!r}")


def thinned(reports: Iterable[Stored]) -> list[Stored]:
    """Return the reports without the earlier ones of pods that sent too many at once, in the same order."""
    of_pod: dict[str, list[Stored]] = defaultdict(list)
    for stored in reports:
        of_pod[stored.subject].append(stored)
    kept: list[Stored] = []
    for own in of_pod.values():
        most = POD_BURST + int(POD_REPORTS_PER_S * max(0.0, own[-1].time_s - own[0].time_s))
        kept += own[-most:]
    return sorted(kept, key=lambda stored: stored.seq)


def inputs_in(reports: Iterable[Stored], arrival: Arrival, routes: Routes, partition: int) -> list[Arrival]:
    """Return those reports of the range ``arrival`` that are to be handled, as inputs of its frame."""
    return [
        report._replace(
            source=f"{arrival.source}.{stored.seq}",
            meta=report.meta._replace(seq=arrival.meta.seq, report_seq=stored.seq),
        )
        for stored in thinned(reports)
        for report in routes.arrivals(stored, partition)
    ]


class Ranges(Protocol):
    """Source of the reports of journalled ranges."""

    missing: int
    """Reports of these ranges that the stream no longer holds."""

    async def of(self, arrival: Arrival, routes: Routes, partition: int) -> list[Arrival]:
        """Return the reports of a journalled range that are to be handled, as inputs of its frame.

        Raises:
            Fault: the stream cannot be read.
            ValueError: it is no range.
        """
        ...


class StoredReports:
    """The reports of ``filters`` that the stream holds, for a replay: ranges are read one after the other."""

    def __init__(self, streams: Streams, filters: Sequence[str]) -> None:
        self.missing = 0
        """Always 0: a range counts the reports of all jobs, while ``filters`` may name one job."""
        self._streams = streams
        self._filters = tuple(filters)
        self._reading: AsyncGenerator[Stored] | None = None
        self._next: Stored | None = None
        self._taken = 0
        """Sequence up to which the reports were taken"""

    async def of(self, arrival: Arrival, routes: Routes, partition: int) -> list[Arrival]:
        """Return the reports of a journalled range (``Ranges.of``)."""
        wanted = ReportRange.read(arrival.data)
        if self._reading is None or wanted.after < self._taken:
            await self.close()
            excerpt = Excerpt(stream=Stream.REPORTS, subject=self._filters, after=wanted.after)
            self._reading = self._streams.scan(excerpt)
            self._next = await anext(self._reading, None)
        found: list[Stored] = []
        while self._next is not None and self._next.seq <= wanted.to:
            self._taken = self._next.seq
            if self._taken > wanted.after:
                found.append(self._next)
            self._next = await anext(self._reading, None)
        return inputs_in(found, arrival, routes, partition)

    async def close(self) -> None:
        """Stop reading."""
        reading, self._reading = self._reading, None
        self._taken = 0
        if reading is not None:
            await reading.aclose()


class Reports:
    """Reads the telemetry of ``filters``, in ranges. ``position``: everything up to here was handled, or left out.

    A position of None is unknown: reading then begins with what is stored from now on.
    """

    def __init__(self, bus: Bus, filters: Sequence[str], position: int | None = 0) -> None:
        self.position = position
        self.has_inputs = bool(filters)
        """False for a service that reads no telemetry"""
        self.pause_s = TURN_S
        """Time to wait before the next range"""
        self.missing = 0
        """Reports of journalled ranges that the stream no longer holds."""
        self._bus = bus
        self._filters = filters
        self._consumer: OrderedConsumer | None = None
        self._buffer: deque[Stored] = deque()
        self._journalled = 0
        self._wake = self._unheard = asyncio.Event()

    def ready(self) -> bool:
        """Return whether ``gather`` may find something."""
        return self._consumer is None or bool(self._buffer) or self._consumer.ready()

    def on_arrival(self, wake: asyncio.Event) -> None:
        """Set ``wake`` as soon as something is to be gathered."""
        self._wake = wake
        if self._consumer is not None:
            self._consumer.on_arrival(wake)
        if self.ready():
            wake.set()

    async def gather(self) -> ReportRange | None:
        """Return the range of what has arrived; None if nothing has, or the last range is not handled yet.

        No arrival is told until ``on_arrival`` is called again.

        Raises:
            BusFault: the stream cannot be read.
        """
        self.on_arrival(self._unheard)
        consumer = self._consumer or await self._open()
        position = self.position or 0
        if position < self._journalled:
            return None
        await self._take(consumer)
        if not self._buffer:
            return None
        count = min(RANGE_MAX, len(self._buffer))
        self.pause_s = self._pause_after(count)
        return ReportRange(position, self._buffer[count - 1].seq, count)

    def journalled(self, found: ReportRange) -> None:
        """Note that the range is in the journal."""
        self._journalled = found.to

    async def of(self, arrival: Arrival, routes: Routes, partition: int) -> list[Arrival]:
        """Return the reports of a journalled range (``Ranges.of``)."""
        wanted = ReportRange.read(arrival.data)
        consumer, before = self._consumer, self.position or 0
        if consumer is None or self.position is None or wanted.after < self.position:
            await self.close()
            self.position = wanted.after
            consumer = await self._open()
        reports, complete = await self._until(consumer, wanted.to)
        found = [stored for stored in reports if stored.seq > wanted.after]
        if complete or wanted.to <= await self._last_seq():
            self.position = wanted.to
        else:  # no owner wrote it: what it did not find may still come, and is another range's
            self.position = found[-1].seq if found else max(before, self.position)
        self.missing += max(0, wanted.count - len(found))
        return inputs_in(found, arrival, routes, partition)

    async def close(self) -> None:
        """Stop reading."""
        consumer, self._consumer = self._consumer, None
        self._buffer.clear()
        if consumer is not None:
            await consumer.close()

    async def _open(self) -> OrderedConsumer:
        if self.position is None:
            self.position = await self._last_seq()
        consumer = await OrderedConsumer.open(self._bus, TELEMETRY, self._filters, self.position + 1)
        consumer.on_arrival(self._wake)
        self._consumer = consumer
        return consumer

    async def _last_seq(self) -> int:
        return int((await self._bus.ask(f"STREAM.INFO.{TELEMETRY}"))["state"]["last_seq"])

    def _pause_after(self, count: int) -> float:
        if count == RANGE_MAX:
            return BEHIND_S
        most = max(Counter(stored.subject for stored in self._buffer).values())
        return TURN_S if most <= TURN_REPORTS else FLOODED_TURN_S

    async def _take(self, consumer: OrderedConsumer) -> None:
        while consumer.ready() and len(self._buffer) < RANGE_MAX:
            self._buffer.extend(await consumer.take())

    async def _until(self, consumer: OrderedConsumer, to: int) -> tuple[list[Stored], bool]:
        """Take the reports up to ``to`` out of the buffer, once all have come that the stream holds.

        Returns them, and whether ``to`` or a later one was there.
        """
        found: list[Stored] = []
        arrived = asyncio.Event()
        consumer.on_arrival(arrived)
        silent_s = 0.0
        while True:
            arrived.clear()
            await self._take(consumer)
            while self._buffer and self._buffer[0].seq <= to:
                found.append(self._buffer.popleft())
            complete = bool(self._buffer) or (bool(found) and found[-1].seq >= to)
            nothing_left = consumer.waiting == 0 and silent_s >= (LAGGING_S if self._bus.clustered else 0.0)
            if complete or nothing_left or silent_s >= STALLED_S:
                consumer.on_arrival(self._wake)
                return found, complete
            try:
                async with asyncio.timeout(STEP_S):
                    await arrived.wait()
                silent_s = 0.0
            except TimeoutError:
                if self._bus.connected:
                    silent_s += STEP_S

"""One ownership from its loaded snapshot to its end: replay, serve, hand over (README, section "Protocol")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from stretto_bus.faults import BusFault
from stretto_bus.reading.catchup import MergedConsumer, open_consumer
from stretto_bus.reading.lost_end import Breaks, LogPlace, state_of
from stretto_bus.reading.ordered_consumer import OrderedConsumer, Stored
from stretto_bus.writer import Fence, Writer
from stretto_wire.contract.registry import STREAM

from stretto_runtime.inputs import tick_entry
from stretto_runtime.owner.context import Context
from stretto_runtime.owner.handling import Handling
from stretto_runtime.owner.journal import Journal
from stretto_runtime.owner.reports import Reports
from stretto_runtime.owner.requests import Requests
from stretto_runtime.owner.side_effects import SideEffects
from stretto_runtime.owner.state.saving import LastSaves, Unsaved, next_save
from stretto_runtime.owner.state.snapshots import Cursor, Snapshots

FORGET_AGAIN_S = 30.0

log = structlog.get_logger("stretto.session")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one session of partition ``number``, made after a takeover."""

    number: int
    epoch: int
    fence: Fence
    cursor: Cursor
    handling: Handling
    writer: Writer
    snapshots: Snapshots
    journal: Journal
    reports: Reports


@dataclass(frozen=True, slots=True)
class Orders:
    """The partition's orders to its session: ``wake`` it, and ``stop`` it gracefully."""

    wake: asyncio.Event
    stop: asyncio.Event


class Session:
    """One ownership of a partition, from its loaded snapshot to its end."""

    def __init__(self, context: Context, parts: Parts, orders: Orders) -> None:
        cursor, handling = parts.cursor, parts.handling
        self.live = False
        self._number, self._epoch, self._fence = parts.number, parts.epoch, parts.fence
        self._breaks = Breaks()
        self._is_interrupted = self._gathering_due = False
        self._consumer: OrderedConsumer | MergedConsumer | None = None
        self._taken: Stored | LogPlace = LogPlace(cursor.seq, cursor.time_us / 1e6)
        """The last input that was taken from the consumer, or that the snapshot contains"""
        self._stop, self._wake = orders.stop, orders.wake
        self._context, self._service = context, context.service
        self._handling, self._machines = handling, handling.machines
        self._writer, self._snapshots = parts.writer, parts.snapshots
        self._journal, self._reports = parts.journal, parts.reports
        self._seq, self._stored_s = cursor.seq, cursor.time_us / 1e6  # of the last input, and 0 if that is unknown
        self._saved_seq, self._scan_from, self._unsaved = cursor.seq, cursor.out_seq, 0
        self._saved = LastSaves(0.0, 0.0)
        self._now_s = 0.0
        """Stored time of the last message"""
        self._forget_next_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._requests = Requests(context, parts.number, handling, parts.journal)
        self._side_effects = SideEffects(context.service, handling.machines)

    async def run(self) -> None:
        """Serve until ``stop``, or until a fault ends this ownership."""
        reconnects = self._context.bus.on_reconnect
        reconnects.append(self._reconnected)
        try:
            await self._run()
        finally:
            reconnects.remove(self._reconnected)

    def _reconnected(self) -> None:
        reached = max(self._seq, self._writer.last_seq, self._journal.stored_seq)
        if self._consumer is not None and not (self.live and not self._consumer.ready() and self._journal.at_rest):
            self._is_interrupted = True  # what has arrived may be lost, and what comes next has other numbers then
        self._breaks.note(reached, LogPlace(self._taken.seq, self._taken.time_s))
        self._wake.set()

    async def _run(self) -> None:
        bus = self._context.bus
        # The replica may lag. We have caught up only once our own fence arrives: all inputs that a predecessor could
        # have handled precede it.
        filters = [*self._context.routes.filters(self._number), self._fence.subject]
        consumer = self._consumer = await open_consumer(bus, STREAM, filters, self._seq + 1)
        consumer.on_arrival(self._wake)
        self._saved = LastSaves(self._loop.time(), self._loop.time())
        caught_up = self._seq >= self._fence.seq
        try:
            while True:
                self._wake.clear()
                batch = await consumer.take()
                self._taken = batch[-1] if batch else self._taken
                for stored in batch:
                    self._now_s = stored.time_s
                    if stored.subject == self._fence.subject:
                        caught_up = caught_up or stored.seq >= self._fence.seq
                        continue
                    if self.live and stored.subject == self._journal.subject:
                        self._journal.came_back()
                    handled = self._handling.reports_handled
                    await self._handling.handle(stored)
                    self._seq, self._stored_s = stored.seq, stored.time_s
                    self._unsaved += 1 + self._handling.reports_handled - handled
                await self._check()
                if not self.live:
                    if caught_up:
                        await self._go_live()
                elif batch:
                    self._after()
                if self._gathering_due and self._reports.ready():
                    await self._gather()
                await self._snapshot_if_due()
                await self._forget_if_due()
                if self._stop.is_set() and self.live and await self._is_drained(consumer):
                    await self._leave()
                    return
                if self._stop.is_set() and not self.live:
                    await self._context.ownership.release(self._number, self._epoch)
                    return
                if consumer.ready():
                    await asyncio.sleep(0)
                else:
                    await self._wake.wait()
        finally:
            await self._end(consumer)

    async def _check(self) -> None:
        """Raise the fault that ends this session, if there is one."""
        self._writer.check()
        if self._journal.fault is not None:
            raise self._journal.fault
        if self._breaks.pending:
            if self._is_interrupted or not (self._writer.idle and self._journal.idle):
                raise BusFault("the connection broke while inputs or outputs were on their way")
            await self._breaks.look(self._context.bus)

    async def _go_live(self) -> None:
        await self._requests.open()
        self._handling.go_live()
        self.live = True
        self._side_effects.start()
        self._side_effects.changed(self._machines.keys)
        self._plan_tick()
        self._plan_gathering()
        if self._reports.missing:
            log.warning("reports are not kept any more", partition=self._number, missing=self._reports.missing)
        self._service.partition_changed()

    def _after(self) -> None:
        self._service.import_late()
        self._side_effects.changed(self._handling.changed)
        self._handling.changed.clear()
        self._plan_tick()

    async def observe(self, entry: dict[str, Any]) -> None:
        """Journal an observation; returns when it is stored.

        Raises:
            PartitionLost: it was not stored; the new owner observes for itself.
        """
        await self._journal.add_surely(entry)

    # time ------------------------------------------------------------------------------------------------------

    def _plan(self, name: str, delay_s: float, action: Callable[[], None]) -> None:
        if name not in self._timers:
            self._timers[name] = self._loop.call_later(delay_s, self._fire, name, action)

    def _fire(self, name: str, action: Callable[[], None]) -> None:
        self._timers.pop(name, None)
        action()

    def _plan_tick(self) -> None:
        tick_s = self._service.tick_s
        if tick_s is None or "tick" in self._timers or self._stop.is_set():
            return
        if self._machines.ticking():
            self._plan("tick", tick_s, self._tick)

    def _tick(self) -> None:
        self._journal.add(tick_entry(len(self._machines.ticking())))

    def _plan_gathering(self) -> None:
        if self._reports.has_inputs and not self._stop.is_set():
            self._plan("reports", self._reports.pause_s, self._gathering)

    def _gathering(self) -> None:
        self._gathering_due = True
        self._reports.on_arrival(self._wake)

    async def _gather(self) -> None:
        """Journal the place of the reports that have arrived; they are handled when it comes back."""
        self._gathering_due = False
        found = await self._reports.gather()
        if found is not None and self._journal.add(found.entry()):
            self._reports.journalled(found)
        self._plan_gathering()

    async def _snapshot_if_due(self) -> None:
        if self._unsaved == 0:
            return
        unsaved = Unsaved(self._unsaved, self._machines.dirty, self._handling.news)
        now_s, settings = self._loop.time(), self._service.settings
        due = next_save(self._saved, unsaved, settings)
        if due.at_s > now_s:
            self._plan("quiet" if due.is_quiet else "news", due.at_s - now_s, self._wake.set)
        elif due.is_whole:
            await self._snapshot()
        else:  # a successor reads all inputs since the last cursor, and skips those that these documents contain
            await self._writer.drain()
            await self._save(sorted(self._handling.news), None)

    async def _snapshot(self) -> None:
        await self._writer.drain()
        # until everything before our fence is replayed, our successor must scan our predecessors' outputs, as we did
        out_seq = self._writer.last_seq if self.live else self._scan_from
        reports, time_us = self._reports.position, round(1e6 * self._stored_s)
        cursor = Cursor(self._seq, out_seq, self._service.version, reports=reports, time_us=time_us)
        await self._save(sorted(self._machines.dirty), cursor)
        self._saved_seq = self._seq
        self._unsaved = 0
        self._saved = LastSaves(self._saved.news_s, self._saved.news_s, self._machines.saved_bytes)

    async def _save(self, keys: list[str], cursor: Cursor | None) -> None:
        """Save these keys, whose outputs are stored."""
        known = set(self._machines.no_way_back)
        documents = self._machines.documents(keys)
        for key in sorted(self._machines.no_way_back.keys() - known):
            log.warning("no way back to the former version", job=key, reason=self._machines.no_way_back[key])
        too_large = await self._snapshots.save(documents, cursor)
        if too_large:
            log.error("the state is larger than the server takes; the job is lost", lost=sorted(too_large))
            self._machines.give_up(too_large)
            await self._side_effects.release(too_large)
        self._machines.rest(documents)
        self._handling.news.clear()
        self._saved = self._saved._replace(news_s=self._loop.time())
        self._context.metrics.snapshots.inc()

    async def _forget_if_due(self) -> None:
        """Forget ended keys of which the stream holds no input any more: a later replay cannot meet them."""
        if not self.live or self._loop.time() < self._forget_next_s:
            return
        documents = self._machines.aged_out(self._now_s)
        if not documents:
            return
        first_seq = int((await state_of(self._context.bus))["first_seq"])
        gone = {key: document for key, document in documents.items() if document.seq < first_seq}
        if len(gone) < len(documents):  # this stream keeps its messages longer than ours do
            self._forget_next_s = self._loop.time() + FORGET_AGAIN_S
        await self._snapshots.forget(gone)
        self._machines.forget(gone)
        await self._side_effects.release(gone)

    # end -------------------------------------------------------------------------------------------------------

    async def _is_drained(self, consumer: OrderedConsumer | MergedConsumer) -> bool:
        """Stop taking new work; returns whether the last frame has come back."""
        await self._requests.drain()
        return self._journal.idle and self._seq >= self._journal.stored_seq and not consumer.ready()

    async def _leave(self) -> None:
        await self._side_effects.stop()
        if self._seq > self._saved_seq:
            await self._snapshot()
        await self._writer.drain()
        out_seq, reports = self._writer.last_seq, self._reports.position
        cursor = Cursor(self._seq, out_seq, self._service.version, reports=reports)
        await self._snapshots.mark(cursor, 0, clean=True)
        await self._context.ownership.release(self._number, self._epoch)

    async def _end(self, consumer: OrderedConsumer | MergedConsumer) -> None:
        self.live = False
        for timer in self._timers.values():
            timer.cancel()
        await self._requests.close()
        try:
            await self._side_effects.stop()
        finally:  # even if cancelled meanwhile
            self._journal.close()
            await self._reports.close()
            await consumer.close()
            self._service.partition_changed()

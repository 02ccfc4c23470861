"""From a loaded snapshot to the end of one ownership: replay, live, leave (RUNTIME.md, steps 6 to 9)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog
from stretto_bus.bus import Msg
from stretto_bus.catchup import MergedConsumer, open_consumer
from stretto_bus.faults import BusFault
from stretto_bus.ordered_consumer import OrderedConsumer
from stretto_bus.refusals import refusal
from stretto_bus.tasks import end
from stretto_bus.writer import Fence
from stretto_messages.base import Message
from stretto_messages.refusals import ERROR_HEADER
from stretto_wire.codec import encode
from stretto_wire.errors import WireError
from stretto_wire.registry import STREAM, parse

from stretto_runtime.inputs import TICK_ENTRY, request_entry
from stretto_runtime.owner.context import Context
from stretto_runtime.owner.handling import Asked, Handling
from stretto_runtime.owner.journal import Journal
from stretto_runtime.owner.snapshots import Cursor, Snapshots
from stretto_runtime.process.faults import PartitionLost
from stretto_runtime.settings import Settings

RECONCILE_AGAIN_S = 1.0
MIN_SNAPSHOT_S = 0.2
QUIET = 30
"""Inputs without outputs (ticks, most telemetry) are cheap to replay: they wait this many times longer."""
BYTES_AN_INPUT = 2048
"""To save so much costs about a third of what it costs to handle an input: large documents wait for more of them."""

log = structlog.get_logger("stretto.session")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of one session of partition ``number``, made after a takeover."""

    number: int
    epoch: int
    fence: Fence
    cursor: Cursor
    handling: Handling
    snapshots: Snapshots
    journal: Journal


@dataclass(frozen=True, slots=True)
class Orders:
    """The partition's orders to its session: ``wake`` it, and ``stop`` it gracefully."""

    wake: asyncio.Event
    stop: asyncio.Event


class Session:
    """From a loaded snapshot to the end of one ownership."""

    def __init__(self, context: Context, parts: Parts, orders: Orders) -> None:
        cursor, handling = parts.cursor, parts.handling
        self.live = False
        self._number, self._epoch, self._fence = parts.number, parts.epoch, parts.fence
        self._connection_broke = False
        self._stop = orders.stop
        self._context = context
        self._service = context.service
        self._handling = handling
        self._machines = handling.machines
        self._snapshots = parts.snapshots
        self._journal = parts.journal
        self._seq = cursor.seq
        self._saved_seq = cursor.seq
        self._scan_from = cursor.out_seq
        self._unsaved = 0
        self._news = False
        self._saved_at_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._subscription: Any = None
        self._edges: asyncio.Task[None] | None = None
        self._touched: set[str] = set()
        self._reconcile_due = asyncio.Event()
        self._wake = orders.wake
        self._reconciled: set[str] = set()

    async def run(self) -> None:
        """Until ``stop``, or a fault that ends this ownership."""
        reconnects = self._context.bus.on_reconnect
        reconnects.append(self._reconnected)
        try:
            await self._run()
        finally:
            reconnects.remove(self._reconnected)

    def _reconnected(self) -> None:
        self._connection_broke = True
        self._wake.set()

    async def _run(self) -> None:
        bus = self._context.bus
        # the replica that serves the tail may lag: only behind our own fence is all that a predecessor can have handled
        filters = [*self._context.routes.filters(self._number), self._fence.subject]
        tail = await open_consumer(bus, STREAM, filters, self._seq + 1)
        tail.on_arrival(self._wake)
        self._saved_at_s = self._loop.time()
        caught_up = self._seq >= self._fence.seq
        try:
            while True:
                self._wake.clear()
                batch = await tail.take()
                for stored in batch:
                    if stored.subject == self._fence.subject:
                        caught_up = caught_up or stored.seq >= self._fence.seq
                        continue
                    if self.live and stored.subject == self._journal.subject:
                        self._journal.came_back()
                    self._news |= await self._handling.handle(stored)
                    self._seq = stored.seq
                    self._unsaved += 1
                self._check()
                if not self.live:
                    if caught_up:
                        await self._go_live()
                elif batch:
                    self._after()
                await self._snapshot_if_due()
                if self._stop.is_set() and self.live and await self._drained(tail):
                    await self._leave()
                    return
                if self._stop.is_set() and not self.live:
                    await self._context.ownership.release(self._number, self._epoch)
                    return
                if tail.ready():
                    await asyncio.sleep(0)
                else:
                    await self._wake.wait()
        finally:
            await self._end(tail)

    def _check(self) -> None:
        """Raise what makes this session end."""
        self._handling.writer.check()
        if self._journal.fault is not None:
            raise self._journal.fault
        if self._connection_broke:
            self._connection_broke = False
            if not (self._handling.writer.idle and self._journal.idle):
                raise BusFault("the connection broke while outputs were on their way")

    async def _go_live(self) -> None:
        service, number = self._service, self._number
        if service.rpcs or service.queries:
            subject = f"rpc.v1.{service.name}.*.{number}.*"
            self._subscription = await self._context.bus.subscribe(subject, self._requested)
            await self._context.bus.flush()  # who sees us ready must find us
        self._handling.go_live()
        self.live = True
        self._edges = asyncio.create_task(self._reconciling())
        self._touch(self._machines.slots)
        self._plan_tick()
        self._context.metrics.partitions.inc()
        service.partition_changed()

    def _after(self) -> None:
        self._touch(self._handling.changed)
        self._handling.changed.clear()
        self._plan_tick()

    def _touch(self, keys: Iterable[str]) -> None:
        if self._service.has_edges:
            self._touched.update(keys)
            self._reconcile_due.set()

    async def observe(self, entry: dict[str, Any]) -> None:
        """Journal an observation; returns when it is stored.

        Raises:
            PartitionLost: it was not stored; the new owner observes for itself.
        """
        await self._journal.add_surely(entry)

    # requests --------------------------------------------------------------------------------------------------

    def _requested(self, msg: Msg) -> None:
        tokens = msg.subject.split(".")  # rpc.v1.<service>.<verb>.<partition>.<job>
        subject = ".".join((*tokens[:4], tokens[5]))
        try:
            message = parse(subject, msg.data)
        except WireError as error:
            self._answer(msg.reply, "invalid", refusal("invalid", str(error), error.field, error.value, error.remedy))
            return
        if type(message) in self._service.queries:
            self._inform(msg.reply, message)
            return
        headers = msg.headers or {}
        request_id = headers.get("request-id") or getattr(message, "request_id", "") or msg.reply
        waiting, asked = self._handling.waiting, (message.job, request_id)
        slot = self._machines.slots.get(message.job)
        known = slot.remembered(request_id) if slot else None
        if known is not None:
            self._answer(msg.reply, known[1], known[2].encode())
        elif asked in waiting:
            waiting[asked].replies.append(msg.reply)
        else:
            entry = request_entry(message.job, request_id, subject, msg.data, headers.get("traceparent", ""))
            if self._journal.add(entry):
                waiting[asked] = Asked(subject, msg.data, message, [msg.reply])
            else:
                self._answer(msg.reply, "busy", refusal("busy", "too many requests wait", remedy="ask again later"))

    def _inform(self, reply: str, query: Message) -> None:
        slot = self._machines.slots.get(query.job)
        try:
            code, body = "", encode(self._service.answer(query, slot.machine if slot is not None else None))
        except WireError as error:
            code, body = "refused", refusal("refused", str(error), error.field, error.value, error.remedy)
        except Exception as error:
            log.exception("a query was not answered", job=query.job, query=type(query).__name__)
            code, body = "internal", refusal("internal", type(error).__name__, remedy="see the service's log")
        self._answer(reply, code, body)

    def _answer(self, reply: str, code: str, body: bytes) -> None:
        with contextlib.suppress(BusFault):  # the caller asks again
            self._context.bus.tell(reply, body, {ERROR_HEADER: code} if code else None)

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
        self._journal.add(TICK_ENTRY)

    async def _snapshot_if_due(self) -> None:
        if self._unsaved == 0:
            return
        settings = self._service.settings
        wait_s = snapshot_wait_s(self._unsaved, self._machines.saved_bytes, self._news, settings)
        left_s = self._saved_at_s + wait_s - self._loop.time()
        if left_s <= 0:
            await self._snapshot()
        else:
            self._plan("news" if wait_s <= settings.snapshot_s else "quiet", left_s, self._wake.set)

    async def _snapshot(self) -> None:
        writer = self._handling.writer
        await writer.drain()
        # until everything before our fence is replayed, our heir must scan what our predecessors published, as we did
        out_seq = writer.last_seq if self.live else self._scan_from
        cursor = Cursor(self._seq, out_seq, self._service.version)
        documents = self._machines.documents(sorted(self._machines.dirty))
        await self._snapshots.save(documents, cursor)
        self._saved_seq = self._seq
        self._unsaved = 0
        self._news = False
        self._saved_at_s = self._loop.time()
        self._context.metrics.snapshots.inc()

    # edges -----------------------------------------------------------------------------------------------------

    async def _reconciling(self) -> None:
        while True:
            await self._reconcile_due.wait()
            self._reconcile_due.clear()
            while self._touched:
                key = self._touched.pop()
                slot = self._machines.slots.get(key)
                if slot is None:
                    continue
                self._reconciled.add(key)
                try:
                    with structlog.contextvars.bound_contextvars(job=key, trace_id=slot.trace[3:35]):
                        await self._service.reconcile(key, slot.machine)
                except PartitionLost:
                    log.info("edge stopped: partition lost", key=key)
                except Exception as error:
                    log.exception("reconcile failed; it is called again", key=key, error=str(error))
                    self._loop.call_later(RECONCILE_AGAIN_S, self._touch, {key})

    # end -------------------------------------------------------------------------------------------------------

    async def _drained(self, tail: OrderedConsumer | MergedConsumer) -> bool:
        """Stop what brings new work; whether the last frame has come back."""
        if self._subscription is not None:
            subscription, self._subscription = self._subscription, None
            await subscription.drain()
        return self._journal.idle and self._seq >= self._journal.stored_seq and not tail.ready()

    async def _leave(self) -> None:
        await self._stop_edges()
        if self._seq > self._saved_seq:
            await self._snapshot()
        await self._handling.writer.drain()
        cursor = Cursor(self._seq, self._handling.writer.last_seq, self._service.version)
        await self._snapshots.mark(cursor, 0, clean=True)
        await self._context.ownership.release(self._number, self._epoch)

    async def _stop_edges(self) -> None:
        edges, self._edges = self._edges, None
        if edges is not None:
            await end(edges)
        reconciled, self._reconciled = self._reconciled, set()
        for key in sorted(reconciled):
            try:
                await self._service.released(key)
            except Exception as error:
                log.exception("released failed", key=key, error=str(error))

    async def _end(self, tail: OrderedConsumer | MergedConsumer) -> None:
        if self.live:
            self.live = False
            self._context.metrics.partitions.dec()
        for timer in self._timers.values():
            timer.cancel()
        if self._subscription is not None:
            with contextlib.suppress(Exception):
                await self._subscription.unsubscribe()
        try:
            await self._stop_edges()
        finally:  # also when we are cancelled meanwhile
            self._journal.close()
            await tail.close()
            self._service.partition_changed()


def snapshot_wait_s(unsaved: int, saved_bytes: int, news: bool, settings: Settings) -> float:
    """Seconds from the last snapshot, of ``saved_bytes``, to the next one, while ``unsaved`` inputs wait for it."""
    if unsaved * BYTES_AN_INPUT < saved_bytes:
        return settings.snapshot_s * QUIET
    if unsaved >= settings.snapshot_inputs:
        return min(MIN_SNAPSHOT_S, settings.snapshot_s)
    return settings.snapshot_s * (1 if news else QUIET)

"""Run a service: one replica owns its share of the partitions until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import structlog
import uvloop
from stretto_bus.bus import Bus
from stretto_bus.caller import Caller
from stretto_bus.faults import BusFault
from stretto_bus.tasks import unless
from stretto_bus.writer import learn_streams
from stretto_messages.base import Message
from stretto_wire.codec import encode
from stretto_wire.contract.registry import PARTITIONS, STREAM, partition_of

from stretto_runtime.inputs import CLUSTER, Routes, observation_entry
from stretto_runtime.owner.context import Context
from stretto_runtime.owner.partition import Partition
from stretto_runtime.owner.tenure.ownership import Ownership
from stretto_runtime.owner.tenure.succession import check_snapshots
from stretto_runtime.process.faults import PartitionLost, RuntimeFault, VersionRefusal
from stretto_runtime.process.health import Health
from stretto_runtime.process.health_warnings import HealthWarnings
from stretto_runtime.process.telemetry import Metrics
from stretto_runtime.program import execute
from stretto_runtime.service import Json, Service
from stretto_runtime.settings import Settings
from stretto_runtime.spans.tracing import Tracing

RECHECK_S = 5.0
LEAVE_S = 8.0
KEYS_NAMED = 20
"""Keys that a warning at /readyz names"""

log = structlog.get_logger("stretto.service")


class Runner:
    """One replica of a service. ``endpoints`` makes what tells of its health, by default over HTTP."""

    def __init__(self, service: Service, endpoints: type[Health] = Health) -> None:
        self.service = service
        self.settings: Settings = service.settings
        self.metrics = Metrics(service.name)
        self.port = 0
        self._endpoints = endpoints
        self._partitions: dict[int, tuple[Partition, asyncio.Task[None]]] = {}
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        self._bus: Bus | None = None
        self._ownership: Ownership | None = None
        self._caller: Caller | None = None
        self._warnings: HealthWarnings | None = None
        self._refusal = ""
        self.metrics.partitions.set_function(lambda: len(self._live()))
        self.metrics.lost_keys.set_function(lambda: len(self._lost_keys()))
        self.metrics.unrenewed.set_function(lambda: int(self._ownership is not None and bool(self._ownership.fault)))
        self.metrics.no_way_back.set_function(lambda: len(self._no_way_back()))
        service.attach(self)

    async def run(self) -> None:
        """Connect, join and serve until ``stop``."""
        service, settings = self.service, self.settings
        tracing = Tracing(service.name, settings.state_folder, settings.spans_bytes, settings.spans_per_s)
        health = self._endpoints(service.name, settings.state_folder, self.report, self.metrics.text)
        self.port = await health.start(settings.health_host, settings.health_port, settings.health_listener)
        connecting = Bus.connect(settings.nats_url, settings.login(service.name), service.name)
        self._bus = await unless(self._stop, connecting)  # the server may start after us, or never
        if self._bus is None:
            await health.stop()
            return
        self._caller = Caller(self._bus)
        routes = Routes(service.name, service.inputs, service.observations)
        warnings = HealthWarnings(self._bus, self.metrics, settings.stream_look_s, bool(routes.telemetry(0)))
        self._warnings = warnings
        looking = asyncio.create_task(warnings.run())
        try:
            await unless(self._stop, service.opened())
            while not self._stop.is_set():
                self._ownership = ownership = await self._join(self._bus)
                if ownership is not None:
                    parts = (service, routes, self.metrics, tracing, self._bus, ownership)
                    await self._serve(Context(*parts, fullness=lambda: warnings.fullness))
        finally:
            looking.cancel()
            for _, task in self._partitions.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in self._partitions.values()), return_exceptions=True)
            async with contextlib.AsyncExitStack() as closing:  # in reverse order, each even if another one raises
                closing.callback(tracing.close)
                closing.push_async_callback(self._bus.close)
                closing.push_async_callback(health.stop)
                closing.push_async_callback(service.closed)
                if self._ownership is not None:
                    await self._ownership.leave()
                    await self._stopped(self._ownership)

    async def _stopped(self, ownership: Ownership) -> None:
        """Call ``stopped`` if no other replica is left; the last of replicas that stop together finds none."""
        try:
            if self._stop.is_set() and await ownership.alone():
                await self.service.stopped()
        except BusFault as fault:
            log.warning("cannot know whether other replicas go on", fault=str(fault))
        except Exception as error:
            log.exception("stopped failed", error=str(error))

    def stop(self) -> None:
        """Hand everything over, then end ``run``."""
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def report(self) -> Json:
        """The body of /readyz."""
        live = self._live()
        mine = sorted(self._ownership.mine()) if self._ownership else []
        faults = {str(n): partition.fault for n, (partition, _) in self._partitions.items() if partition.fault}
        if self._ownership is not None:
            waiting = [number for number in mine if number not in self._partitions]
            faults |= {str(n): f"not taken yet; its entry names {self._ownership.holder(n)!r}" for n in waiting}
        unrenewed = self._ownership.fault if self._ownership is not None else ""
        faults |= {"lease": unrenewed} if unrenewed else {}
        connected = self._bus is not None and self._bus.connected
        lost = self._lost_keys()
        blind = CLUSTER in lost  # then nothing is decided for any job
        warnings = [
            self._warnings.warning if self._warnings else "",
            _damage_warning(lost),
            _way_back_warning(self._no_way_back()),
            self.service.warning,
            self.service.lacks,
        ]
        owns_all = self._ownership is not None and set(mine) <= set(live)
        return {
            "service": self.service.name,
            "version": self.service.version,
            "pid": os.getpid(),
            "connected": connected,
            "server": self._bus.server if self._bus is not None else "",
            "ready": connected and owns_all and not unrenewed and not blind and not self.service.lacks,
            "partitions": live,
            "should_own": mine,
            "faults": faults,
            "refusal": self._refusal,
            "warning": "; ".join(warning for warning in warnings if warning),
            "power": self._warnings.power if self._warnings else "",
        }

    def _live(self) -> list[int]:
        """Return the partitions that are handled; none while it is not stored that this replica lives."""
        if self._ownership is None or self._ownership.fault:
            return []
        return sorted(number for number, (partition, _) in self._partitions.items() if partition.live)

    def _lost_keys(self) -> list[str]:
        return sorted({key for partition, _ in self._partitions.values() for key in partition.lost})

    def _no_way_back(self) -> dict[str, str]:
        live = [partition for partition, _ in self._partitions.values() if partition.live]
        return {key: why for partition in live for key, why in partition.no_way_back.items()}

    async def call(self, request: Message, timeout_s: float, trace: str) -> Any:
        return await self._connected_caller.call(request, timeout_s, trace)

    async def call_pod(self, pod: str, request: Message, timeout_s: float, trace: str) -> Any:
        return await self._connected_caller.call_pod(pod, request, timeout_s, trace)

    @property
    def _connected_caller(self) -> Caller:
        if self._caller is None:
            raise RuntimeFault("not connected yet")
        return self._caller

    async def observe(self, key: str, message: Message, trace: str) -> None:
        held = self._partitions.get(partition_of(key))
        session = held[0].session if held else None
        if session is None:
            raise PartitionLost(f"{self.service.name} does not own {key!r} (any more); stop working for it")
        await session.observe(observation_entry(key, message, encode(message), trace or self.trace_of(key)))

    def server_now(self) -> float:
        now_s = self._bus.server_now() if self._bus is not None else None
        if now_s is None:  # every partition learns it before it goes live
            raise RuntimeFault("the server has not said yet what time it is; own a partition first")
        return now_s

    def reporting_pods(self) -> int:
        return self._warnings.reporting_pods if self._warnings is not None else 0

    def trace_of(self, key: str) -> str:
        held = self._partitions.get(partition_of(key))
        slot = held[0].machines.find(key) if held and held[0].machines and key != CLUSTER else None
        return slot.trace if slot else ""

    def machine_of(self, key: str) -> Any:
        held = self._partitions.get(partition_of(key))
        machines = held[0].machines if held is not None and held[0].live else None
        if machines is None or key in machines.lost:
            raise PartitionLost(f"{self.service.name} cannot tell about {key!r}: it does not own it, or it is damaged")
        slot = machines.find(key)
        return slot.machine if slot is not None else None

    async def _join(self, bus: Bus) -> Ownership | None:
        """Become a member, once the streams exist and this code can continue what is saved; None if stopped before.

        Until then nothing is taken, so replicas of a version that can continue it go on undisturbed.
        """
        ownership = Ownership(bus, self.service.name, PARTITIONS, self.settings.lease_s, self.wake)
        while not self._stop.is_set():
            pause_s = 0.5
            try:
                await learn_streams(bus)
                check_journals(bus.facts_kept_s, self.settings.journal_ttl_s)
                await check_snapshots(bus, self.service)
                await ownership.join()
                self._refusal = ""
                return ownership
            except BusFault as fault:
                log.warning("waiting for the streams", fault=str(fault))
            except VersionRefusal as refusal:
                self._refuse(str(refusal))
                pause_s = RECHECK_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
        return None

    async def _serve(self, context: Context) -> None:
        """Serve until stopped. A partition that cannot be continued ends everything, for replicas that can."""
        while not self._stop.is_set() and not context.ownership.refusal:
            self._wake.clear()
            self._reconcile(context)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S):
                    await self._wake.wait()
        if context.ownership.refusal:
            self._refuse(context.ownership.refusal)
        await self._leave_all(context.ownership)
        if not self._stop.is_set():
            self._partitions.clear()
            self._ownership = None
            await context.ownership.leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S):
                    await self._stop.wait()

    def _refuse(self, why: str) -> None:
        if why != self._refusal:
            log.error("standing aside: the saved state cannot be continued", reason=why)
        self._refusal = why
        self.metrics.refused.inc()

    def _reconcile(self, context: Context) -> None:
        ownership = context.ownership
        for number, (partition, task) in list(self._partitions.items()):
            if task.done():
                del self._partitions[number]
                if not task.cancelled() and (error := task.exception()) is not None:
                    log.error("partition task failed", partition=number, error=repr(error))
            elif partition.live and ownership.usurped(number, partition.epoch):
                task.cancel()
        mine = ownership.mine()
        for number, (partition, _) in self._partitions.items():
            if number not in mine:
                partition.leave()
        for number in sorted((mine | ownership.held()) - self._partitions.keys()):
            partition = Partition(context, number)
            if number not in mine:
                self._begin(partition, partition.give_back())
            elif ownership.takeable(number):
                self._begin(partition, partition.own())

    def _begin(self, partition: Partition, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"partition {partition.number}")
        task.add_done_callback(lambda _: self.wake())
        self._partitions[partition.number] = (partition, task)

    async def _leave_all(self, ownership: Ownership) -> None:
        for partition, _ in self._partitions.values():
            partition.leave()
        telling = asyncio.create_task(ownership.hand_over())
        _, late = await asyncio.wait([telling, *(task for _, task in self._partitions.values())], timeout=LEAVE_S)
        if late:
            log.warning("not every partition could be handed over; successors will replay", partitions=len(late))


def check_journals(facts_kept_s: float, journal_ttl_s: int) -> None:
    """Check that the stream keeps journals for as long as the service counts on them. Raises Refusal."""
    if journal_ttl_s > facts_kept_s:
        raise VersionRefusal(
            f"STRETTO_JOURNAL_TTL_S={journal_ttl_s} is refused: the stream {STREAM} keeps everything for "
            f"{facts_kept_s:g} s; lower it, or raise STRETTO_STREAMS_EVENTS_KEPT_S and make the streams again"
        )


def _damage_warning(lost: Sequence[str]) -> str:
    """The text for /readyz about keys that cannot be continued; empty without any."""
    if not lost:
        return ""
    return (
        f"the saved state of {_named(lost)} is damaged, or larger than the server takes; nothing is decided for it any "
        "more: see the log, and the dead letters, dlq.state.>"
    )


def _way_back_warning(reasons: Mapping[str, str]) -> str:
    """The text for /readyz about keys that the former version cannot continue; empty without any."""
    if not reasons:
        return ""
    first = min(reasons)
    return (
        f"{_named(sorted(reasons))} can go on under this version only ({first}: {reasons[first]}); the former version "
        "needs the backup that was taken before this one came"
    )


def _named(keys: Sequence[str]) -> str:
    return ", ".join(keys[:KEYS_NAMED]) + (f" and {len(keys) - KEYS_NAMED} more" if len(keys) > KEYS_NAMED else "")


async def serve(service: Service, stop: asyncio.Event) -> None:
    """Run a replica until ``stop``."""
    runner = Runner(service)
    task = asyncio.create_task(runner.run())
    waiter = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
        runner.stop()
        await task
    except asyncio.CancelledError:  # else the replica would run on unknown to its caller
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    finally:
        waiter.cancel()


def run(service_type: type[Service]) -> None:
    """Run a service as the ``__main__`` of its process."""
    gc.freeze()  # objects of the start live for ever: no collection has to visit them
    gc.set_threshold(10_000, 10, 10)  # handling makes no cycles: collecting every 700 objects costs two per cent
    execute(
        service_type.name,
        service_type.settings_type,
        lambda settings, stop: serve(service_type(settings), stop),
        uvloop.new_event_loop,  # a third less CPU per request
    )

"""What a service author writes, and what runs it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Coroutine
from typing import Any, ClassVar

import structlog
import uvloop
from stretto_core.machine import Tick
from stretto_messages.base import Message
from stretto_wire.codec import encode
from stretto_wire.registry import PARTITIONS, partition_of

from stretto_runtime.bus import Bus
from stretto_runtime.ending import unless
from stretto_runtime.faults import BusFault, PartitionLost, Refusal, RuntimeFault
from stretto_runtime.health import Health
from stretto_runtime.inputs import Input, Meta, Routes, observation_entry
from stretto_runtime.machines import CLUSTER
from stretto_runtime.outlook import Outlook
from stretto_runtime.ownership import Ownership
from stretto_runtime.partition import Partition
from stretto_runtime.program import execute
from stretto_runtime.rpc import Caller
from stretto_runtime.settings import Settings
from stretto_runtime.shell import Shell
from stretto_runtime.succession import check_snapshots
from stretto_runtime.telemetry import Metrics, Tracing

RECHECK_S = 5.0
LEAVE_S = 8.0

log = structlog.get_logger("stretto.service")


class Service:
    """A pure machine per job (and per cluster), made durable. Subclasses fill in the class attributes and the hooks."""

    name: ClassVar[str]
    version: ClassVar[int]
    settings_type: ClassVar[type[Settings]] = Settings
    inputs: ClassVar[tuple[Input, ...]] = ()
    rpcs: ClassVar[tuple[type[Message], ...]] = ()
    queries: ClassVar[tuple[type[Message], ...]] = ()
    """requests that decide nothing: answered at once by ``answer``, neither journalled nor remembered"""
    observations: ClassVar[tuple[type[Message], ...]] = ()
    """message types that only ``observe`` uses and that have no channel of their own"""
    tick_s: float | None = None
    """seconds between ticks of a partition that has keys; None: no ticks"""
    state_types: ClassVar[dict[str, type]] = {}

    def __init__(self, settings: Any) -> None:
        self.settings = settings
        self._runner: Runner | None = None

    # what a service defines ------------------------------------------------------------------------------------

    def machine(self, key: str, state: Any) -> Any:
        """The machine of ``key`` (a job, or ``"_"``), continuing from ``state`` or fresh when that is None."""
        raise NotImplementedError

    def to_event(self, message: Any, meta: Meta) -> Any:
        """The core event of a wire message, or None to ignore it. Pure."""
        raise NotImplementedError

    def to_message(self, key: str, fact: Any) -> Any:
        """The wire message of a core fact or reply body; None publishes nothing. Pure."""
        raise NotImplementedError

    def tick_event(self) -> Any:
        """What a machine gets as a tick."""
        return Tick()

    def deciding(self) -> dict[str, Any]:
        """The settings that decisions depend on, in JSON: recorded in the stream, where everybody can read them."""
        own = type(self.settings).model_fields.keys() - Settings.model_fields.keys()
        return self.settings.model_dump(mode="json", include=own)

    def answer(self, query: Any, machine: Any) -> Message:
        """To a query about the machine of its job (None: nothing is known of it). A WireError is a refusal."""
        raise NotImplementedError

    async def settled(self, key: str, machine: Any) -> None:
        """The machine of ``key`` has changed (live), or was just taken over: make the world follow its state."""

    async def left(self, key: str) -> None:
        """The partition of ``key`` is another replica's from now on: stop background work at once."""

    async def opened(self) -> None:
        """This replica has started and takes nothing before this returns: reach what the edges need."""

    async def closed(self) -> None:
        """This replica has left everything that it owned: let go of what ``opened`` reached."""

    async def stopped(self) -> None:
        """This replica has left because it was told to, and no other is there to go on with what it leaves behind."""

    # what a service may use in its edges -----------------------------------------------------------------------

    async def observe(self, key: str, message: Message, trace: str = "") -> None:
        """Journal what was seen; it comes back as an input. Returns when it is stored.

        Raises:
            PartitionLost: this replica does not own ``key``; the new owner will see for itself.
        """
        await self._running.observe(key, message, trace)

    async def call(self, request: Message, timeout_s: float = 15.0, trace: str = "") -> Any:
        """Ask the owner of a job in another service, in the job's trace. Raises CallRefused, CallTimeout."""
        return await self._running.caller.call(request, timeout_s, trace or self.trace_of(request.job))

    async def call_pod(self, pod: str, request: Message, timeout_s: float = 5.0, trace: str = "") -> Any:
        """Ask one pod, once. Raises CallRefused, CallTimeout."""
        return await self._running.caller.call_pod(pod, request, timeout_s, trace or self.trace_of(request.job))

    def now(self) -> float:
        """The wall clock, seconds since the epoch: for edges only, never for decisions."""
        return time.time()

    def trace_of(self, key: str) -> str:
        """The ``traceparent`` of the job's first traced message, for what an edge sends."""
        return self._running.trace_of(key)

    # what the runtime asks -------------------------------------------------------------------------------------

    @property
    def has_edges(self) -> bool:
        return type(self).settled is not Service.settled or type(self).left is not Service.left

    def partition_changed(self) -> None:
        """A partition came live or ended."""
        self._running.wake()

    def attach(self, runner: Runner) -> None:
        self._runner = runner

    @property
    def _running(self) -> Runner:
        if self._runner is None:
            raise RuntimeFault(f"{self.name} is not running; start it with stretto_runtime.run")
        return self._runner


class Runner:
    """One replica of a service: owns its share of the partitions until told to stop."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.settings: Settings = service.settings
        self.metrics = Metrics(service.name)
        self.port = 0
        self._partitions: dict[int, tuple[Partition, asyncio.Task[None]]] = {}
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        self._bus: Bus | None = None
        self._ownership: Ownership | None = None
        self._caller: Caller | None = None
        self._outlook: Outlook | None = None
        self._refusal = ""
        service.attach(self)

    async def run(self) -> None:
        """Until ``stop``."""
        service, settings = self.service, self.settings
        tracing = Tracing(service.name, settings.state_folder, settings.spans_bytes, settings.spans_per_s)
        health = Health(service.name, settings.state_folder, self.report, self.metrics.text)
        self.port = await health.start(settings.health_host, settings.health_port)
        connecting = Bus.connect(settings.nats_url, settings.login(service.name), service.name)
        self._bus = await unless(self._stop, connecting)  # the server may come later than we do, or never
        if self._bus is None:
            await health.stop()
            return
        self._caller = Caller(self._bus)
        routes = Routes(service.name, service.inputs, service.observations)
        self._outlook = Outlook(self._bus, self.metrics, settings.stream_look_s)
        looking = asyncio.create_task(self._outlook.run())
        try:
            await unless(self._stop, service.opened())
            while not self._stop.is_set():
                self._ownership = ownership = await self._join(self._bus)
                if ownership is not None:
                    await self._serve(Shell(service, self._bus, ownership, routes, self.metrics, tracing))
        finally:
            looking.cancel()
            for _, task in self._partitions.values():
                task.cancel()
            await asyncio.gather(*(task for _, task in self._partitions.values()), return_exceptions=True)
            async with contextlib.AsyncExitStack() as closing:  # from below, each whatever another one raises
                closing.callback(tracing.close)
                closing.push_async_callback(self._bus.close)
                closing.push_async_callback(health.stop)
                closing.push_async_callback(service.closed)
                if self._ownership is not None:
                    await self._ownership.leave()
                    await self._say_stopped(self._ownership)

    async def _say_stopped(self, ownership: Ownership) -> None:
        """Replicas that are stopped together all leave first: at least the last of them finds nobody."""
        try:
            if self._stop.is_set() and await ownership.alone():
                await self.service.stopped()
        except BusFault as fault:
            log.warning("cannot know whether other replicas go on", fault=str(fault))
        except Exception as error:
            log.exception("stopped failed", error=str(error))

    def stop(self) -> None:
        """Leave gracefully, then end ``run``."""
        self._stop.set()
        self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def report(self) -> dict[str, Any]:
        """What /readyz tells."""
        live = sorted(number for number, (partition, _) in self._partitions.items() if partition.live)
        mine = sorted(self._ownership.mine()) if self._ownership else []
        faults = {str(n): partition.fault for n, (partition, _) in self._partitions.items() if partition.fault}
        if self._ownership is not None:
            waiting = [number for number in mine if number not in self._partitions]
            faults |= {str(n): f"not taken yet; its entry names {self._ownership.holder(n)!r}" for n in waiting}
        connected = self._bus is not None and self._bus.connected
        return {
            "service": self.service.name,
            "version": self.service.version,
            "pid": os.getpid(),
            "connected": connected,
            "server": self._bus.server if self._bus is not None else "",
            "ready": connected and self._ownership is not None and set(mine) <= set(live),
            "partitions": live,
            "should_own": mine,
            "faults": faults,
            "refusal": self._refusal,
            "warning": self._outlook.warning if self._outlook else "",
        }

    @property
    def caller(self) -> Caller:
        if self._caller is None:
            raise RuntimeFault("not connected yet")
        return self._caller

    async def observe(self, key: str, message: Message, trace: str) -> None:
        held = self._partitions.get(partition_of(key))
        journal = held[0].journal if held else None
        if journal is None:
            raise PartitionLost(f"{self.service.name} does not own {key!r} (any more); stop working for it")
        await journal.add_surely(observation_entry(key, message, encode(message), trace or self.trace_of(key)))

    def trace_of(self, key: str) -> str:
        held = self._partitions.get(partition_of(key))
        slot = held[0].machines.slots.get(key) if held and held[0].machines and key != CLUSTER else None
        return slot.trace if slot else ""

    async def _join(self, bus: Bus) -> Ownership | None:
        """A member, once there are streams and this code can continue what is saved; None when told to stop.

        Until then nothing is taken: replicas of the version that can continue it go on undisturbed.
        """
        ownership = Ownership(bus, self.service.name, PARTITIONS, self.settings.lease_s, self.wake)
        while not self._stop.is_set():
            pause_s = 0.5
            try:
                await check_snapshots(bus, self.service)
                await ownership.join()
                self._refusal = ""
                return ownership
            except BusFault as fault:
                log.warning("waiting for the streams", fault=str(fault))
            except Refusal as refusal:
                self._refuse(str(refusal))
                pause_s = RECHECK_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._stop.wait()
        return None

    async def _serve(self, shell: Shell) -> None:
        """Until told to stop, or until something cannot be continued: then everything is left to those who can."""
        while not self._stop.is_set() and not shell.ownership.refusal:
            self._wake.clear()
            self._reconcile(shell)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S):  # wait_for swallows a cancelling that comes with the news
                    await self._wake.wait()
        if shell.ownership.refusal:
            self._refuse(shell.ownership.refusal)
        await self._leave_all()
        if not self._stop.is_set():
            self._partitions.clear()
            self._ownership = None
            await shell.ownership.leave()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S):
                    await self._stop.wait()

    def _refuse(self, why: str) -> None:
        if why != self._refusal:
            log.error("standing aside: what is saved cannot be continued", reason=why)
        self._refusal = why
        self.metrics.refused.inc()

    def _reconcile(self, shell: Shell) -> None:
        ownership = shell.ownership
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
            partition = Partition(shell, number)
            if number not in mine:
                self._begin(partition, partition.give_back())
            elif ownership.takeable(number):
                self._begin(partition, partition.own())

    def _begin(self, partition: Partition, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"partition {partition.number}")
        task.add_done_callback(lambda _: self.wake())
        self._partitions[partition.number] = (partition, task)

    async def _leave_all(self) -> None:
        for partition, _ in self._partitions.values():
            partition.leave()
        tasks = [task for _, task in self._partitions.values()]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=LEAVE_S)
            if late:
                log.warning("not everything could be left gracefully; heirs will replay", partitions=len(late))


async def serve(service: Service, stop: asyncio.Event) -> None:
    """Run until ``stop``."""
    runner = Runner(service)
    task = asyncio.create_task(runner.run())
    waiter = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([task, waiter], return_when=asyncio.FIRST_COMPLETED)
        runner.stop()
        await task
    except asyncio.CancelledError:  # else the runner would live on as a replica that nobody knows
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    finally:
        waiter.cancel()


def run(service_type: type[Service]) -> None:
    """The ``__main__`` of a service."""
    gc.freeze()  # what the start made lives for ever: no collection has to pause the loop to find that again
    gc.set_threshold(10_000, 10, 10)  # handling makes no cycles: to look for some every 700 objects costs two per cent
    execute(
        service_type.name,
        service_type.settings_type,
        lambda settings, stop: serve(service_type(settings), stop),
        uvloop.new_event_loop,  # a third less CPU per request
    )

"""The decider: one machine for each object that asks for a size, and one loop that looks at the objects and writes.

The loop observes what machines need to see, and writes what they have decided. Before it writes it reads all again: the
patch is for the object and the queue that the decision was made for, or there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import ClassVar, get_args

import structlog
from stretto_bus.tasks import end
from stretto_core.decider.fields import UnfitObject
from stretto_core.decider.kueue import SeenObjects
from stretto_core.decider.machine import DeciderMachine
from stretto_core.decider.objects import (
    gone,
    in_words,
    job_of,
    limits_of,
    observed,
    reference,
    sized,
    specification,
)
from stretto_core.decider.observations import ObjectFound, ObjectObserved, PatchRefused
from stretto_core.decider.state import DeciderState, SizeWrite, SpecificationFound
from stretto_core.decider.targets import TARGETS
from stretto_kube import Api, Kind, KubeFault, ObjectChange, Reflector
from stretto_messages.base import Message, bounded
from stretto_runtime import PartitionLost, Service
from stretto_wire import JobSpec, WireError
from stretto_wire.contract.submission import ObjectAdopted

from .events import Found, ObjectEvents
from .settings import DeciderSettings, SizedKind

SIZED = {
    kind: Kind(TARGETS[kind].group, TARGETS[kind].version, TARGETS[kind].plural, kind) for kind in get_args(SizedKind)
}
JOBS = SIZED["Job"]
WORKLOADS = Kind("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
LOCAL_QUEUES = Kind("kueue.x-k8s.io", "v1beta2", "localqueues", "LocalQueue")
CLUSTER_QUEUES = Kind("kueue.x-k8s.io", "v1beta2", "clusterqueues", "ClusterQueue", namespaced=False)
MANAGER = "stretto"
REACH_AGAIN_S = 2.0
FOR_GOOD = (400, 403, 422)
"""Answers to a patch that a repetition would not change."""

log = structlog.get_logger("stretto.decider")


class Decider(Service[DeciderSettings, DeciderState, DeciderMachine]):
    """Sizes of objects that another controller runs; see the README."""

    name = "decider"
    version = DeciderMachine.version
    settings_type = DeciderSettings
    observations = (ObjectFound, ObjectObserved, PatchRefused)
    tick_s = 5.0
    state_types: ClassVar[dict[str, type]] = {"job": DeciderState}

    def __init__(self, settings: DeciderSettings) -> None:
        super().__init__(settings)
        self._api: Api | None = None
        self._reflectors: dict[str, Reflector] = {}
        """By the name of the kind that each follows."""
        self._tasks: list[asyncio.Task[None]] = []
        self._woken = asyncio.Event()
        self._machines: dict[str, DeciderMachine] = {}
        """Machines of this replica that have an object, by job."""
        self._told: dict[str, Message] = {}
        """The last observation of each job, which its machine may not have handled yet."""
        self._noted: dict[str, int] = {}
        """The end of a decision, by its number, of which each object has the last event."""
        self._unfit: dict[str, str] = {}
        self._events = ObjectEvents()

    # ---- hooks ------------------------------------------------------------------------------------------------

    def machine(self, key: str, state: DeciderState | None) -> DeciderMachine:
        return DeciderMachine(state, self.settings.rules())

    def to_message(self, key: str, fact: object) -> Message | None:
        if not isinstance(fact, SpecificationFound):
            return super().to_message(key, fact)
        spec = JobSpec.model_validate_json(fact.spec)
        assert spec.program is not None
        assert spec.program.object is not None
        return ObjectAdopted(job=fact.job, spec=spec, submitted_by=spec.program.object[:200], team=self.settings.team)

    @property
    def lacks(self) -> str:
        return (
            ""
            if all(each.synced.is_set() for each in self._reflectors.values())
            else "objects of the cluster are not listed"
        )

    async def opened(self) -> None:
        settings = self.settings
        while self._api is None:
            try:
                self._api = await Api.connect(MANAGER, settings.kubernetes_namespace, settings.kubernetes_config)
            except KubeFault as fault:
                log.warning("takes no objects before it reaches the cluster", fault=str(fault))
                await asyncio.sleep(REACH_AGAIN_S)
        api, changed = self._api, self._changed
        # Jobs always: child Jobs have the pods of a JobSet, and Jobs in a queue hold its quota
        self._reflectors = {
            kind: Reflector(api, SIZED[kind], "", changed) for kind in dict.fromkeys(("Job", *settings.kinds))
        }
        if settings.kueue:
            self._reflectors |= {
                "Workload": Reflector(api, WORKLOADS, "", changed),
                "LocalQueue": Reflector(api, LOCAL_QUEUES, "", changed),
                "ClusterQueue": Reflector(api, CLUSTER_QUEUES, "", changed),
            }
        self._tasks = [asyncio.create_task(each.run()) for each in self._reflectors.values()]
        self._tasks.append(asyncio.create_task(self._run(), name="look at objects"))

    async def closed(self) -> None:
        for task in self._tasks:
            await end(task)
        if self._api is not None:
            await self._api.close()

    async def reconcile(self, key: str, machine: DeciderMachine) -> None:
        if machine.ended:
            self._forget(key)
        else:
            self._machines[key] = machine
        self._woken.set()

    async def released(self, key: str) -> None:
        self._forget(key)

    def _forget(self, key: str) -> None:
        for kept in (self._machines, self._told, self._noted):
            kept.pop(key, None)

    def partition_changed(self) -> None:
        super().partition_changed()
        self._woken.set()

    # ---- the loop ---------------------------------------------------------------------------------------------

    def _changed(self, change: ObjectChange) -> None:
        self._woken.set()

    async def _run(self) -> None:
        assert self._api is not None
        for reflector in self._reflectors.values():
            await reflector.synced.wait()
        while True:
            self._woken.clear()
            seen = self._seen()
            objects = self._objects(seen)
            self._unfit = {job: reason for job, reason in self._unfit.items() if job in objects}
            for job in sorted({*self._machines, *(job for job, found in objects.items() if found.asks)}):
                await self._guarded(job, self._follow(job, objects.get(job), seen))
                await asyncio.sleep(0)  # what is only looked at waits for nothing, and others have to run
            await self._write_all()
            await self._guarded("events", self._events.make(self._api))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.look_s):
                    await self._woken.wait()

    async def _follow(self, job: str, found: Found | None, seen: SeenObjects) -> None:
        """Look at one object."""
        machine = self.machine_of(job)
        if machine is None or not machine.state.job:
            if found is not None:
                await self._find(job, found, seen)
        elif not machine.ended:
            await self._show(job, found, machine, seen)
            if found is not None:
                self._note(found, machine.state)
        elif found is not None and found.asks and not found.ended:
            over = f"its job {job} was cancelled, or it asked for no size meanwhile"
            named = reference(found.target, found.one)
            self._refuse(job, found, f"{named} gets no size any more: {over}; make the object anew")

    async def _write_all(self) -> None:
        """Write the open decisions, by objects that are read again for all of them."""
        waiting = {job for job, machine in self._machines.items() if machine.unwritten}
        if not waiting:
            return
        try:
            for reflector in self._reflectors.values():
                await reflector.list()
        except KubeFault as fault:
            log.warning("objects cannot be read; decisions wait", fault=str(fault))
            return
        for job, found in self._objects(self._seen()).items():
            if job in waiting:  # each by what the write before it has left of the room
                await self._guarded(job, self._write(job, found, self._seen()))

    async def _guarded(self, job: str, looking: Awaitable[None]) -> None:
        """Wait for what is done with one object, whose errors do not affect others."""
        try:
            await looking
        except PartitionLost:  # another replica looks at this object
            pass
        except KubeFault as fault:
            log.warning("object: will look again", job=job, fault=str(fault))
        except Exception as error:  # one object must not stop all
            log.exception("object: unforeseen; will look again", job=job, error=str(error))

    async def _find(self, job: str, found: Found, seen: SeenObjects) -> None:
        """Take an object in, or tell on it why it cannot be."""
        if found.ended:
            return
        try:
            spec = JobSpec.parse(specification(found.target, found.one, seen))
            least, _ = limits_of(found.target, found.one)
        except (UnfitObject, WireError) as unfit:
            self._refuse(job, found, str(unfit))
            return
        await self._tell(job, ObjectFound(job=job, spec=spec.model_dump_json(), least=least))

    def _refuse(self, job: str, found: Found, reason: str) -> None:
        """Tell on an object, once, why it gets no size."""
        if self._unfit.get(job) != reason:
            self._unfit[job] = reason
            self._event(found, f"{job[-8:]}.unfit", "SizeNotDecided", reason, warns=True)

    async def _show(self, job: str, found: Found | None, machine: DeciderMachine, seen: SeenObjects) -> None:
        """Let the machine see the object as it is now."""
        if found is None:
            for kind in self.settings.kinds:
                await self._reflectors[kind].list()  # a watch may lag behind what another replica has seen
            if job not in self._objects(self._seen()):
                await self._tell(job, gone(job, "the object was deleted"))
        elif not found.asks:
            await self._tell(job, gone(job, f"{reference(found.target, found.one)} asks for no size any more"))
        else:
            try:
                sight = observed(found.target, found.one, seen)
            except UnfitObject as unfit:  # its owner has changed more than the size
                self._refuse(job, found, str(unfit))
            else:
                await self._tell(job, sight, again=machine.is_overdue(self.server_now()))

    async def _tell(self, job: str, message: Message, again: bool = False) -> None:
        """Let the machine see what it has not seen yet. again: show it as the sight of now, though nothing changed."""
        if again or self._told.get(job) != message:
            await self.observe(job, message)
            self._told[job] = message

    async def _write(self, job: str, found: Found, seen: SeenObjects) -> None:
        """Write the open decision, unless the object or its queue has changed since it was made."""
        machine = self.machine_of(job)
        if machine is None or (write := machine.unwritten) is None:
            return
        if found.asks and observed(found.target, found.one, seen) == machine.state.seen:  # else the next look shows it
            await self._patch(job, found, write)

    async def _patch(self, job: str, found: Found, write: SizeWrite) -> None:
        assert self._api is not None
        kind, fields = found.target.kind, sized(found.target, found.one, write)
        try:
            # of another manager's size too: who annotates an object gives its size away
            self._reflectors[kind].written(await self._api.apply(SIZED[kind], fields, force=True))
        except KubeFault as fault:
            if fault.status in FOR_GOOD:
                await self.observe(job, PatchRefused(job=job, number=write.number, reason=bounded(str(fault))))
            elif fault.status != 409:  # then it has changed since it was read, which its watch tells
                raise
        else:
            self._event(found, f"{job[-8:]}.{write.number}", "SizeDecided", in_words(write))

    # ---- what the object's owner reads ------------------------------------------------------------------------

    def _note(self, found: Found, state: DeciderState) -> None:
        """Make an event of how the last decision ended."""
        job, ends = state.job, state.ends
        if ends > self._noted.get(job, 0):
            told, warns = f"{state.outcome}: {state.outcome_reason}", state.outcome == "refused"
            self._event(found, f"{job[-8:]}.end-{ends}", f"Size{state.outcome.title()}", told, warns)
            self._noted[job] = ends

    def _event(self, found: Found, name: str, reason: str, message: str, warns: bool = False) -> None:
        self._events.tell(found, name, reason, message, warns, now=datetime.now(UTC))

    def _seen(self) -> SeenObjects:
        """Return the objects as they are now, and as they stay in what is returned."""
        seen = {kind: dict(each.store.objects) for kind, each in self._reflectors.items()}
        of_kueue = (seen.get(kind, {}) for kind in ("Workload", "LocalQueue", "ClusterQueue"))
        return SeenObjects({kind: seen[kind] for kind in seen.keys() & SIZED.keys()}, *of_kueue)

    def _objects(self, seen: SeenObjects) -> dict[str, Found]:
        """Return the objects whose size can be decided, by job."""
        kinds = self.settings.kinds
        return {job_of(one): Found(TARGETS[kind], one) for kind in kinds for one in seen.objects[kind].values()}

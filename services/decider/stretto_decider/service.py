"""The decider: one machine for each object that asks for a size, and one loop that looks at the objects and writes.

The loop observes what machines need to see, and writes what they have decided. Before it writes it reads all again: the
patch is for the object and the queue that the decision was made for, or there is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import ClassVar

import structlog
from stretto_bus.tasks import end
from stretto_core.decider.kueue import (
    SeenObjects,
    UnfitObject,
    asks,
    ended,
    event_about,
    gone,
    in_words,
    job_of,
    limits_of,
    observed,
    reference,
    sized,
    specification,
)
from stretto_core.decider.machine import DeciderMachine
from stretto_core.decider.observations import ObjectFound, ObjectObserved, PatchRefused
from stretto_core.decider.state import DeciderState, SizeWrite, SpecificationFound
from stretto_kube import Api, Kind, KubeFault, Object, ObjectChange, Reflector
from stretto_messages.base import Message, bounded
from stretto_runtime import PartitionLost, Service
from stretto_wire import JobSpec, WireError
from stretto_wire.contract.submission import ObjectAdopted

from .settings import DeciderSettings

JOBS = Kind("batch", "v1", "jobs", "Job")
EVENTS = Kind("", "v1", "events", "Event")
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
        self._reflectors: list[Reflector] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._woken = asyncio.Event()
        self._machines: dict[str, DeciderMachine] = {}
        """Machines of this replica that have an object, by job."""
        self._told: dict[str, Message] = {}
        """The last observation of each job, which its machine may not have handled yet."""
        self._noted: dict[str, int] = {}
        """The end of a decision, by its number, of which each object has the last event."""
        self._unfit: dict[str, str] = {}

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
        return "" if all(each.synced.is_set() for each in self._reflectors) else "objects of the cluster are not listed"

    async def opened(self) -> None:
        settings = self.settings
        while self._api is None:
            try:
                self._api = await Api.connect(MANAGER, settings.kubernetes_namespace, settings.kubernetes_config)
            except KubeFault as fault:
                log.warning("takes no objects before it reaches the cluster", fault=str(fault))
                await asyncio.sleep(REACH_AGAIN_S)
        self._reflectors = [
            Reflector(self._api, JOBS, "", self._changed),
            Reflector(self._api, WORKLOADS, "", self._changed),
            Reflector(self._api, LOCAL_QUEUES, "", self._changed),
            Reflector(self._api, CLUSTER_QUEUES, "", self._changed),
        ]
        self._tasks = [asyncio.create_task(each.run()) for each in self._reflectors]
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
        for reflector in self._reflectors:
            await reflector.synced.wait()
        while True:
            self._woken.clear()
            seen = self._seen()
            jobs = {job_of(one): one for one in seen.jobs.values()}
            self._unfit = {job: reason for job, reason in self._unfit.items() if job in jobs}
            for job in sorted({*self._machines, *(job for job, one in jobs.items() if asks(one))}):
                await self._guarded(job, self._follow(job, jobs.get(job), seen))
                await asyncio.sleep(0)  # what is only looked at waits for nothing, and others have to run
            await self._write_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.look_s):
                    await self._woken.wait()

    async def _follow(self, job: str, one: Object | None, seen: SeenObjects) -> None:
        """Look at one object."""
        machine = self.machine_of(job)
        if machine is None or not machine.state.job:
            if one is not None:
                await self._find(job, one, seen)
        elif not machine.ended:
            await self._show(job, one, machine, seen)
            if one is not None:
                await self._note(one, machine.state)
        elif one is not None and asks(one) and not ended(one):
            over = f"its job {job} was cancelled, or it asked for no size meanwhile"
            await self._refuse(job, one, f"{reference(one)} gets no size any more: {over}; make the Job anew")

    async def _write_all(self) -> None:
        """Write the open decisions, by objects that are read again for all of them."""
        waiting = {job for job, machine in self._machines.items() if machine.unwritten}
        if not waiting:
            return
        try:
            for reflector in self._reflectors:
                await reflector.list()
        except KubeFault as fault:
            log.warning("objects cannot be read; decisions wait", fault=str(fault))
            return
        for job, one in {job_of(one): one for one in self._seen().jobs.values()}.items():
            if job in waiting:  # each by what the write before it has left of the room
                await self._guarded(job, self._write(job, one, self._seen()))

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

    async def _find(self, job: str, one: Object, seen: SeenObjects) -> None:
        """Take an object in, or tell on it why it cannot be."""
        if ended(one):
            return
        try:
            spec, (least, _) = JobSpec.parse(specification(one, seen)), limits_of(one)
        except (UnfitObject, WireError) as unfit:
            await self._refuse(job, one, str(unfit))
            return
        found = ObjectFound(job=job, spec=spec.model_dump_json(), least=least)
        await self._tell(job, found)

    async def _refuse(self, job: str, one: Object, reason: str) -> None:
        """Tell on an object, once, why it gets no size."""
        if self._unfit.get(job) != reason:
            self._unfit[job] = reason
            await self._event(one, f"{job[-8:]}.unfit", "SizeNotDecided", reason, warns=True)

    async def _show(self, job: str, one: Object | None, machine: DeciderMachine, seen: SeenObjects) -> None:
        """Let the machine see the object as it is now."""
        if one is None:
            await self._reflectors[0].list()  # a watch may lag behind what another replica has seen
            if not any(job_of(each) == job for each in self._seen().jobs.values()):
                await self._tell(job, gone(job, "the object was deleted"))
        elif not asks(one):
            await self._tell(job, gone(job, f"{reference(one)} asks for no size any more"))
        else:
            await self._tell(job, observed(one, seen), again=machine.is_overdue(self.server_now()))

    async def _tell(self, job: str, message: Message, again: bool = False) -> None:
        """Let the machine see what it has not seen yet. again: show it as the sight of now, though nothing changed."""
        if again or self._told.get(job) != message:
            await self.observe(job, message)
            self._told[job] = message

    async def _write(self, job: str, one: Object, seen: SeenObjects) -> None:
        """Write the open decision, unless the object or its queue has changed since it was made."""
        machine = self.machine_of(job)
        if machine is None or (write := machine.unwritten) is None:
            return
        if asks(one) and observed(one, seen) == machine.state.seen:  # else the next look shows it
            await self._patch(job, one, write)

    async def _patch(self, job: str, one: Object, write: SizeWrite) -> None:
        assert self._api is not None
        try:
            # of another manager's parallelism too: who annotates an object gives its size away
            self._reflectors[0].written(await self._api.apply(JOBS, sized(one, write), force=True))
        except KubeFault as fault:
            if fault.status in FOR_GOOD:
                await self.observe(job, PatchRefused(job=job, number=write.number, reason=bounded(str(fault))))
            elif fault.status != 409:  # then it has changed since it was read, which its watch tells
                raise
        else:
            await self._event(one, f"{job[-8:]}.{write.number}", "SizeDecided", in_words(write))

    # ---- what the object's owner reads ------------------------------------------------------------------------

    async def _note(self, one: Object, state: DeciderState) -> None:
        """Make an event of how the last decision ended."""
        job, ends = state.job, state.ends
        if ends > self._noted.get(job, 0):
            told, warns = f"{state.outcome}: {state.outcome_reason}", state.outcome == "refused"
            await self._event(one, f"{job[-8:]}.end-{ends}", f"Size{state.outcome.title()}", told, warns)
            self._noted[job] = ends

    async def _event(self, one: Object, name: str, reason: str, message: str, warns: bool = False) -> None:
        """Make an event. Its name has a digest of its text: the same one twice is one, another text is another one."""
        assert self._api is not None
        name = f"{name}.{hashlib.sha256(message.encode()).hexdigest()[:8]}"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            await self._api.create(EVENTS, event_about(one, name, reason, message, warns, now))
        except KubeFault as fault:
            if fault.status != 409:  # a replica before this one has made it
                raise

    def _seen(self) -> SeenObjects:
        """Return the objects as they are now, and as they stay in what is returned."""
        return SeenObjects(*(dict(each.store.objects) for each in self._reflectors))

"""Jobs as Kubernetes objects: what is applied is submitted, what is deleted is cancelled, and the status tells.

The same functions that serve REST do it, so both show the same job. Every replica follows the objects; the one that
holds the Lease writes. What there is to do follows from the object and the job each time anew, so a replica that takes
over goes on in the middle of anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog
from stretto_bus.faults import Fault
from stretto_bus.tasks import end
from stretto_kube import PODS, Api, Change, Election, KubeFault, Object, Reflector
from stretto_wire import WireError
from stretto_wire.kubernetes import INSTALLATION, JOB

from . import trail
from .problems import Problem
from .service import Gateway
from .settings import GatewaySettings
from .trail import Trail
from .trainingjobs_schema import TRAINING_JOBS
from .trainingjobs_status import (
    FINALIZER,
    Refused,
    actor_of,
    next_step,
    refusal_of,
    spec_of,
    status_of,
    worth_writing,
)
from .views import JobView

MANAGER = "stretto-gateway"
LEASE = "stretto-trainingjobs"
AGAIN_S = 2.0

log = structlog.get_logger("stretto.gateway")


async def run(gateway: Gateway, audit: Trail, settings: GatewaySettings) -> NoReturn:
    """For ever; the cluster may not be there yet, or not let us in yet."""

    async def connect() -> Api:
        return await Api.connect(MANAGER, settings.trainingjobs_namespace, settings.trainingjobs_config)

    while True:
        try:
            api = await connect()
            break
        except KubeFault as fault:
            log.warning("TrainingJobs are not served yet", fault=str(fault))
            await asyncio.sleep(AGAIN_S)
    try:
        await TrainingJobs(gateway, audit, api, settings).run()
    finally:
        await api.close()


class TrainingJobs:
    """The objects of one namespace."""

    def __init__(
        self,
        gateway: Gateway,
        audit: Trail,
        api: Api,
        settings: GatewaySettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._gateway, self._audit, self._api = gateway, audit, api
        self._clock = clock
        self._period_s = settings.trainingjobs_s
        self._installation = settings.installation
        self._heard = asyncio.Event()
        self._objects = Reflector(api, TRAINING_JOBS, "", self._changed)
        self._election = Election(api, LEASE, f"gateway-{uuid.uuid4().hex[:12]}", settings.trainingjobs_lease_s)
        self._written_s: dict[str, float] = {}
        self._faults: dict[str, str] = {}

    async def run(self) -> NoReturn:
        """For ever."""
        beside = [
            asyncio.create_task(self._objects.run(), name="watch trainingjobs"),
            asyncio.create_task(self._election.run(), name="elect the writer of trainingjobs"),
        ]
        try:
            while True:
                self._heard.clear()
                for one in [*self._objects.store.objects.values()]:
                    if self._election.leads and self._gateway.ready:
                        await self._look(one)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._period_s):
                        await self._heard.wait()
        finally:
            for task in beside:
                await end(task)

    async def _look(self, one: Object) -> None:
        """One object; what goes wrong with it goes wrong with no other."""
        name = one["metadata"]["name"]
        try:
            await self._advance(one)
            self._faults.pop(name, None)
        except (KubeFault, Fault, Problem) as fault:
            if self._faults.get(name) != str(fault):
                log.warning("TrainingJob: will try again", job=name, fault=str(fault))
            self._faults[name] = str(fault)
        except Exception as error:  # one object must not stop all
            log.exception("TrainingJob: unforeseen; will try again", job=name, error=str(error))

    async def _advance(self, one: Object) -> None:
        name, refused = one["metadata"]["name"], None
        view = self._view(name)
        step = next_step(one, view, await self._pods(one))
        if step == "hold":
            await self._finalizers(one, [*(one["metadata"].get("finalizers") or []), FINALIZER])
            return
        if step == "release":
            await self._finalizers(one, [each for each in one["metadata"]["finalizers"] if each != FINALIZER])
            return
        if step == "submit":
            refused = await self._submit(one)
        elif step == "cancel":
            await self._asked(
                one, "cancel", lambda: self._gateway.cancel(name, "its object was deleted", actor_of(one))
            )
        if (job := refused or self._view(name)) is not None:  # else the stream has not told of it yet, or no longer
            await self._tell(one, job)

    async def _submit(self, one: Object) -> Refused | None:
        try:
            spec = spec_of(one)
        except WireError as error:
            return refusal_of(error)
        try:
            await self._asked(one, "submit", lambda: self._gateway.submit(spec, actor_of(one)))
        except Problem as problem:
            if problem.kind == "name-taken":
                return Refused("NameTaken", f"{problem.detail}; {problem.remedy}")
            if problem.status == 422:
                return Refused("InvalidSpec", f"{problem.detail}; {problem.remedy}")
            raise
        return None

    async def _asked(self, one: Object, action: str, change: Callable[[], Awaitable[object]]) -> None:
        """Do it, and tell the audit trail; the answer's status is as REST's would be."""
        status, problem = 202, ""
        try:
            await change()
        except Problem as raised:
            status, problem = raised.status, raised.kind
            raise
        finally:
            actor, job = actor_of(one), one["metadata"]["name"]
            if not self._repeated(one, problem):
                await self._audit.note(trail.Change(job, action, status, problem, actor, "submitter", ""))

    def _repeated(self, one: Object, problem: str) -> bool:
        """Whether the object says already that this was refused: it is asked again and again."""
        conditions = (one.get("status") or {}).get("conditions") or []
        return problem == "name-taken" and any(each.get("reason") == "NameTaken" for each in conditions)

    async def _tell(self, one: Object, job: JobView | Refused) -> None:
        name, now_s = one["metadata"]["name"], self._clock()
        status = status_of(one, job, now_s)
        if worth_writing(one.get("status") or {}, status, now_s - self._written_s.get(name, 0.0)):
            body: Object = {"metadata": {"name": name}, "status": status}
            self._objects.written(await self._api.apply(TRAINING_JOBS, body, "status", force=True))
            self._written_s[name] = now_s

    async def _finalizers(self, one: Object, wanted: list[str]) -> None:
        meta = {"resourceVersion": one["metadata"]["resourceVersion"], "finalizers": wanted}
        patched = await self._api.patch(TRAINING_JOBS, one["metadata"]["name"], {"metadata": meta})
        if FINALIZER in wanted:  # without, it is gone, which the watch tells
            self._objects.written(patched)

    async def _pods(self, one: Object) -> int:
        """Asked only where an answer is waited for."""
        if not one["metadata"].get("deletionTimestamp"):
            return 0
        ours = f"{INSTALLATION}={self._installation},{JOB}={one['metadata']['name']}"
        return len((await self._api.list(PODS, ours))[0])

    def _view(self, name: str) -> JobView | None:
        return self._gateway.shown(name) if name in self._gateway.projection.jobs else None

    def _changed(self, change: Change) -> None:
        if change.gone:
            for kept in (self._written_s, self._faults):
                kept.pop(change.object["metadata"]["name"], None)
        self._heard.set()

"""Jobs as Kubernetes objects: an applied object is submitted, a deleted one cancelled, and its status shows the job.

The parts of the gateway that serve REST do the work, so that REST shows the same job. Every replica follows the
objects; the holder of the Lease writes. Each next step follows from the object and the job alone, so that a replica
that takes over continues at any point.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Literal, NoReturn

import structlog
from stretto_bus.faults import Fault
from stretto_bus.tasks import end
from stretto_kube import PODS, Api, Election, KubeFault, Object, ObjectChange, Reflector
from stretto_wire import JobSpec, WireError
from stretto_wire.jobspec.kubernetes import INSTALLATION, JOB
from stretto_wire.rest.views import JobView

from ..access.audit_log import AuditLog, RequestedChange
from ..problems import Problem
from ..read_model.job_views import JobViews
from ..requests import checks
from ..requests.changes import Changes
from ..requests.submissions import Submissions
from ..settings import GatewaySettings
from .schema import TRAINING_JOBS
from .status import FINALIZER, RefusedTrainingJob, actor_of, next_step, refusal_of, spec_of, status_of, worth_writing

MANAGER = "stretto-gateway"
LEASE = "stretto-trainingjobs"
AGAIN_S = 2.0
RETRIED: dict[str, Literal["NameTaken", "QuotaUsed"]] = {
    "name-taken": "NameTaken",
    "quota-used": "QuotaUsed",
    "bytes-used": "QuotaUsed",
}
"""Reasons in an object's status by the kind of a refusal that may pass; the object is tried again."""

log = structlog.get_logger("stretto.gateway")


async def run(
    views: JobViews, submissions: Submissions, changes: Changes, audit: AuditLog, settings: GatewaySettings
) -> NoReturn:
    """Serve TrainingJobs for ever, also if the cluster cannot be reached yet or refuses the gateway at first."""

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
        await TrainingJobs(views, submissions, changes, audit, api, settings).run()
    finally:
        await api.close()


class TrainingJobs:
    """Reconciliation of the TrainingJobs of a namespace with their jobs."""

    def __init__(
        self,
        views: JobViews,
        submissions: Submissions,
        changes: Changes,
        audit: AuditLog,
        api: Api,
        settings: GatewaySettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._views, self._submissions, self._changes = views, submissions, changes
        self._audit, self._api = audit, api
        self._team = settings.trainingjobs_team
        self._clock = clock
        self._period_s = settings.trainingjobs_s
        self._installation = settings.installation
        self._woken = asyncio.Event()
        self._objects = Reflector(api, TRAINING_JOBS, "", self._changed)
        self._election = Election(api, LEASE, f"gateway-{uuid.uuid4().hex[:12]}", settings.trainingjobs_lease_s)
        self._written_s: dict[str, float] = {}
        self._faults: dict[str, str] = {}

    async def run(self) -> NoReturn:
        """Reconcile all objects for ever."""
        background = [
            asyncio.create_task(self._objects.run(), name="watch trainingjobs"),
            asyncio.create_task(self._election.run(), name="elect the writer of trainingjobs"),
        ]
        try:
            while True:
                self._woken.clear()
                for one in [*self._objects.store.objects.values()]:
                    if self._election.leads and self._views.ready:
                        await self._reconcile(one)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._period_s):
                        await self._woken.wait()
        finally:
            for task in background:
                await end(task)

    async def _reconcile(self, one: Object) -> None:
        """Reconcile an object; its errors do not affect others."""
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
        view = self._views.find(name)
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
            await self._audited(
                one, "cancel", lambda: self._changes.cancel(name, "its object was deleted", actor_of(one))
            )
        if (job := refused or self._views.find(name)) is not None:  # else it is not stored yet, or forgotten
            await self._write_status(one, job)

    async def _submit(self, one: Object) -> RefusedTrainingJob | None:
        try:
            spec = spec_of(one)
        except WireError as error:
            return refusal_of(error)
        try:
            await self._audited(one, "submit", lambda: self._submit_for(one, spec))
        except Problem as problem:
            if problem.kind in RETRIED:
                return RefusedTrainingJob(RETRIED[problem.kind], f"{problem.detail}; {problem.remedy}")
            if problem.status == 422:
                return RefusedTrainingJob("InvalidSpec", f"{problem.detail}; {problem.remedy}")
            raise
        return None

    async def _submit_for(self, one: Object, spec: JobSpec) -> None:
        """Submit the object's job. An equal job of somebody else is not adopted: deleting the object would cancel that
        job.

        Raises Problem: as ``Submissions.submit``; 409 if somebody else submitted the job.
        """
        created, _ = await self._submissions.submit(spec, actor_of(one), team=self._team)
        if not created and (view := self._views.view(spec.name)).submitted_by != actor_of(one):
            raise checks.name_taken(spec.name, view, f"that {view.submitted_by} submitted")

    async def _audited(self, one: Object, action: str, change: Callable[[], Awaitable[object]]) -> None:
        """Make a change, and store it in the audit log with the status that REST would answer."""
        status, problem = 202, ""
        try:
            await change()
        except Problem as raised:
            status, problem = raised.status, raised.kind
            raise
        finally:
            actor, job = actor_of(one), one["metadata"]["name"]
            if not self._repeated(one, problem):
                await self._audit.note(RequestedChange(job, action, status, problem, actor, "submitter", ""))

    def _repeated(self, one: Object, problem: str) -> bool:
        """Return whether the object's status tells this refusal already: the request is repeated all the time."""
        conditions = (one.get("status") or {}).get("conditions") or []
        return problem in RETRIED and any(each.get("reason") == RETRIED[problem] for each in conditions)

    async def _write_status(self, one: Object, job: JobView | RefusedTrainingJob) -> None:
        name, now_s = one["metadata"]["name"], self._clock()
        status = status_of(one, job, now_s)
        if worth_writing(one.get("status") or {}, status, now_s - self._written_s.get(name, 0.0)):
            body: Object = {"metadata": {"name": name}, "status": status}
            self._objects.written(await self._api.apply(TRAINING_JOBS, body, "status", force=True))
            self._written_s[name] = now_s

    async def _finalizers(self, one: Object, wanted: list[str]) -> None:
        meta = {"resourceVersion": one["metadata"]["resourceVersion"], "finalizers": wanted}
        patched = await self._api.patch(TRAINING_JOBS, one["metadata"]["name"], {"metadata": meta})
        if FINALIZER in wanted:  # without the finalizer the object is gone, which the watch reports
            self._objects.written(patched)

    async def _pods(self, one: Object) -> int:
        """Count the job's pods in the cluster, but only for a deleted object, which waits for them."""
        if not one["metadata"].get("deletionTimestamp"):
            return 0
        ours = f"{INSTALLATION}={self._installation},{JOB}={one['metadata']['name']}"
        return len((await self._api.list(PODS, ours))[0])

    def _changed(self, change: ObjectChange) -> None:
        if change.gone:
            for kept in (self._written_s, self._faults):
                kept.pop(change.object["metadata"]["name"], None)
        self._woken.set()

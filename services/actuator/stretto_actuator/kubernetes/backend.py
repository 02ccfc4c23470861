"""Pods as Kubernetes pods of one namespace.

What the cluster knows of them is followed by list and watch; every other memory is of this process alone and only
spares questions: a restarted actuator finds its pods by their labels. A pod has a Secret with its files, which goes
with it. Nothing here decides: ``kubernetes_manifest.py`` makes the manifests, pods are read in
``pod_status.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass

import structlog
from stretto_bus.tasks import end
from stretto_kube import PODS, SECRETS, STRATEGIC, Api, Kind, KubeFault, Object, ObjectChange, Reflector
from stretto_wire.jobspec.kubernetes import INSTALLATION, JOB, POD
from stretto_wire.surroundings import wall_s

from ..backend import BackendError, Following, NotInPlace, Places, PodSpec, PodStatus, Waiting
from ..settings import ActuatorSettings, networks_of
from . import pod_status
from .manifest import PLACES, Installation, manifest, owned_by, resized, sayable, secret, with_owner
from .policies import JobPolicies, guarded

CONFIG_MAPS = Kind("", "v1", "configmaps", "ConfigMap")
MANAGER = "stretto-actuator"
PLACE_AGAIN_S = 2.0
KILL_GRACE_S = 1
"""0 would delete the object before its node has ended the processes"""
RESIZE_S = 2.0
DEFERRED_S = 60.0

log = structlog.get_logger("stretto.actuator")


def backend_of(settings: ActuatorSettings) -> KubernetesBackend:
    """By the settings ``STRETTO_ACTUATOR_KUBERNETES…``."""
    installation = Installation(
        name=settings.installation,
        image=settings.pod_image,
        defaults=settings.kubernetes,
        checkpoints_claim=settings.kubernetes_checkpoints_claim,
        grace_s=settings.stop_grace_s,
        node_lost_s=settings.kubernetes_node_lost_s,
        metadata=networks_of(settings.metadata_addresses),
        dns_searches=tuple(each.strip() for each in settings.kubernetes_dns_searches.split(",") if each.strip()),
    )

    async def connect() -> Api:
        return await Api.connect(MANAGER, settings.kubernetes_namespace, settings.kubernetes_config)

    return KubernetesBackend(
        installation, connect, settings.kubernetes_owner, with_policies=settings.kubernetes_network_policies
    )


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A pod that the API server would not accept yet: it has no object."""

    spec: PodSpec
    since_s: float
    tried_s: float
    why: Waiting


class KubernetesBackend:
    """Pods of one namespace; see the module.

    ``owner``: a ConfigMap whose deletion takes the pods along. Larger than 250 lines: all calls of the backend act on
    the same view of pods.
    """

    def __init__(
        self,
        installation: Installation,
        connect: Callable[[], Awaitable[Api]],
        owner: str = "",
        clock: Callable[[], float] = wall_s,
        with_policies: bool = True,
    ) -> None:
        self._installation = installation
        self._connect = connect
        self._owner = owner
        self._clock = clock
        self._with_policies = with_policies
        self._policies: JobPolicies | None = None
        self._api: Api | None = None
        self._pods: Reflector | None = None
        self._following = Following(self._let_go)
        self._watching: asyncio.Task[None] | None = None
        self._adopted: set[str] = set()
        self._unplaced: dict[str, Unplaced] = {}
        self._asked: set[str] = set()
        """Names of pods whose end this backend has asked for."""
        self._gone: dict[str, PodStatus] = {}
        """Pods whose objects are gone, with the last status that was seen."""
        self._forgotten: dict[str, str] = {}
        """Job of each pod name that no pod may have again, kept while the job is followed or an object of the pod is
        left."""
        self._resizable = True

    # the protocol ----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        if self._watching is not None:
            return
        with _refusals("Kubernetes cannot be reached"):
            api = await self._connect()
            try:
                pods = Reflector(api, PODS, f"{self._installation.selector},{JOB},{POD}", self._changed)
                await pods.list()
                if self._owner:
                    self._installation = await self._owned(api)
                if self._with_policies:
                    self._policies = JobPolicies(api, self._installation)
                    jobs = {pod["metadata"]["labels"][JOB] for pod in pods.store.objects.values()}
                    await self._policies.clear(jobs, self._clock())
            except BaseException:
                await api.close()
                raise
        self._api = api
        self._pods = pods
        self._adopted = {pod["metadata"]["uid"] for pod in pods.store.objects.values()}
        self._watching = asyncio.create_task(pods.run(), name="watch pods")

    async def close(self) -> None:
        if self._watching is not None:
            await end(self._watching)
            self._watching = None
        if self._api is not None:
            await self._api.close()

    def places(self, job: str, pod: str) -> Places:
        return PLACES

    def follow(self, job: str, changed: Callable[[], None]) -> Callable[[], None]:
        return self._following.add(job, changed)

    async def list(self, job: str | None = None) -> Sequence[PodStatus]:
        for name, waiting in [*self._unplaced.items()]:
            if job == waiting.spec.job and self._clock() - waiting.tried_s >= PLACE_AGAIN_S:
                with contextlib.suppress(BackendError):  # it was taken as right before: the next launch will tell
                    await self._place(name, waiting.spec)
        found = [self._status(pod) for name, pod in self._objects().items() if name not in self._forgotten]
        found += self._gone.values()
        found += [_pending(waiting) for waiting in self._unplaced.values()]
        return [pod for pod in found if job in (None, pod.job)]

    async def launch(self, spec: PodSpec) -> None:
        name = self._name(spec.job, spec.pod)
        found = self._objects().get(name)
        waiting = self._status(found).waiting if found is not None else None
        if waiting is not None and waiting.held:
            with _refusals(f"the files of {spec.job}/{spec.pod} cannot be laid"):
                await self._reached().apply(SECRETS, secret(spec, self._installation), force=True)
        elif not any(name in known for known in (self._objects(), self._gone, self._forgotten)):
            await self._place(name, spec)

    async def stop(self, job: str, pod: str, grace_s: float) -> None:
        await self._delete(self._name(job, pod), max(math.ceil(grace_s), KILL_GRACE_S))

    async def kill(self, job: str, pod: str) -> None:
        await self._delete(self._name(job, pod), KILL_GRACE_S)

    async def resize(self, job: str, pod: str, cpu_cores: float, memory_bytes: int) -> tuple[float, int]:
        name = self._name(job, pod)
        found = self._objects().get(name)
        if found is None:
            raise BackendError(f"{job}/{pod} is not here; it cannot be resized")
        found = await self._resized(job, name, found, cpu_cores, memory_bytes)
        if pod_status.keeps_its_memory(found):
            _, memory_bytes = pod_status.in_force(found)
            found = await self._resized(job, name, found, cpu_cores, memory_bytes)
        state, since_s = pod_status.waits_to_grow(found)
        if state == "infeasible" or (state == "deferred" and self._clock() - since_s > DEFERRED_S):
            raise NotInPlace(f"{job}/{pod} finds no room to grow on its node: {state}")
        cpu_asked, _ = sayable(cpu_cores, memory_bytes)
        cpu_now, memory_now = pod_status.in_force(found)
        return (cpu_cores if cpu_now == cpu_asked else cpu_now), memory_now

    async def logs(self, job: str, pod: str, lines: int) -> str:
        with _refusals(f"the log of {job}/{pod} cannot be read"):
            return (await self._reached().logs(self._name(job, pod), lines)).rstrip()

    async def forget(self, job: str, pod: str) -> None:
        name = self._name(job, pod)
        found = self._objects().get(name)
        status = self._status(found) if found is not None else self._gone.get(name)
        if status is None or status.state != "exited":
            return
        with _refusals(f"{job}/{pod} cannot be cleared"):
            # no kubelet will tell the end of a pod on a lost node
            await self._reached().delete(PODS, name, 0 if status.reason == "node-lost" else None)
            await self._reached().delete(SECRETS, name)
        if job in self._following or name in self._objects():
            self._forgotten[name] = job
        self._gone.pop(name, None)
        self._asked.discard(name)
        await self._leave(job)

    # starting --------------------------------------------------------------------------------------------------

    async def _place(self, name: str, spec: PodSpec) -> None:
        pod = manifest(spec, self._installation)
        api = self._reached()
        now_s = self._clock()
        try:
            async with guarded(self._policies, spec.job, spec.egress):
                await api.apply(SECRETS, secret(spec, self._installation), force=True)
                made = await self._apply_once(name, pod)
                self._watched().written(made)
        except KubeFault as fault:
            why = pod_status.unplaced(fault)
            if why is None:
                with contextlib.suppress(KubeFault):  # it may be what was refused
                    await api.delete(SECRETS, name)
                await self._leave(spec.job)
                raise BackendError(f"{spec.job}/{spec.pod} is refused by Kubernetes: {fault}") from fault
            before = self._unplaced.get(name)
            if before is None or before.why.reason != why.reason:
                log.warning("no pod yet", job=spec.job, pod=spec.pod, reason=why.reason, detail=why.detail)
            since_s = before.since_s if before is not None else now_s
            self._unplaced[name] = Unplaced(spec, since_s, now_s, why)
            return
        self._unplaced.pop(name, None)
        with contextlib.suppress(KubeFault):  # forgetting the pod removes it, too
            await api.patch(SECRETS, name, {"metadata": {"ownerReferences": owned_by(made)}})

    async def _leave(self, job: str) -> None:
        """Remove the policy of a job without pods; one that stays after all is removed at the next start."""
        if self._policies is None:
            return

        def unused() -> bool:
            there = (pod["metadata"] for pod in self._objects().values())
            used = any(each["labels"][JOB] == job and each["name"] not in self._forgotten for each in there)
            return not used and all(waiting.spec.job != job for waiting in self._unplaced.values())

        try:
            await self._policies.leave(job, unused)
        except KubeFault as fault:
            log.warning("a NetworkPolicy without pods stays", job=job, error=str(fault))

    async def _apply_once(self, name: str, pod: Object) -> Object:
        """The pod of this name, which another replica may have made already: a pod is never changed."""
        try:
            return await self._reached().apply(PODS, pod)
        except KubeFault as fault:
            if fault.status not in (409, 422):
                raise
            there = await self._reached().get(PODS, name)
            if there is None or there["metadata"]["labels"].get(INSTALLATION) != self._installation.name:
                raise
            return there

    async def _owned(self, api: Api) -> Installation:
        owner = await api.get(CONFIG_MAPS, self._owner)
        if owner is None:
            raise BackendError(
                f"STRETTO_ACTUATOR_KUBERNETES_OWNER={self._owner}: no such ConfigMap in namespace {api.namespace}; "
                "name one that is deleted with the installation, or leave the variable out"
            )
        return with_owner(self._installation, CONFIG_MAPS.api_version, CONFIG_MAPS.name, owner)

    # changing --------------------------------------------------------------------------------------------------

    async def _delete(self, name: str, grace_s: int) -> None:
        """Ask a pod to end; repeatable, since the API server counts down the shortest grace that it was given."""
        if name in self._unplaced:
            with _refusals(f"{name} cannot be cleared"):  # its Secret belongs to no pod that would take it along
                await self._reached().delete(SECRETS, name)
            await self._leave(self._unplaced.pop(name).spec.job)
        found = self._objects().get(name)
        status = self._status(found) if found is not None else None
        if found is None or status is None or status.state == "exited":
            return
        if status.waiting is not None and status.waiting.reason != "starting":
            grace_s = 0  # it has no process; a kubelet may let go of it only after a minute
        grace_now_s = found["metadata"].get("deletionGracePeriodSeconds")
        if grace_now_s is not None and grace_now_s <= grace_s:
            return
        self._asked.add(name)
        with _refusals(f"{name} cannot be stopped"):
            await self._reached().delete(PODS, name, grace_s)

    async def _resized(self, job: str, name: str, found: Object, cpu_cores: float, memory_bytes: int) -> Object:
        """The pod once it has these limits, or its node has said why not; or as it is, after a while."""
        asked = sayable(cpu_cores, memory_bytes)
        if pod_status.wanted(found) != asked:
            await self._resize(name, resized(cpu_cores, memory_bytes))

        def settled(pod: Object) -> bool:
            decided = pod_status.in_force(pod) == asked or pod_status.waits_to_grow(pod)[0] != ""
            return decided or pod_status.keeps_its_memory(pod)

        return await self._until(job, name, settled)

    async def _resize(self, name: str, patch: Object) -> None:
        if not self._resizable:
            raise NotInPlace(f"{name}: this cluster cannot resize a running pod")
        try:
            found = await self._reached().patch(PODS, name, patch, STRATEGIC, "resize")
        except KubeFault as fault:
            if fault.status in (404, 405) and name in self._objects():
                self._resizable = False
                raise NotInPlace(f"{name}: this cluster cannot resize a running pod") from fault
            if not fault.passing and fault.status != 409:  # more than a node or the namespace has, or less than allowed
                raise NotInPlace(f"{name} cannot be resized where it is: {fault}") from fault
            raise BackendError(f"{name} cannot be resized: {fault}") from fault
        self._watched().written(found)

    async def _until(self, job: str, name: str, enough: Callable[[Object], bool]) -> Object:
        """The pod as it is after a resize; not waited for long: the next look will tell."""
        changed = asyncio.Event()
        leave = self._following.add(job, changed.set)
        try:
            async with asyncio.timeout(RESIZE_S):
                while (pod := self._objects().get(name)) is not None and not enough(pod):
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            pod = self._objects().get(name)
        finally:
            leave()
        if pod is None:
            raise BackendError(f"{name} is gone; it cannot be resized")
        return pod

    # what is there ---------------------------------------------------------------------------------------------

    def _changed(self, change: ObjectChange) -> None:
        meta = change.object["metadata"]
        name = meta["name"]
        job = meta["labels"][JOB]
        if change.gone:
            if name not in self._forgotten:
                adopted = meta["uid"] in self._adopted
                self._gone[name] = pod_status.vanished(change.object, name in self._asked, adopted)
            elif job not in self._following:
                del self._forgotten[name]
            self._adopted.discard(meta["uid"])
        self._following.notify(job)

    def _let_go(self, job: str) -> None:
        """Forget a job whose pods are not started here any more: it has ended or has another owner."""
        self._forgotten = {name: of for name, of in self._forgotten.items() if of != job or name in self._objects()}
        if self._policies is not None:
            self._policies.forget(job)

    def _status(self, pod: Object) -> PodStatus:
        meta = pod["metadata"]
        return pod_status.status_of(pod, meta["uid"] in self._adopted, meta["name"] in self._asked)

    def _objects(self) -> dict[str, Object]:
        return self._watched().store.objects

    def _name(self, job: str, pod: str) -> str:
        return self._installation.name_of(job, pod)

    def _reached(self) -> Api:
        if self._api is None:
            raise BackendError("Kubernetes was not reached yet: open comes first")
        return self._api

    def _watched(self) -> Reflector:
        if self._pods is None:
            raise BackendError("Kubernetes was not reached yet: open comes first")
        return self._pods


@contextlib.contextmanager
def _refusals(what: str) -> Generator[None]:
    try:
        yield
    except KubeFault as fault:
        raise BackendError(f"{what}: {fault}") from fault


def _pending(waiting: Unplaced) -> PodStatus:
    spec = waiting.spec
    return PodStatus(
        job=spec.job,
        pod=spec.pod,
        state="pending",
        cpu_cores=spec.cpu_cores,
        memory_bytes=spec.memory_bytes,
        waiting=waiting.why,
        launched_at_s=waiting.since_s,
    )

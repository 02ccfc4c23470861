"""The start of pods: launch them, report why they wait, and greet them until they are ready."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence

import structlog
from stretto_bus import CallRefused, CallTimeout
from stretto_core.actuator.observations import PodGivenUp
from stretto_core.actuator.state import ActuatorState, Pod
from stretto_messages.actuator import PodExited, PodPending, PodStarted
from stretto_messages.base import bounded
from stretto_messages.pods import PodPing

from ..backend import Backend, BackendError, ExitReason, NoRoom, NotInPlace, PodSpec, PodStatus, Waiting
from ..pod.spec import pod_spec
from ..settings import ActuatorSettings
from .edge import Edge

PING_S = 1.0
CANNOT_START = 126
"""Exit code of a command that cannot be run, as a shell reports it."""

log = structlog.get_logger("stretto.actuator")


def exited(
    job: str, pod: Pod, reason: ExitReason, exit_code: int | None, detail: str = "", used_up: str = ""
) -> PodExited:
    """Observe the end of a pod."""
    return PodExited(
        job=job, pod=pod.name, role=pod.role, reason=reason, exit_code=exit_code, detail=detail, used_up=used_up
    )


class Starter:
    """One job's pods that start."""

    def __init__(self, job: str, edge: Edge, backend: Backend, settings: ActuatorSettings) -> None:
        self._job = job
        self._edge = edge
        self._backend = backend
        self._settings = settings
        self._begun_at_s: dict[str, float] = {}
        """When each pod was launched, or first seen here, or last found waiting for anything but its own start.

        By the server's clock: that of the backend may be another, and a pod must not be killed for the difference.
        """
        self._laid_at_s: dict[str, float] = {}
        """When pods got their files from here."""

    async def launch(self, pods: Sequence[Pod], state: ActuatorState) -> bool:
        """Launch pods; return True if any was launched, or cannot be."""
        return any(await asyncio.gather(*(self._launch(pod, state) for pod in pods)))

    async def _launch(self, pod: Pod, state: ActuatorState) -> bool:
        try:
            await self._backend.launch(self._spec(pod, state))
        except NoRoom as error:  # the next look asks again
            await self._wait(pod, Waiting("no-room", str(error)), state)
            return False
        except BackendError as error:
            await self._edge.observe(self._job, exited(self._job, pod, "failed", CANNOT_START, bounded(str(error))))
        else:
            self._begun_at_s[pod.name] = self._laid_at_s[pod.name] = self._edge.server_now()
        return True

    async def _renew_files(self, pod: Pod, state: ActuatorState) -> None:
        """Renew the files of a pod that is held back, before the credentials in them expire.

        Files that another owner has laid may be of any age: they are renewed at once.
        """
        now = self._edge.server_now()
        if now - self._laid_at_s.get(pod.name, -math.inf) <= self._settings.credentials_s / 2:
            return
        try:
            await self._backend.launch(self._spec(pod, state))
        except BackendError as error:  # the pod is unharmed, and half of the time is left
            log.warning(
                "its files are not laid anew yet; will try again", job=self._job, pod=pod.name, error=str(error)
            )
        else:
            self._laid_at_s[pod.name] = now

    def _spec(self, pod: Pod, state: ActuatorState) -> PodSpec:
        """Describe the pod, with credentials that hold from now on."""
        places = self._backend.places(self._job, pod.name)
        identity = self._edge.identity(self._job, pod.name)
        return pod_spec(pod, state, self._settings, places, self._edge.trace_of(self._job), identity)

    async def greet(self, pods: Mapping[str, PodStatus], state: ActuatorState) -> bool:
        """Ask starting pods if they are ready, and report why others wait; return True if any will be ready soon."""
        starting = [
            (pod, pods[pod.name]) for pod in state.pods.values() if pod.phase == "starting" and pod.name in pods
        ]
        await asyncio.gather(
            *(
                self._wait(pod, status.waiting, state) if status.state == "pending" else self._greet(pod, status)
                for pod, status in starting
            )
        )
        return any(status.state == "running" for _, status in starting)

    async def _wait(self, pod: Pod, waiting: Waiting | None, state: ActuatorState) -> None:
        """Report a pod that waits. Its time to start does not run meanwhile."""
        now = self._edge.server_now()
        if waiting is None or waiting.reason == "starting":
            begun_s = now - self._begun_at_s.setdefault(pod.name, now)
            if begun_s > self._settings.start_timeout_s:
                why = waiting.detail if waiting is not None else ""  # such as a Secret that is not there
                log.warning("does not begin; replaced", job=self._job, pod=pod.name, after_s=begun_s, detail=why)
                await self._backend.kill(self._job, pod.name)
            return
        self._begun_at_s[pod.name] = now
        detail = bounded(waiting.detail)
        waited_s = now - pod.waiting_since_s
        if pod.waiting != waiting.reason:
            log.info("waits", job=self._job, pod=pod.name, reason=waiting.reason, detail=detail)
            pending = PodPending(
                job=self._job,
                pod=pod.name,
                role=pod.role,
                reason=waiting.reason,
                detail=detail,
                device=pod.device,
                stage=pod.stage,
            )
            await self._edge.observe(self._job, pending)
        elif waiting.held:
            await self._renew_files(pod, state)
        elif waiting.reason == "image-pull" and waited_s > self._settings.image_timeout_s:
            await self._edge.observe(self._job, exited(self._job, pod, "image-pull", None, detail))
        elif waiting.reason != "image-pull" and waited_s > self._settings.room_timeout_s:
            await self._edge.observe(self._job, PodGivenUp(job=self._job, pod=pod.name))

    async def _greet(self, pod: Pod, status: PodStatus) -> None:
        now = self._edge.server_now()
        took_s = max(now - self._begun_at_s.setdefault(pod.name, now), 0.0)
        try:
            reply = await self._edge.call_pod(pod.name, PodPing(job=self._job), PING_S)
        except (CallTimeout, CallRefused):
            reply = None
        if reply is not None and reply.ready:
            # importing its code was allowed to take more; from here on its own limits hold
            try:
                limits = await self._backend.resize(self._job, pod.name, pod.cpu_cores, pod.memory_bytes)
            except NotInPlace:
                limits = status.cpu_cores, status.memory_bytes
            cpu_cores, memory_bytes = limits
            await self._edge.observe(
                self._job,
                PodStarted(
                    job=self._job,
                    pod=pod.name,
                    role=pod.role,
                    plan_version=pod.plan_version,
                    address=reply.address,
                    cpu_cores=cpu_cores,
                    memory_bytes=memory_bytes,
                    took_s=took_s,
                    cause="adopted" if status.adopted else pod.cause,
                    limits=status.limits,
                    device=pod.device,
                    stage=pod.stage,
                ),
            )
        elif took_s > self._settings.start_timeout_s:
            log.warning("not ready in time; replaced", job=self._job, pod=pod.name, after_s=took_s)
            await self._backend.kill(self._job, pod.name)

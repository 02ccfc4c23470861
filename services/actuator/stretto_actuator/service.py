"""The actuator as a service: one reconciler in the background for every job that this replica owns."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

import stretto_wire as wire
import structlog
from stretto_core.actuation import ActuatorMachine, ActuatorState
from stretto_runtime import CallRefused, CallTimeout, Input, Meta, Service

from . import handlers
from .backend import Backend
from .local import LocalBackend
from .observations import OBSERVATIONS
from .reconcile import Reconciler
from .settings import ActuatorSettings

log = structlog.get_logger("stretto.actuator")


class Actuator(Service):
    """See the README."""

    name = "actuator"
    version = ActuatorMachine.version
    settings_type = ActuatorSettings
    inputs = (
        Input(wire.JobSubmitted),
        Input(wire.JobCancelled),
        Input(wire.PlanDecided),
        Input(wire.HotPsDetected),
        Input(wire.JobCompleted),
        Input(wire.CheckpointRestored),
        Input(wire.CheckpointFlushed),
        Input(wire.CheckpointFailed),
    )
    rpcs = (wire.GetServers,)
    observations = OBSERVATIONS
    state_types: ClassVar[dict[str, type]] = {"job": ActuatorState}

    def __init__(self, settings: ActuatorSettings, backend: Backend | None = None) -> None:
        super().__init__(settings)
        self._backend = backend or LocalBackend(settings.state_folder, cgroups=settings.cgroups)
        self._reconcilers: dict[str, tuple[Reconciler, asyncio.Task[None]]] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def machine(self, key: str, state: Any) -> ActuatorMachine:
        return ActuatorMachine(state)

    def to_event(self, message: Any, meta: Meta) -> Any:
        return handlers.to_event(message)

    def to_message(self, key: str, fact: Any) -> Any:
        return handlers.to_message(key, fact)

    def partition_changed(self) -> None:
        super().partition_changed()
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="sweep")

    async def _sweep(self) -> None:
        """Pods of jobs that nobody knows any more: the state was lost, or is of another installation."""
        while True:
            await asyncio.sleep(self.settings.sweep_s)
            jobs = {pod.job for pod in await self._backend.list()} - self._reconcilers.keys()
            for job in sorted(jobs):
                with contextlib.suppress(CallTimeout, CallRefused):
                    await self._end_if_unknown(job)

    async def _end_if_unknown(self, job: str) -> None:
        """Its owner, whichever replica that is, has the last word."""
        reply = await self.call(wire.GetServers(job=job, request_id=f"sweep-{job}.1", pod="worker-0"), 5.0)
        if reply.answer != "unknown":
            return
        for pod in await self._backend.list(job):
            if pod.state == "running":
                log.warning("ending a pod of an unknown job", job=job, pod=pod.pod)
                await self._backend.stop(job, pod.pod, self.settings.stop_grace_s)
            else:
                await self._backend.forget(job, pod.pod)

    async def settled(self, key: str, machine: ActuatorMachine) -> None:
        held = self._reconcilers.get(key)
        if held is not None and not held[1].done():
            held[0].follow(machine.state)
            return
        reconciler = Reconciler(key, machine.state, self, self._backend, self.settings)
        self._reconcilers[key] = reconciler, asyncio.create_task(reconciler.run(), name=f"reconcile {key}")

    async def left(self, key: str) -> None:
        _, task = self._reconcilers.pop(key, (None, None))
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

"""The actuator as a service: one reconciler in the background for every job that this replica owns."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

import stretto_wire as wire
from stretto_core.actuation import ActuatorMachine, ActuatorState
from stretto_runtime import Input, Meta, Service

from . import handlers
from .backend import Backend
from .local import LocalBackend
from .observations import OBSERVATIONS
from .reconcile import Reconciler
from .settings import ActuatorSettings


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

    def machine(self, key: str, state: Any) -> ActuatorMachine:
        return ActuatorMachine(state)

    def to_event(self, message: Any, meta: Meta) -> Any:
        return handlers.to_event(message)

    def to_message(self, key: str, fact: Any) -> Any:
        return handlers.to_message(key, fact)

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

"""The checkpoints service: a taker in the background for every job that this replica owns."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from stretto_bus.tasks import end
from stretto_core.checkpoints.facts import CheckpointState
from stretto_core.checkpoints.machine import CheckpointMachine
from stretto_runtime import Meta, Service

from . import handlers
from .observations import OBSERVATIONS
from .settings import CheckpointsSettings
from .taking import Taker


class Checkpoints(Service):
    """See the README."""

    name = "checkpoints"
    version = CheckpointMachine.version
    settings_type = CheckpointsSettings
    observations = OBSERVATIONS
    tick_s = 1.0
    state_types: ClassVar[dict[str, type]] = {"job": CheckpointState}

    def __init__(self, settings: CheckpointsSettings) -> None:
        super().__init__(settings)
        self._takers: dict[str, tuple[Taker, asyncio.Task[None]]] = {}

    def machine(self, key: str, state: Any) -> CheckpointMachine:
        return CheckpointMachine(state)

    def to_event(self, message: Any, meta: Meta) -> Any:
        return handlers.to_event(message, self.settings.store)

    def to_message(self, key: str, fact: Any) -> Any:
        return handlers.to_message(key, fact)

    def deciding(self) -> dict[str, Any]:
        return {"store_url": self.settings.store}  # the others are the taker's

    async def reconcile(self, key: str, machine: CheckpointMachine) -> None:
        held = self._takers.get(key)
        if held is None or held[1].done():
            taker = Taker(key, machine.state, self, self.settings)
            self._takers[key] = taker, asyncio.create_task(taker.run(), name=f"checkpoints {key}")
        else:
            held[0].follow(machine.state)

    async def released(self, key: str) -> None:
        _, task = self._takers.pop(key, (None, None))
        if task is not None:
            await end(task)

    async def stopped(self) -> None:
        # nobody is there to free it later; the store has what is complete
        await asyncio.to_thread(self.settings.memory.free_all)

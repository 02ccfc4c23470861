"""The checkpoints service: a taker in the background for every job that this replica owns."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from stretto_bus.tasks import end
from stretto_core.checkpoints.machine import CheckpointMachine
from stretto_core.checkpoints.observations import OBSERVATIONS
from stretto_core.checkpoints.state import CheckpointState, JobOpened
from stretto_messages.base import Message
from stretto_runtime import Json, Meta, Service
from stretto_runtime.process.store_check import StoreCheck
from stretto_wire.contract.submission import JobSubmitted

from .settings import CheckpointsSettings
from .stores import spelt
from .taker import Taker


class Checkpoints(Service[CheckpointsSettings, CheckpointState, CheckpointMachine]):
    """Flash checkpoints of every job, and the way back to one; see the README."""

    name = "checkpoints"
    version = CheckpointMachine.version
    settings_type = CheckpointsSettings
    observations = OBSERVATIONS
    tick_s = 1.0
    state_types: ClassVar[dict[str, type]] = {"job": CheckpointState}

    def __init__(self, settings: CheckpointsSettings) -> None:
        super().__init__(settings)
        self._takers: dict[str, tuple[Taker, asyncio.Task[None]]] = {}
        self._store = StoreCheck(settings.store)

    @property
    def lacks(self) -> str:
        return self._store.lacks

    async def opened(self) -> None:
        self._store.start()

    async def closed(self) -> None:
        await self._store.stop()

    def machine(self, key: str, state: CheckpointState | None) -> CheckpointMachine:
        return CheckpointMachine(state)

    def to_event(self, message: Message, meta: Meta) -> Message | JobOpened:
        if not isinstance(message, JobSubmitted):
            return message
        policy = message.spec.checkpoint
        return JobOpened(
            job=message.job,
            folder=self.settings.stores.folder_of(message.job, policy.url),
            every_s=policy.every_s,
            keep=policy.keep,
            restore_from=spelt(policy.restore_from) if policy.restore_from is not None else None,
            final=policy.every_s is not None or policy.url is not None,
        )

    def deciding(self) -> Json:
        return {"store_url": self.settings.store}  # the others are the taker's

    async def reconcile(self, key: str, machine: CheckpointMachine) -> None:
        held = self._takers.get(key)
        if held is None or held[1].done():
            taker = Taker(key, machine.state, self, self.settings)
            task = asyncio.create_task(taker.run(), name=f"checkpoints {key}")
            self._takers[key] = taker, task
            task.add_done_callback(lambda done: self._drop(key, done))
        else:
            held[0].follow(machine.state)

    def _drop(self, key: str, task: asyncio.Task[None]) -> None:
        """Let go of a taker that has nothing left to do: a finished job would keep it for ever."""
        if self._takers.get(key, (None, None))[1] is task:
            del self._takers[key]

    async def released(self, key: str) -> None:
        _, task = self._takers.pop(key, (None, None))
        if task is not None:
            await end(task)

    async def stopped(self) -> None:
        # no replica is left to free it later; the store has all complete checkpoints
        await asyncio.to_thread(self.settings.memory.free_all)

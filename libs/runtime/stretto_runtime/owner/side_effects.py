"""Side effects of one partition: the service makes what runs follow its machines' states."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog
from stretto_bus.tasks import end

from stretto_runtime.owner.machines import Machines
from stretto_runtime.process.faults import PartitionLost
from stretto_runtime.service import Service

AGAIN_S = 1.0

log = structlog.get_logger("stretto.side_effects")


class SideEffects:
    """Calls ``reconcile`` for every changed key, one after the other, while the partition is live."""

    def __init__(self, service: Service, machines: Machines) -> None:
        self._service = service
        self._machines = machines
        self._changed: set[str] = set()
        self._due = asyncio.Event()
        self._reconciled: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to reconcile."""
        self._task = asyncio.create_task(self._run())

    def changed(self, keys: Iterable[str]) -> None:
        """Note that the machines of ``keys`` have changed, or are other objects now."""
        if self._service.has_side_effects:
            self._changed.update(keys)
            self._due.set()

    async def stop(self) -> None:
        """Stop at once, and release every key that was reconciled."""
        task, self._task = self._task, None
        if task is not None:
            await end(task)
        await self.release(self._reconciled.copy())

    async def release(self, keys: Iterable[str]) -> None:
        """Release those of ``keys`` that were reconciled: they are forgotten, or the ownership has ended."""
        for key in sorted(self._reconciled.intersection(keys)):
            self._reconciled.discard(key)
            try:
                await self._service.released(key)
            except Exception as error:
                log.exception("released failed", key=key, error=str(error))

    async def _run(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            while self._changed:
                await self._reconcile(self._changed.pop())

    async def _reconcile(self, key: str) -> None:
        slot = self._machines.find(key)
        if slot is None:
            return
        self._reconciled.add(key)
        try:
            with structlog.contextvars.bound_contextvars(job=key, trace_id=slot.trace[3:35]):
                await self._service.reconcile(key, slot.machine)
        except PartitionLost:
            log.info("side effect stopped: partition lost", key=key)
        except Exception as error:
            log.exception("reconcile failed; it is called again", key=key, error=str(error))
            asyncio.get_running_loop().call_later(AGAIN_S, self.changed, {key})

"""The edge of one job outlives what nobody foresaw."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto_actuator.reconcile import Reconciler
from stretto_actuator.settings import ActuatorSettings
from stretto_core.actuation import ActuatorState


class Backend:
    """Fails in a way that no list of exceptions names, then works."""

    def __init__(self) -> None:
        self.looks = 0

    def follow(self, job: str, changed: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    async def list(self, job: str | None = None) -> list[Any]:
        self.looks += 1
        if self.looks < 3:
            raise ZeroDivisionError("of a kernel that we never saw")
        return []


class Edge:
    def now(self) -> float:
        return 1.0


async def test_unforeseen_error_is_tried_again(tmp_path: Path) -> None:
    backend: Any = Backend()
    state = ActuatorState(job="j", phase="cancelled")
    edge: Any = Edge()
    task = asyncio.create_task(Reconciler("j", state, edge, backend, ActuatorSettings(state_folder=tmp_path)).run())
    await asyncio.wait_for(task, 5)
    assert backend.looks == 3


async def test_cancelling_ends_it_at_once(tmp_path: Path) -> None:
    backend: Any = Backend()
    edge: Any = Edge()
    settings = ActuatorSettings(state_folder=tmp_path)
    task = asyncio.create_task(Reconciler("j", ActuatorState(job="j"), edge, backend, settings).run())
    await asyncio.sleep(0.05)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.wait_for(task, 1)
    assert task.cancelled()

"""Waits for pods that are processes of this machine."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from stretto_actuator.backend import PodStatus
from stretto_actuator.local.backend import LocalBackend

from tests.waits import until

LIMIT_S = 60.0


async def ended(backend: LocalBackend, limit_s: float = LIMIT_S) -> list[PodStatus]:
    deadline = time.monotonic() + limit_s
    while True:
        pods = await backend.list()
        if all(pod.state == "exited" for pod in pods):
            return pods
        assert time.monotonic() < deadline, pods
        await asyncio.sleep(0.02)


async def running_pid(folder: Path, pod: str) -> int:
    file = folder / "pods/j" / pod / "pid"
    await until(file.exists)
    return int(file.read_text())

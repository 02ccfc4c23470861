"""Pods of the local backend that a test or a benchmark has started."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stretto_actuator.local.backend import LocalBackend


async def end_pods(folder: Path) -> None:
    """Kill and forget every pod in ``folder``, and those that an actuator was just about to start."""
    backend = LocalBackend(folder)
    while pods := await backend.list():
        for pod in pods:
            await backend.kill(pod.job, pod.pod)
            await backend.forget(pod.job, pod.pod)
        await asyncio.sleep(0.02)

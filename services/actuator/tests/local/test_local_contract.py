"""The contract with processes of this machine."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest
from backend_contract import DONE, JOB, MIB, BackendContract, exited, spec
from stretto_actuator.backend import Backend, PodSpec
from stretto_actuator.local.backend import LocalBackend
from stretto_wire import EVENTS_KEPT_S

PERIOD_US = 100_000


class Processes:
    """Two installations are two state folders."""

    python = sys.executable
    image = ""
    memory_bytes = 256 * MIB
    resizes = True
    absent: ClassVar = {
        "test_a_pod_without_room_is_pending_and_says_why": "a process is never refused for want of room: it starts"
    }

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.backend = LocalBackend(folder / "one")
        self._others: list[LocalBackend] = []
        self._aged_s = 0.0

    async def restart(self) -> None:
        await self.backend.close()
        self.backend = LocalBackend(self._folder / "one")
        await self.backend.open()

    async def break_watch(self) -> None:
        await self.backend.close()
        await self.backend.list()  # the next look watches again; a pod that ends before it is found, not notified

    async def age(self) -> None:
        self._aged_s += EVENTS_KEPT_S + 1
        self.backend._clock = lambda: time.time() + self._aged_s

    async def other(self) -> Backend:
        self._others.append(LocalBackend(self._folder / "two"))
        return self._others[-1]

    async def slay(self, job: str, pod: str) -> None:
        os.kill(int((self._folder / "one/pods" / job / pod / "pid").read_text()), signal.SIGKILL)

    def too_large(self) -> PodSpec:
        raise NotImplementedError

    async def enforced(self, job: str, pod: str) -> tuple[float, int]:
        return self._enforced(job, pod)

    def _enforced(self, job: str, pod: str) -> tuple[float, int]:
        record = self.backend._records.read(job, pod)
        assert record is not None
        if not {"cpu", "memory"} <= set(record.group.folders):
            pytest.skip("no writable control groups: weaker limits are tested in test_local")
        (cpu, version), (memory, _) = record.group.folders["cpu"], record.group.folders["memory"]
        quota_us = Path(cpu, "cpu.max" if version == 2 else "cpu.cfs_quota_us").read_text().split()[0]
        limit = Path(memory, "memory.max" if version == 2 else "memory.limit_in_bytes").read_text()
        return int(quota_us) / PERIOD_US, int(limit)

    async def end(self) -> None:
        for backend in (self.backend, *self._others):
            while pods := await backend.list():
                for pod in pods:
                    await backend.kill(pod.job, pod.pod)
                    await backend.forget(pod.job, pod.pod)
            await backend.close()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Processes]:
    made = Processes(tmp_path)
    yield made
    await made.end()


class TestLocal(BackendContract):
    """The contract, with ``local.py``."""

    async def test_a_name_stays_spent_for_as_long_as_its_job_goes_on(self, place: Processes) -> None:
        asked, leave = spec(place, script=DONE), place.backend.follow(JOB, lambda: None)
        await place.backend.launch(asked)
        await exited(place)
        await place.backend.forget(JOB, "worker-0")
        await place.age()
        await place.backend.launch(asked)
        assert await place.backend.list(JOB) == []
        leave()
        await place.age()
        await place.backend.launch(asked)
        assert len(await place.backend.list(JOB)) == 1

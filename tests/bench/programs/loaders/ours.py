"""Stretto's own row: a job of the same workers in an installation as ``stretto up`` makes one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from stretto_client import Refused, connect
from stretto_installation.errors import NotRunning
from stretto_installation.one_machine.detached import start_detached, take_down
from stretto_installation.one_machine.programs import StartOptions

from tests.bench.places import ROOT
from tests.bench.programs.loaders.fleets import POLL_S, Fleet
from tests.bench.programs.loaders.schedule import BATCH, SAMPLES, SHARD_BATCHES, WORKERS

LOOK_S = 0.2
"""Seconds between two looks at whether the job is over."""
CORES, MEMORY_BYTES, WORKER_BYTES = 8.0, 16 * 2**30, 2**29
PROGRAM = Path(__file__).with_name("program")


@contextlib.contextmanager
def installation(folder: Path, journals: Path) -> Iterator[None]:
    """Run an installation whose pods may write journals."""
    settings = {"STRETTO_ACTUATOR_LOCAL_WRITABLE": str(journals)}
    start_detached(StartOptions(folder, CORES, MEMORY_BYTES, settings=settings), tied=True)
    try:
        yield
    finally:
        with contextlib.suppress(NotRunning):
            take_down(folder)


class Stretto(Fleet):
    """A job of level 1 with two workers, or of level 2 with the one that it may have."""

    def __init__(self, installed: Path, folder: Path, level: int) -> None:
        super().__init__(folder)
        self.pods, self.look_at = installed / "pods" / folder.name, 0.0
        self.client = connect(folder=installed)
        workers = WORKERS if level == 1 else 1
        command = ["python", "train.py", str(ROOT), str(folder), str(level)]
        size = {"worker_cpu_cores": 1, "worker_memory_bytes": WORKER_BYTES, "ps_cpu_cores": 0.001}
        plan = {"workers": workers, "ps": 1, "ps_memory_bytes": 2**20, **size}
        count = {"count": {"min": 1, "max": 3}} if level == 1 else {"count": {"min": 1, "max": 1}}
        self.job = self.client.submit(
            {
                "name": folder.name,
                "program": {"command": command, "path": str(PROGRAM), "level": level},
                "dataset": {"samples": SAMPLES, "batch_size": BATCH, "batches_per_shard": SHARD_BATCHES},
                "resources": {"fixed": True, "initial": plan, "workers": count},
            }
        )

    def turn(self) -> bool:
        time.sleep(POLL_S)
        if time.monotonic() < self.look_at:
            return True
        self.look_at = time.monotonic() + LOOK_S
        return self.client.job(self.folder.name).view.status not in ("finished", "failed", "cancelled")

    def kill(self, chance: float, delay_s: float) -> None:
        time.sleep(delay_s)
        running = [pid for pid in self._pids() if _lives(pid)]
        os.kill(running[int(chance * len(running))], signal.SIGKILL)

    def _pids(self) -> list[int]:
        return [int(each.read_text()) for each in sorted(self.pods.glob("worker-*/pid"))]

    def resize(self, workers: int) -> None:
        try:
            self.job.scale(workers=workers)
        except Refused as error:
            self.refused = str(error)

    def close(self) -> None:
        self.client.__exit__()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

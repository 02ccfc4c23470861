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
from tests.bench.programs.loaders.fleets import LIMIT_S, POLL_S, Fleet, check
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
    """A job of two workers, or of level 2 with the one that it may have unless they are ranks of one program."""

    def __init__(self, installed: Path, folder: Path, level: int, *, are_ranks: bool = False) -> None:
        super().__init__(folder)
        self.pods, self.look_at = installed / "pods" / folder.name, 0.0
        self.client = connect(folder=installed)
        workers, most = (WORKERS, 3) if level == 1 or are_ranks else (1, 1)
        command = ["python", "train.py", str(ROOT), str(folder), str(level)]
        program = {"command": command, "path": str(PROGRAM), "level": level}
        program |= {"resize": "restart"} if are_ranks else {}
        size = {"worker_cpu_cores": 1, "worker_memory_bytes": WORKER_BYTES, "ps_cpu_cores": 0.001}
        plan = {"workers": workers, "ps": 1, "ps_memory_bytes": 2**20, **size}
        self.job = self.client.submit(
            {
                "name": folder.name,
                "program": program,
                "dataset": {"samples": SAMPLES, "batch_size": BATCH, "batches_per_shard": SHARD_BATCHES},
                "resources": {"fixed": True, "initial": plan, "workers": {"count": {"min": 1, "max": most}}},
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
        until = time.monotonic() + LIMIT_S
        while not (running := self._running()):  # all were killed just now, and others begin
            if not self.turn():
                return
            check(until)
        os.kill(running[int(chance * len(running))], signal.SIGKILL)

    def _running(self) -> list[int]:
        found: list[int] = []
        for each in sorted(self.pods.glob("worker-*/pid")):
            with contextlib.suppress(OSError, ValueError):
                if is_pod(pid := int(each.read_text()), each.parent):
                    found.append(pid)
        return found

    def resize(self, workers: int) -> None:
        try:
            self.job.scale(workers=workers)
        except Refused as error:
            self.refused = str(error)

    def close(self) -> None:
        self.client.__exit__()


def is_pod(pid: int, folder: Path) -> bool:
    """Return whether a process is the pod of this folder: one of a later program may have the number. Raises OSError.

    The environment tells, as the command line of all pods is the same; that of a zombie is empty.
    """
    mark = b"STRETTO_POD_FOLDER="
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return any(os.path.samefile(each[len(mark) :], folder / "work") for each in environment if each.startswith(mark))

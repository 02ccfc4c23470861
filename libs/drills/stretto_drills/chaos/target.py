"""The processes, files and caches that faults can hit: those of one job and of its installation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
from stretto_bus import CallRefused, CallTimeout, Client
from stretto_bus.faults import Fault
from stretto_cli.errors import CliError
from stretto_cli.installation.processes import named_in
from stretto_cli.installation.state import read_state, readiness
from stretto_messages.pods import GetOwnership, GetOwnershipReply

from .record import StreamRecord

LOOK_S = 0.05
NAMES = {"worker": "worker", "ps": "parameter server", "data": "data worker"}


class NotNow(Exception):
    """The fault has no victim now, for the reason in the text; the fault is skipped and reported so."""


@dataclass(frozen=True, slots=True)
class Image:
    """A server's part of a complete checkpoint: its file in the store, its copies in shared memory and in Redis."""

    checkpoint: str
    pod: str
    stored: Path
    in_memory: tuple[Path, ...]
    cached: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path, part: dict[str, Any]) -> Self:
        copies = [str(copy).partition(":") for copy in part["copies"]]
        return cls(
            checkpoint=folder.name,
            pod=part["pod"],
            stored=folder / part["file"],
            in_memory=tuple(Path(where) for kind, _, where in copies if kind == "file"),
            cached=tuple(where for kind, _, where in copies if kind == "cache"),
        )


@dataclass(slots=True)
class ChaosTarget:
    """Access to one job and its installation.

    ``memory``: folder of shared memory, if it is ours and may be filled. ``shared``: the user's jobs run there too.
    """

    folder: Path
    record: StreamRecord
    client: Client
    memory: Path | None = None
    shared: bool = False

    # pods ------------------------------------------------------------------------------------------------------

    def pod(self, role: str, chance: float, among: Sequence[str] = ()) -> str:
        """Return a running pod, chosen by ``chance`` in [0, 1), among ``among`` if given. Raises NotNow."""
        running = self.record.running(role)
        there = [name for name in running if (not among or name in among) and self.processes(name)]
        if not there:
            raise NotNow(f"no {NAMES[role]} runs")
        return there[min(int(chance * len(there)), len(there) - 1)]

    def processes(self, pod: str) -> list[psutil.Process]:
        """Return the pod's process and its children, without the shell around it, which records how the pod ends."""
        home = self.folder / "pods" / self.record.job / pod
        try:
            process = psutil.Process(int((home / "pid").read_text()))
            pod_folder = process.environ().get("STRETTO_POD_FOLDER", "")  # names installation, job and pod
            if process.status() == psutil.STATUS_ZOMBIE or not Path(pod_folder).resolve().is_relative_to(
                home.resolve()
            ):
                return []  # the pid belongs to another process by now
            return [process, *process.children(recursive=True)]
        except (OSError, ValueError, psutil.Error):
            return []

    def kill_pod(self, pod: str) -> None:
        """Kill a pod as the kernel would when memory is short. Raises NotNow if it is gone already."""
        send(self.processes(pod)[:1] or _gone(pod), signal.SIGKILL)

    # services --------------------------------------------------------------------------------------------------

    def service(self, name: str) -> psutil.Process:
        """Return the process of a service, of nats or of redis. Raises NotNow while it is restarting."""
        try:
            entry = read_state(self.folder)["processes"][name]
        except (CliError, KeyError) as error:
            raise NotNow(f"{name} is not one of the processes of {self.folder}") from error
        process = named_in(entry)
        if process is None:
            raise NotNow(f"{name} is restarting")
        return process

    async def ready(self, name: str, other_than: int | None = None) -> bool:
        """Return whether a service is ready, in another process than ``other_than``."""
        try:
            process = self.service(name)
        except NotNow:
            return False
        if process.pid == other_than:
            return False
        if name == "nats":
            return self.client.bus.connected
        if name == "redis":
            return await self._redis_answers()
        answer = await readiness(self.folder, name, process.pid)
        return bool(answer["ready"])

    # caches and stores -----------------------------------------------------------------------------------------

    async def _redis_answers(self) -> bool:
        """Return whether Redis answers at all, if only that a password is missing."""
        with contextlib.suppress(OSError, ValueError, KeyError, TimeoutError):
            text = (self.folder / "redis" / "redis.conf").read_text()
            port = int(dict(line.split(" ", 1) for line in text.splitlines())["port"])
            async with asyncio.timeout(1.0):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"PING\r\n")
                answer = await reader.read(1)
                writer.close()
                return bool(answer)
        return False

    def checkpoints(self) -> list[list[Image]]:
        """Return the images of the job's complete checkpoints in the installation's store, oldest checkpoint first."""
        found: list[list[Image]] = []
        for path in sorted((self.folder / "checkpoints").glob(f"{self.record.job}/*/manifest.json")):
            with contextlib.suppress(OSError, ValueError, KeyError):
                parts: list[dict[str, Any]] = json.loads(path.read_text())["parts"]
                found.append([Image.of(path.parent, part) for part in parts])
        return found

    # parameters ------------------------------------------------------------------------------------------------

    async def ownership(self, pod: str, within_s: float = 0.5) -> GetOwnershipReply | None:
        """Return the present ownership of a parameter server; None if it does not answer."""
        try:
            return await self.client.call_pod(pod, GetOwnership(job=self.record.job), within_s)
        except (CallTimeout, CallRefused, Fault):
            return None


def send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to the processes that still exist."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


async def until(reached: Callable[[], Awaitable[bool] | bool], within_s: float, look_s: float = LOOK_S) -> bool:
    """Poll until ``reached`` is true; returns False if it is not within ``within_s``."""
    deadline = time.monotonic() + within_s
    while True:
        found = reached()
        if isinstance(found, bool):
            if found:
                return True
        elif await found:
            return True
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(look_s)


def _gone(pod: str) -> list[psutil.Process]:
    raise NotNow(f"{pod} is gone already")

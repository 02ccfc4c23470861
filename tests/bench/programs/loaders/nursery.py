"""Starts the workers of a loader, and asks them."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.bench.places import ROOT
from tests.bench.processes import Process

MODULE = "tests.bench.programs.loaders.worker"


class Worker:
    """A worker that answers each JSON line with one."""

    def __init__(self, pid: int, link: socket.socket, complaints: Path) -> None:
        self.pid, self.complaints, self._link = pid, complaints, link
        self._lines = link.makefile("rw", encoding="utf-8")

    def send(self, **message: Any) -> Self:
        with suppress(OSError):  # what it answers, or that it does not, is read next
            self._lines.write(json.dumps(message) + "\n")
            self._lines.flush()
        return self

    def receive(self) -> Any:
        """Return the answer. Raises EOFError with what the worker complained of last."""
        try:
            line = self._lines.readline()
        except OSError:
            line = ""
        if not line:
            said = self.complaints.read_text(errors="replace").strip().splitlines() or ["without a word"]
            raise EOFError(said[-1][:300])
        return json.loads(line)

    def has_answered(self) -> bool:
        """Tell whether there is an answer to read, or none will ever come."""
        return bool(select.select([self._link], [], [], 0)[0])

    def ask(self, **message: Any) -> Any:
        return self.send(**message).receive()

    def end(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, and wait until the process has hung up."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
        with suppress(OSError, ValueError):
            while self._lines.readline():
                pass
            self._lines.close()
        self._link.close()


class Nursery:
    """A process of the loader's Python from which its workers are forked."""

    def __init__(self, loader: str, python: str, folder: Path) -> None:
        self.process = Process("-m", MODULE, loader, python=python, cwd=ROOT)
        self._folder, self._count = folder, 0

    def worker(self, **environment: str) -> Worker:
        """Start a worker. Raises EOFError."""
        self._count += 1
        address, complaints = str(self._folder / f"{self._count}.sock"), self._folder / f"{self._count}.err"
        complaints.touch()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(address)
            listening.listen()
            pid = int(self.process.ask(address=address, complaints=str(complaints), environment=environment))
            link, _ = listening.accept()
        return Worker(pid, link, complaints)

    def close(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.kill()

"""Processes that only sleep, and the entries by which a living or a dead owner is named in its folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from stretto_installation.one_machine import leftovers
from stretto_runtime.process.pid import ProcessIdentity

Started = Callable[..., psutil.Process]


@contextmanager
def sleepers() -> Iterator[Started]:
    """Give a function that starts a process that only sleeps, with a log in a folder; all end with the block."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(folder: Path = Path("/dev")) -> psutil.Process:
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        with (folder / "null").open("wb") as log:
            begun.append(subprocess.Popen(command, start_new_session=True, stdout=log))
        return psutil.Process(begun[-1].pid)

    try:
        yield start
    finally:
        for process in begun:
            process.kill()
            process.wait()


def named(process: psutil.Process) -> dict[str, Any]:
    """Return the entry of an owner that is this process."""
    return {**leftovers.owner_entry(), "pid": process.pid, "birth": ProcessIdentity.of(process.pid)}


def dead(start: Started) -> dict[str, Any]:
    """Return the entry of an owner whose process has ended."""
    process = start()
    owner = named(process)
    process.kill()
    process.wait()
    return owner

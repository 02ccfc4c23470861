"""Processes that only sleep, and the entries by which a living or a dead owner is named in its folder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
from stretto_installation.one_machine import leftovers
from stretto_runtime.process.pid import ProcessIdentity

Started = Callable[[], psutil.Process]


@contextmanager
def sleepers() -> Iterator[Started]:
    """Give a function that starts a process that only sleeps; all of them end with the block."""
    begun: list[subprocess.Popen[bytes]] = []

    def start() -> psutil.Process:
        begun.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True))
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

"""An installation in the background: its supervisor runs in a session of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from .. import server
from ..errors import InstallationError, NotRunning, UnusableOption
from .leftovers import end_lost
from .processes import ForkedProcess, forked, named_in
from .programs import StartOptions
from .state import describe, make_folder, read_state, supervisor_of
from .supervisor import FAILED
from .supervisor import main as supervise

START_S = 90.0
STOP_S = 60.0
POLL_S = 0.05
LOG_CHARACTERS = 2000


def start_detached(options: StartOptions, tied: bool = False, *, forks: bool = False) -> dict[str, Any]:
    """Start a supervisor in a session of its own and wait until everything is ready. Raises InstallationError.

    The state of an installation that runs already has ``ran_before``.
    ``tied``: once this thread has ended, in whatever way, the supervisor takes everything down. ``forks``: the
    supervisor is a fork of this process, which has one thread, no event loop, and has imported what is needed.
    """
    folder = options.folder
    with contextlib.suppress(NotRunning):
        runs = read_state(folder)["state"] == "ready"
        if runs and options == StartOptions(folder):  # nothing is asked for that it may not have
            return {**describe(folder), "ran_before": True}
        remedy = "its options stay as they are until `stretto down`" if runs else "`stretto status` shows it"
        raise InstallationError(f"an installation runs in {folder} already; {remedy}")
    make_folder(folder)
    log = folder / "logs" / "supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    supervisor = forked(lambda: supervise(options), log) if forks else _executed(options, log, tied)
    try:
        return _await_ready(folder, supervisor, log)
    except BaseException:  # an interrupted start leaves nothing running either
        supervisor.terminate()  # it ends what it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(STOP_S)
        raise


def _executed(options: StartOptions, log: Path, tied: bool) -> subprocess.Popen[bytes]:
    """Start a supervisor that imports everything for itself."""
    command = [sys.executable, "-m", "stretto_installation.one_machine", options.as_argument()]
    with log.open("ab") as file:  # to append, as ``rotate_logs`` needs it
        return subprocess.Popen(
            server.tied(command, signal.SIGTERM) if tied else command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def _await_ready(folder: Path, supervisor: subprocess.Popen[bytes] | ForkedProcess, log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if supervisor.poll() is not None:
            text = log.read_text(errors="replace").strip()[-LOG_CHARACTERS:]
            before, failed, reason = text.rpartition(FAILED)
            kind = UnusableOption if supervisor.returncode == UnusableOption.status else InstallationError
            raise kind(f"the installation did not start: {reason if failed and reason else before or text}")
        with contextlib.suppress(NotRunning):
            state = read_state(folder)
            if state["pid"] == supervisor.pid and state["state"] == "ready":  # else another one was first
                return describe(folder)
        time.sleep(POLL_S)
    raise InstallationError(f"not ready after {START_S:.0f} s; see {log}")


@dataclass(frozen=True, slots=True)
class TakenDown:
    """How many processes were ended; ``left`` of them, pods included, in place of a supervisor that was gone."""

    ended: int
    left: int


def take_down(folder: Path, within_s: float = STOP_S) -> TakenDown:
    """End the installation in ``folder``, and look whether its supervisor has done so: it may be killed meanwhile.

    Raises NotRunning: nothing of it runs. Raises InstallationError: it runs still after ``within_s``, or its supervisor
    lives in another container.
    """
    try:
        supervisor = supervisor_of(state := read_state(folder), folder)
    except NotRunning:
        if not (left := end_lost(folder)):
            raise
        return TakenDown(left, left)
    with contextlib.suppress(psutil.NoSuchProcess):  # it is looked at again: ids are reused
        supervisor.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + within_s
    while named_in(state) is not None:
        if time.monotonic() >= deadline:
            raise InstallationError(f"still running after {within_s:.0f} s; see {folder / 'logs' / 'supervisor.log'}")
        time.sleep(POLL_S)
    if not (folder / "run" / "up.json").exists():
        return TakenDown(len(state["processes"]), 0)
    left = end_lost(folder)
    return TakenDown(max(len(state["processes"]), left), left)

"""The program of the user's as a child process: how it is started, waited for and asked to end."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from stretto_wire.program import ProgramSpec

from ..errors import DataError
from ..pod.process import EXIT_OK, Pod
from ..worker.step_timer import StepTimer
from .output import EventSteps, PrintedSteps, ToldSteps, follow, read_events

LEAVE_S = 10.0
"""Longest time until a program that is to leave, and asks for no batch meanwhile, gets SIGTERM."""
LEAVE_SHARE = 2 / 3
"""The share of the pod's time to leave after which the program gets SIGTERM at the latest; the rest is for its end."""
KILL_S = 10.0
"""Seconds from SIGTERM to SIGKILL for a program whose pod goes on: the next group of ranks waits for its end."""
POLL_S = 0.1
PRINTED_S = 2.0
"""Seconds for the last lines of a program that has ended; what it left behind may keep its output open for ever."""
SIGNALLED = 128
"""A shell's exit code of a process that a signal ended is this plus its number."""
EARLY = "the program ended with status 0 before its samples did: read stretto.agent.samples() to its end"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)

log = logging.getLogger("stretto.worker")


class Child:
    """The program of a pod, which runs in one process at a time."""

    def __init__(self, pod: Pod, program: ProgramSpec, meter: StepTimer) -> None:
        self._pod, self._program, self._meter = pod, program, meter
        self._printing: threading.Thread | None = None
        """Passes on what the program prints, where its job file says how a line tells its steps."""
        self._end_reading: Callable[[float], None] | None = None
        """Ends the reading of the event files that tell its steps, within a time in seconds."""

    def start(self, more: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the program with these variables. Raises DataError: its command or folder is not there."""
        settings, command = self._pod.settings, self._program.command
        folder = self._program.path or str(settings.pod_folder or Path.cwd())
        environment = {**os.environ, **more}
        environment["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
        environment.setdefault("OMP_NUM_THREADS", str(settings.threads))
        if not settings.spec.resources.workers.extended:  # it would take what other pods were given
            environment["CUDA_VISIBLE_DEVICES"] = ""
        found = command[0] if "/" in command[0] else shutil.which(command[0], path=environment["PATH"])
        if found is None:
            raise DataError(f"program.command[0] = {command[0]}: there is no such command where the pods run")
        files, events = self._program.event_files, None
        if files is not None:  # what is there by now is of another run
            events = EventSteps(Path(folder, files), ToldSteps(self._meter))
        pattern = self._program.progress
        if pattern is not None:
            environment.setdefault("PYTHONUNBUFFERED", "1")  # a line is told when it is printed
        try:
            program = subprocess.Popen(
                [found, *command[1:]],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                preexec_fn=_die_together,
                start_new_session=True,
                stdout=subprocess.PIPE if pattern is not None else None,
                stderr=subprocess.STDOUT if pattern is not None else None,
            )
        except OSError as error:
            raise DataError(
                f"program.command = {' '.join(command)} cannot be run in program.path = {folder}: {error.strerror}; "
                "name a folder and a command that are there where the pods run"
            ) from error
        if pattern is not None and program.stdout is not None:
            self._printing = follow(program.stdout, PrintedSteps(pattern, ToldSteps(self._meter)))
        if events is not None:
            self._end_reading = read_events(events)
        return program

    def wait(self, program: subprocess.Popen[bytes], patience: Callable[[], float | None]) -> int:
        """Wait until the program has ended; return its status, or minus the signal that ended it.

        ``patience`` is asked again and again: None while the program is to run on, then the seconds after which a
        program that has not ended gets SIGTERM, and KILL_S later SIGKILL. What it has started ends with it.
        """
        asked_at_s: float | None = None
        is_ended = False
        while not has_ended(program.pid):
            time.sleep(POLL_S)
            if (patience_s := patience()) is None:
                continue
            if asked_at_s is None:
                asked_at_s = time.monotonic()
                log.info("asked to leave: the program ends when it asks for its next batch, or in %g s", patience_s)
            late_s = time.monotonic() - asked_at_s - patience_s
            if not is_ended and late_s >= 0:
                os.kill(program.pid, signal.SIGTERM)  # Popen would take the status away that the loop waits for
                is_ended = True
            elif late_s >= KILL_S and not self._pod.leaving.is_set():
                os.kill(program.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it has left nothing behind
            os.killpg(program.pid, signal.SIGKILL)
        code = program.wait()
        if self._printing is not None:
            self._printing.join(PRINTED_S)
        if self._end_reading is not None:
            self._end_reading(PRINTED_S)
        return code

    def failed(self, code: int) -> int:
        """Return the pod's exit code after a program that a signal ended. Raises DataError: it failed by itself."""
        if self._pod.leaving.is_set():
            return EXIT_OK
        if code < 0:
            return SIGNALLED - code
        settings = self._pod.settings
        where = f"stretto logs {settings.job}/{settings.pod}"
        raise DataError(f"the program ended with status {code}; `{where}` has its last words")


def has_ended(pid: int) -> bool:
    """Return True if a child has ended; its status, and so its number, stays until it is waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def patience_of(grace_s: float) -> float:
    """Return the seconds until a program that is to leave gets SIGTERM; after ``grace_s`` the pod gets SIGKILL."""
    return min(LEAVE_S, grace_s * LEAVE_SHARE)


def _die_together() -> None:
    """Let the kernel end the program with the process that runs it, which alone reports for it."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

"""The processes of a pod on this machine: its shell, the pod itself, and all others of its session."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from pathlib import Path
from signal import Signals

import psutil
from stretto_runtime.process.pid import ProcessIdentity
from stretto_runtime.process.views import has_mounted

from .records import Record, Records

SCANS_MAX = 20
"""Looks through a session for one kill (taste): a pod that forks faster is left to the next kill."""


class PodProcesses:
    """Finds and signals the processes of recorded pods, and never one that has got the id of an ended process."""

    def __init__(self, records: Records) -> None:
        self._records = records

    def shell(self, record: Record) -> psutil.Process | None:
        """Return the pod's shell, if the process with its pid is still that one."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(record.pid)
            if ProcessIdentity.of(record.pid) == record.birth and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def child(self, record: Record) -> psutil.Process | None:
        """Return the pod itself: a process of the shell's session that was started after it."""
        pid = self._pid(record)
        if pid is None:
            return None
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            ours = os.getsid(pid) == record.pid and record.birth.precedes(ProcessIdentity.of(pid))
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def members(self, record: Record) -> list[psutil.Process]:
        """Return every process of the pod's session, control group and view of the file system, the shell excluded."""
        result: list[psutil.Process] = []
        inside, folder = set(record.group.pids()), self._records.of(record.job, record.pod)

        def is_member(pid: int) -> bool:
            ours = pid in inside or os.getsid(pid) == record.pid or has_mounted(pid, folder)
            return ours and pid != record.pid and record.birth.precedes(ProcessIdentity.of(pid))

        for pid in psutil.pids():  # process_iter keeps processes: a new one with an old id would get no signal
            with contextlib.suppress(psutil.Error, OSError):
                if is_member(pid):
                    process = psutil.Process(pid)
                    if is_member(pid):  # still: from here on psutil knows it from one that gets its id
                        result.append(process)
        return result

    def held_bytes(self, record: Record, limit_bytes: int) -> int:
        """Return the resident bytes of the pod's processes; beyond the limit a page they share counts once, slowly.

        Forks share most of their pages, and a pod is not killed for the sum of what they share.
        """
        members = self.members(record)
        used = sum(_resident_bytes(process) for process in members)
        return used if used <= limit_bytes else sum(_resident_bytes(process, shared=True) for process in members)

    def end(self, record: Record) -> None:
        """Send SIGTERM to the pod, which knows its children; to all of its processes before it wrote down its pid."""
        child = self.child(record)
        _send(Signals.SIGTERM, [child] if child is not None else self.members(record))

    def kill(self, record: Record) -> None:
        """Send SIGKILL to all but the shell, which records the end; to the shell alone if it has started nothing.

        A process that is started while the others are looked for would outlive them. So the shell stands still
        meanwhile. A fork may be under way when it is asked to, and ends before a second look or never.
        """
        shell = self.shell(record)
        if shell is not None:
            _send(Signals.SIGSTOP, [shell])
        is_started = self.kill_members(record) or self._pid(record) is not None  # it may be writing down the end
        if shell is not None:
            _send(Signals.SIGCONT if is_started else Signals.SIGKILL, [shell])
            if not is_started:
                self.kill_members(record)

    def kill_members(self, record: Record) -> bool:
        """Send SIGKILL to all but the shell until nobody new is found; return True if there was anybody.

        The session is looked through again and again: a process with SIGKILL pending starts no other.
        """
        sent: set[int] = set()
        for scan in range(SCANS_MAX):
            new = [process for process in self.members(record) if process.pid not in sent]
            if not new and scan:
                break
            _send(Signals.SIGKILL, new)
            sent |= {process.pid for process in new}
        return bool(sent)

    def _pid(self, record: Record) -> int | None:
        return integer(self._records.of(record.job, record.pod) / "pid")

    def pin(self, record: Record, cpu_cores: float) -> None:
        """Pin every thread of the pod to whole cores, those with the fewest pods on them."""
        cores = sorted(os.sched_getaffinity(0))
        load = dict.fromkeys(cores, 0)
        for other in self._records.all():
            if (other.job, other.pod) != (record.job, record.pod) and (child := self.child(other) or self.shell(other)):
                with contextlib.suppress(psutil.Error):
                    for core in child.cpu_affinity():
                        load[core] = load.get(core, 0) + 1
        chosen = sorted(cores, key=lambda core: (load[core], core))[: max(1, math.ceil(cpu_cores))]
        if (shell := self.shell(record)) is not None:
            _pin_threads(shell, chosen)  # first: processes that it starts from now on inherit it
        for process in self.members(record):
            _pin_threads(process, chosen)


def _resident_bytes(process: psutil.Process, shared: bool = False) -> int:
    """Return the resident bytes of a process, 0 of one that has ended; ``shared``: only its part of shared pages."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss if shared else process.memory_info().rss)
    return 0


def _send(number: Signals, processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _pin_threads(process: psutil.Process, cores: list[int]) -> None:
    with contextlib.suppress(psutil.Error, OSError):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, cores)


def integer(file: Path) -> int | None:
    """Return the number in a file, or None if there is none."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None

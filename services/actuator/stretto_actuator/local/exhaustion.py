"""The guard of what all processes of a user, or of the machine, have together, and one pod can use up.

No limit of the kernel keeps a pod from taking all ports of outgoing connections, or all places for watched files, of
which each server needs one for each connection. So the pod that holds most of them is ended when there are none left.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import math
import os
import select
import socket
from collections.abc import Iterable

import structlog
from stretto_bus.tasks import end
from stretto_runtime.process.views import threads_of

from .processes import PodProcesses
from .records import Record, Records

LOOK_S = 1.0
LOOPBACK = "127.0.0.1"
MANY = 1500
"""Open files of a pod with fewer than which it has not used up anything: n files make at most n²/4 watches of epoll, of
which a user has millions, and the kernel gives 28,000 ports. An honest pod may have some hundred files open (taste)."""

TABLES_MOST = 64
"""Tables of open files beyond which a process hides them: all threads of an honest one have the same (taste)."""
KCMP, OF_FILES = {"x86_64": 312, "aarch64": 272}, 2
"""Numbers of the system call kcmp, by kind of machine, and its kind for tables of open files."""

_libc = ctypes.CDLL(None, use_errno=True)
log = structlog.get_logger("stretto.actuator")


class Guard:
    """Ends the pod that has used up what all processes need."""

    def __init__(self, records: Records, processes: PodProcesses) -> None:
        self._records, self._processes = records, processes
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on, in the background."""
        self._task = asyncio.create_task(self._run(), name="end pods that use up what all need")

    async def stop(self) -> None:
        if self._task is not None:
            await end(self._task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if found := used_up():
                    await asyncio.to_thread(self._end_greediest, found)
            except Exception as error:  # the machine lacks more than that, such as files: it is tried again
                log.warning("what all processes need is used up, and who did it is not known yet", error=str(error))

    def _end_greediest(self, found: str) -> None:
        held = [(self._open_files(record), record) for record in self._records.all()]
        count, record = max(held, key=lambda each: each[0], default=(0, None))
        if record is None or count < MANY:
            log.warning("used up, but not by a pod", what=found)
            return
        log.warning(
            "a pod has used up what all processes need: it is ended", what=found, job=record.job, pod=record.pod
        )
        self._processes.kill(record)

    def _open_files(self, record: Record) -> float:
        return open_files(process.pid for process in self._processes.members(record))


def used_up() -> str:
    """Return what is used up, in plain words; empty: nothing."""
    try:
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            with select.epoll() as watching:
                watching.register(probe)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "ports of connections"
        if error.errno == errno.ENOSPC:
            return "places for watched files (epoll)"
    return ""


def open_files(pids: Iterable[int]) -> float:
    """Return how many files these processes have open; infinite where one does not show them, or hides some.

    Files are hidden in the queue of a socket: sent, and received by nobody. Threads may have tables of their own.
    """
    count = 0.0
    for pid in pids:
        tables = list[str]()
        for thread in threads_of(pid):
            if any(_same_table(thread, known) for known in tables):
                continue
            tables.append(thread)
            try:
                names = os.listdir(f"{thread}/fd")
            except PermissionError:
                return math.inf
            except OSError:  # it is gone
                continue
            if len(tables) > TABLES_MOST or any(_in_queue(f"{thread}/fd", name) for name in names):
                return math.inf
            count += len(names)
    return count


def _same_table(thread: str, other: str) -> bool:
    """Return whether two threads have one table of open files, or nobody can tell."""
    number = KCMP.get(os.uname().machine)
    words = [ctypes.c_long(int(each.rpartition("/")[2])) for each in (thread, other)]
    return number is None or _libc.syscall(ctypes.c_long(number), *words, ctypes.c_long(OF_FILES), 0, 0) <= 0


def _in_queue(folder: str, name: str) -> bool:
    """Return whether an open file is a socket in whose queue files wait."""
    with contextlib.suppress(OSError):  # closed meanwhile
        if os.readlink(f"{folder}/{name}").startswith("socket:"):
            with open(f"{folder}info/{name}", "rb") as told:
                return any(line.startswith(b"scm_fds:") and int(line.split()[1]) > 0 for line in told)
    return False

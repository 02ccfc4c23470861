"""Child processes that are kept alive, and the processes of an installation found by id and birth."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil
from stretto_runtime.process.pid import ProcessIdentity
from stretto_runtime.process.views import has_mounted
from stretto_runtime.settings import EVICTED, groups_name

BACKOFF_FIRST_S = 0.2
BACKOFF_MOST_S = 10.0
HEALTHY_S = 30.0
"""A process that lived this long is restarted after the shortest pause again."""

ROUNDS_MAX = 3
"""Times that pods are ended: what their shells have started meanwhile is all gone after two (taste)."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, its environment, the log for its output, and sockets that the process gets.

    ``listeners``: by the variables that tell the process their descriptors.
    """

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    listeners: Mapping[str, socket.socket] = field(default_factory=dict[str, socket.socket])


class Process(Protocol):
    """A started process, as asyncio.subprocess.Process is one."""

    pid: int

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, signal: int, /) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


async def started(command: Command) -> Process:
    """Start a command. Raises OSError."""
    descriptors = {variable: listener.fileno() for variable, listener in command.listeners.items()}
    with command.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *command.argv,
            env={**command.environment, **{variable: str(number) for variable, number in descriptors.items()}},
            pass_fds=tuple(descriptors.values()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches the supervisor only, which ends the others in order
        )


class ForkedProcess:
    """A fork of this process, with the methods of subprocess.Popen that its starter uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; None while the process lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the process has ended. Raises subprocess.TimeoutExpired."""
        deadline = time.monotonic() + (math.inf if timeout is None else timeout)
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(0.01)
        return status

    def terminate(self) -> None:
        """Send SIGTERM, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def forked(run: Callable[[], None], log: Path | None = None, kept: Iterable[int] = ()) -> ForkedProcess:
    """Run a function in a fork of this process, in a session of its own: nothing is imported twice.

    The fork ends with the function. ``log``: gets the output; None: it goes where this process's goes. ``kept``: the
    descriptors that the fork has, too. This process has one thread and no running event loop.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return ForkedProcess(pid)
    status = 1
    try:
        os.setsid()
        for each in (signal.SIGTERM, signal.SIGHUP):
            if callable(signal.getsignal(each)):  # it ends what the parent does, and is not for the fork
                signal.signal(each, signal.SIG_DFL)
        for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *kept}:
            with contextlib.suppress(OSError):  # the one of the folder that was listed
                os.close(number)
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
        if log is not None:
            with log.open("ab") as file:  # to append, as ``rotate_logs`` needs it
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(each, "w", False), line_buffering=True) for each in (1, 2))
        run()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


Start = Callable[[Command], Coroutine[Any, Any, Process]]
"""How a command becomes a process. Raises OSError."""


class Child:
    """A process that is restarted, after growing pauses, until ``stop`` is called. ``start``: how it is started."""

    def __init__(self, command: Command, changed: Callable[[], None], start: Start = started) -> None:
        self.command = command
        self._start = start
        self.pid: int | None = None
        self.birth: ProcessIdentity | None = None
        self.restarts = 0
        self.last_exit: int | None = None
        self.spawn_error: str | None = None
        self._changed = changed
        self._process: Process | None = None
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and keep it alive from now on."""
        await self._spawn()
        self._task = asyncio.create_task(self._keep())

    def restart(self) -> None:
        """End the process, which is then started again."""
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None and self._process.returncode is None:
                self._process.terminate()

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after ``grace_s``."""
        self._stopping = True
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
                process.send_signal(signal.SIGCONT)  # a frozen process does not react to SIGTERM alone
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await process.wait()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.pid = None

    def last_words(self, lines: int = 3) -> str:
        """Return the error of the failed start, or the end of the log: no line twice, no frames of tracebacks."""
        if self.spawn_error is not None:
            return self.spawn_error
        words: list[str] = []
        with contextlib.suppress(OSError):
            for line in reversed(self.command.log.read_text(errors="replace").splitlines()):
                if line.strip() and line not in words and not line.startswith((" ", "Traceback ")):
                    words.insert(0, line)
                if len(words) == lines:
                    break
        return "\n".join(words)

    async def _spawn(self) -> None:
        self.command.log.parent.mkdir(parents=True, exist_ok=True)
        self._process = await self._start(self.command)
        self.pid = self._process.pid
        self.birth = ProcessIdentity.of(self.pid)
        self._changed()

    async def _keep(self) -> None:
        delay_s = BACKOFF_FIRST_S
        while True:
            process, began = self._process, time.monotonic()
            assert process is not None
            self.last_exit = await process.wait()
            self.pid = None
            self._changed()
            if self._stopping:
                return
            if time.monotonic() - began > HEALTHY_S:
                delay_s = BACKOFF_FIRST_S
            delay_s = await self._again(delay_s)

    async def _again(self, delay_s: float) -> float:
        """Restart after a pause, as often as needed; returns the next pause."""
        while True:
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, BACKOFF_MOST_S)
            self.restarts += 1
            try:
                await self._spawn()
            except OSError as error:  # no memory, process id or disk space: it may pass
                self.spawn_error = str(error)
                self._changed()
                continue
            self.spawn_error = None
            return delay_s


def same_process(pid: int | None, birth: ProcessIdentity | None) -> psutil.Process | None:
    """Return the living process ``pid`` if its birth is ``birth``, else None: process ids are reused."""
    with contextlib.suppress(psutil.Error):
        if pid is not None and birth is not None and ProcessIdentity.of(pid) == birth:
            process = psutil.Process(pid)
            return process if process.status() != psutil.STATUS_ZOMBIE else None
    return None


def named_in(entry: Mapping[str, Any]) -> psutil.Process | None:
    """Return the living process that an entry of ``up.json`` names, or None."""
    return same_process(entry["pid"], ProcessIdentity.parse(entry.get("birth")))


@dataclass(frozen=True, slots=True)
class Used:
    """Memory and processor time of a process. Of a page that n processes share, each has an n-th (PSS)."""

    memory_bytes: int
    cpu_s: float


def used_by(entry: Mapping[str, Any]) -> Used | None:
    """Return what the process that an entry of ``up.json`` names uses; None if it is gone, also if it went just now."""
    process = named_in(entry)
    with contextlib.suppress(psutil.Error):
        if process is not None:
            times = process.cpu_times()
            return Used(process.memory_full_info().pss, times.user + times.system)
    return None


def end_all(processes: Sequence[psutil.Process], grace_s: float) -> int:
    """Send SIGTERM to all, and SIGKILL to those alive after ``grace_s``; returns how many processes were given."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # a frozen process does not react to SIGTERM alone
    _, alive = psutil.wait_procs(list(processes), timeout=grace_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=5)
    return len(processes)


def end_pods(folder: Path, grace_s: float) -> int:
    """End every process of every pod of an installation; returns how many there were.

    A pod that is about to start, or ends slowly, starts processes meanwhile: they are looked for until there are none.
    """
    ended = 0
    pods = folder.resolve() / "pods"
    for pod in [each.parent for each in pods.glob("*/*/pod.json")]:
        with contextlib.suppress(OSError):  # a full disk: it counts as a loss; or a link, which a job has laid there
            if pod.resolve() == pod and not (pod / "exit").exists():
                os.close(os.open(pod / EVICTED, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    for _ in range(ROUNDS_MAX):
        found = pods_of(folder)
        if not found:
            break
        ended += end_all(found, grace_s)
    remove_groups(pods, _above_groups())
    return ended


def remove_groups(pods: Path, above: Iterable[Path]) -> None:
    """Remove the control groups of an installation's pods that have ended. The kernel keeps those that are in use."""
    for parent in above:
        for group in [*(parent / groups_name(pods)).glob("*/"), parent / groups_name(pods)]:
            with contextlib.suppress(OSError):
                group.rmdir()


def _above_groups() -> Iterator[Path]:
    """Yield where groups of an actuator on this machine may be: the roots of the hierarchies, and our own groups."""
    with contextlib.suppress(OSError):
        own = {line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mount, kind, _ = line.split(" ", 3)
            if kind in ("cgroup", "cgroup2"):
                yield from {Path(mount), *(Path(mount, path.lstrip("/")) for path in own if ".." not in path)}


def pods_of(folder: Path) -> list[psutil.Process]:
    """Return every process of every pod of an installation.

    Pods are found by the sessions that the pod files name, whether the session's leader lives or not, and, in case the
    files are gone or the pod has left its session, by the environment of each process and its view of the file system.
    """
    leaders: list[tuple[int, ProcessIdentity | None]] = []
    for file in (folder / "pods").glob("*/*/pod.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            record = json.loads(file.read_text())
            leaders.append((int(record["pid"]), ProcessIdentity.parse(record["birth"])))
    pods = folder.resolve() / "pods"
    found = {process.pid: process for process in sessions_of(leaders) if works_in(process.pid, pods)}
    for process in _all():
        with contextlib.suppress(psutil.Error, OSError):
            if namespace_of(process.pid) != namespace_of():
                continue
            if has_mounted(process.pid, pods) or _folder_of(process).is_relative_to(pods):
                found.setdefault(process.pid, process)
    return list(found.values())


def _folder_of(process: psutil.Process) -> Path:
    """Return the folder of a pod that a process names as its own. Raises psutil.Error."""
    return Path(process.environ().get("STRETTO_POD_FOLDER", ""))


def works_in(pid: int, folder: Path) -> bool:
    """Return whether a process has a file below ``folder`` open, as all have that an installation starts.

    A job may have written the files of a folder, and named any process there.
    """
    begin = f"{folder.resolve()}/"
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/{name}").startswith(begin):
                    return True
    return False


def namespace_of(pid: int | str = "self") -> str:
    """Return the process namespace of ``pid``: containers may share a folder's name. Raises OSError."""
    return os.readlink(f"/proc/{pid}/ns/pid")


def sessions_of(leaders: Iterable[tuple[int, ProcessIdentity | None]]) -> list[psutil.Process]:
    """Return the living processes of the sessions that these leaders (pid, birth) began, leaders included."""
    began = {pid: birth for pid, birth in leaders if birth is not None}
    found: list[psutil.Process] = []
    for process in _all():
        with contextlib.suppress(psutil.Error, OSError):
            session = process.pid if process.pid in began else os.getsid(process.pid)
            if session not in began or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if _is_of(session, began[session], process):
                found.append(process)
    return found


def _all() -> Iterator[psutil.Process]:
    """Yield all processes; process_iter keeps them, and a new one with the id of one seen before gets no signal."""
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error):
            yield psutil.Process(pid)


def _is_of(session: int, birth: ProcessIdentity, process: psutil.Process) -> bool:
    """Return whether ``process`` belongs to the session that began at ``birth``, not to a later one of the same id."""
    now = ProcessIdentity.of(session)
    if now is not None:  # a process has the leader's pid: is it still the leader?
        return now == birth
    return birth.precedes(ProcessIdentity.of(process.pid))

"""The code of a hostile job: a model whose reader tries the walls around its pod, and prints what it finds open.

Each attempt is one that does no harm where it succeeds: a limit is set to what it is, a mode to what it was.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import errno
import fcntl
import importlib
import json
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nkeys
from stretto_bus.login import seed_of, token_of
from stretto_bus.source_port import PORTS

EXAMPLE = "stretto.examples.wide_deep:WideDeep"
OPEN, TRIED = "wall open: ", "walls tried: "
"""Beginnings of the lines that the pod prints: of what succeeded, and of their number at the end."""
CONNECTIONS, HELD_MOST = 24, 8
"""Connections that the pod opens, and those that it may be left with (``stretto_actuator.pod.connections``)."""
CUT_S = 5.0
MPTCP, F_SETLEASE = 262, 1024
HARMLESS = (0, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH)
MACHINE = "x86_64"
"""The kind of machine whose numbers of system calls stand here."""
NOTHING = (ctypes.c_uint64 * 2)()
PART = (ctypes.c_uint64 * 2)(0, 8)
"""Part of a process's memory that no process has, as a call takes it."""
CALLS_OF_ALL = {
    "shared memory of System V": (29, 4711, 4096, 0o1600),
    "a queue of POSIX": (240, 0, os.O_CREAT, 0o600, 0),
    "a key of the kernel": (248, 0, 0, 0, 0, -4),
    "a ring": (425, 1, 0),
    "faults of memory": (323, 1),
    "real time": (144, 0, 1, ctypes.addressof(PART) + 8),
}
"""Calls that use what all processes of a user have together."""
CALLS_OF_FILES = {"the handle of a file": (303, -100, 0, 0, 0, 0), "a file by its handle": (304, -100, 0, 0)}
"""Calls by which root opens any file of a file system."""
OF_OTHERS = ("environ", "mem", "maps", "auxv", "io", "syscall", "root", "cwd", "exe", "fd/0", "ns/mnt")
KEYS = ("gateway.token", "nats/keys/root/operator.seed", "nats/keys/operator/bus.creds", "redis/redis.conf")

_libc = ctypes.CDLL(None, use_errno=True)


class HostileModel:
    """The model of an example, whose reader tries the walls once."""

    def __init__(self) -> None:
        module, _, name = EXAMPLE.partition(":")
        self._example: Any = getattr(importlib.import_module(module), name)()
        self._begun = False

    def build(self) -> Any:
        return self._example.build()

    def read(self, start: int, length: int) -> Any:
        if not self._begun and os.environ["STRETTO_POD"].startswith("worker"):
            self._begun = True
            threading.Thread(target=try_all, name="walls", daemon=True).start()
        return self._example.read(start, length)


def try_all() -> None:
    """Try all walls and print what is open."""
    folder = Path(os.environ["STRETTO_STATE_FOLDER"])
    count = 0
    for kind in (processes, files, sockets, connections):
        for name, attempt in kind(folder):
            count += 1
            with contextlib.suppress(OSError, ValueError):
                attempt()
                _say(f"{OPEN}{name}")
    _say(f"{TRIED}{count}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


Attempts = Iterator[tuple[str, Callable[[], object]]]


def processes(folder: Path) -> Attempts:
    """Yield attempts at the installation's processes and their pods: signals, limits, priority, memory, places."""
    for pid in others(folder):
        for number in HARMLESS:
            yield f"signal {number} to {pid}", lambda pid=pid, number=number: os.kill(pid, number)
        for kind in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS):
            yield f"limit {kind} of {pid}", lambda pid=pid, kind=kind: resource.prlimit(pid, kind)
        yield (
            f"nice of {pid}",
            lambda pid=pid: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)),
        )
        yield f"processors of {pid}", lambda pid=pid: os.sched_setaffinity(pid, os.sched_getaffinity(pid))
        for name, words in calls_on(pid).items():
            yield f"{name} of {pid}", lambda words=words: _call(*words)
        for name in OF_OTHERS:
            yield f"/proc/{pid}/{name}", lambda pid=pid, name=name: _look(Path(f"/proc/{pid}/{name}"))
    yield "nice of all", lambda: _be_as_nice(os.PRIO_USER, os.getuid())
    for name, words in CALLS_OF_ALL.items() if os.uname().machine == MACHINE else ():
        yield name, lambda words=words: _call(*words)


def calls_on(pid: int) -> dict[str, tuple[int, ...]]:
    """Return the other system calls that name a process, with arguments by which they change nothing."""
    if os.uname().machine != MACHINE:
        return {}
    policy = _libc.sched_getscheduler(pid)
    return {
        "pidfd_open": (434, pid, 0),
        "move_pages": (279, pid, 0, 0, 0, 0, 0),
        "migrate_pages": (256, pid, 0, 0, 0),
        "ioprio_set": (251, 1, pid, max(0, _libc.syscall(252, 1, pid))),
        "sched_setscheduler": (144, pid, policy, ctypes.addressof(NOTHING)),
        "process_vm_readv": (310, pid, ctypes.addressof(PART), 1, ctypes.addressof(PART), 1, 0),
        "process_vm_writev": (311, pid, ctypes.addressof(PART), 1, ctypes.addressof(PART), 1, 0),
        "kcmp": (312, os.getpid(), pid, 0, 0, 0),
        "ptrace": (101, 0x4206, pid, 0, 0),  # PTRACE_SEIZE: it goes on, and is let go with this process
    }


def others(folder: Path) -> list[int]:
    """Return the processes whose command lines name programs of an installation or of pods, but for this pod's."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line, pid = entry.read_text(errors="replace"), int(entry.parent.name)
            if (str(folder) in line or "stretto" in line) and os.getsid(pid) != os.getsid(0):
                found.append(pid)
    return found


def files(folder: Path) -> Attempts:
    """Yield attempts at files: the keys of the installation to read, modes, times and owners to change."""
    for name in KEYS:
        yield f"read {name}", (folder / name).read_bytes
    for place in (folder, folder / "run", folder / "nats", Path.home(), Path(os.__file__)):
        yield f"mode of {place}", lambda place=place: place.chmod(place.stat().st_mode & 0o7777)
        yield f"times of {place}", lambda place=place: os.utime(place, (place.stat().st_atime, place.stat().st_mtime))
        yield f"owner of {place}", lambda place=place: os.chown(place, os.getuid(), -1)
    yield "a lease of a program", _lease
    for name, words in CALLS_OF_FILES.items() if os.uname().machine == MACHINE else ():
        yield name, lambda words=words: _call(*words)


def sockets(folder: Path) -> Attempts:
    """Yield attempts at sockets of other jobs and services: those in the state folder, abstract ones, and at ports."""
    for kind in (0, socket.IPPROTO_TCP, MPTCP):
        yield f"a port of its choice, {kind}", lambda kind=kind: _take_port(kind)
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
            name = line.split()[-1]
            if name.startswith("@") or (name.startswith(str(folder)) and os.environ["STRETTO_JOB"] not in name):
                yield f"socket {name}", lambda name=name: _connect(name.replace("@", "\0", 1))


def connections(_: Path) -> Attempts:
    """Yield the attempt to hold more connections to the bus than a pod has."""

    def held() -> None:
        lines = [line for line in (_login() for _ in range(CONNECTIONS)) if line is not None]
        time.sleep(CUT_S)
        alive = sum(_lives(line) for line in lines)
        if alive <= HELD_MOST:
            raise OSError(f"{alive} are left")

    yield f"more than {HELD_MOST} connections", held


def _call(number: int, *arguments: int) -> None:
    failed = _libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) < 0
    if failed and ctypes.get_errno() != errno.EFAULT:  # nothing lies there, but it was looked for
        raise OSError(ctypes.get_errno(), str(number))


def _take_port(kind: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, kind) as taken:
        taken.bind(("127.0.0.1", random.choice(PORTS)))
        taken.listen()


def _lease() -> None:
    """Lease a program of Python: the kernel gives a lease on a file that nobody writes to its owner."""
    with open(os.__file__) as file:
        fcntl.fcntl(file, F_SETLEASE, fcntl.F_RDLCK)


def _be_as_nice(which: int, who: int) -> None:
    os.setpriority(which, who, os.getpriority(which, who))


def _look(path: Path) -> None:
    if path.name in ("root", "cwd", "exe", "0", "mnt"):
        path.readlink()
    else:
        with path.open("rb") as file:
            file.read(1)


def _connect(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(name)


def _login() -> socket.socket | None:
    """Log in to the bus as this pod. None: it was refused."""
    text = Path(os.environ["STRETTO_NATS_CREDENTIALS"]).read_text()
    host, port = os.environ["STRETTO_NATS_URL"].split("//")[1].split(":")
    try:
        line = socket.create_connection((host, int(port)), CUT_S)
        nonce = json.loads(line.recv(8192).split(b" ", 1)[1].split(b"\r\n")[0])["nonce"]
        proof = nkeys.from_seed(bytearray(seed_of(text).encode())).sign(nonce.encode())
        signature = base64.urlsafe_b64encode(proof).rstrip(b"=").decode()
        login = json.dumps({"jwt": token_of(text), "sig": signature, "verbose": False})
        line.sendall(f"CONNECT {login}\r\nPING\r\n".encode())
        return line if line.recv(64).startswith(b"PONG") else None
    except (OSError, IndexError):
        return None


def _lives(line: socket.socket) -> bool:
    try:
        line.sendall(b"PING\r\n")
        return line.recv(64) != b""
    except OSError:
        return False

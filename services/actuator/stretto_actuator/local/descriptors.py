"""The files that processes have open, also those that have no name any longer and those that they try to hide.

Files are hidden in the queue of a socket: sent, and received by nobody. Threads may have tables of their own.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Iterable, Iterator, Sequence

from stretto_runtime.process.views import threads_of

TABLES_MOST = 64
"""Tables of open files beyond which a process hides them: all threads of an honest one have the same (taste)."""
KCMP, OF_FILES = {"x86_64": 312, "aarch64": 272}, 2
"""Numbers of the system call kcmp, by kind of machine, and its kind for tables of open files."""
WATCHES_COUNTED = 200_000
"""Watches that are enough: the kernel tells each in a line, and a user may have millions."""
BLOCK_BYTES = 512
"""Unit of ``st_blocks``."""

_libc = ctypes.CDLL(None, use_errno=True)


class HiddenFiles(Exception):
    """A process does not show its open files, or hides some."""


def ports(pids: Iterable[int]) -> float:
    """Return how many sockets these processes have that may have a port; infinite where one hides what it has open.

    The kernel lists no socket that has a port and neither listens nor is connected, but all that can have none.
    """
    with contextlib.suppress(HiddenFiles), open("/proc/net/unix") as listed:
        without = {f"socket:[{line.split()[6]}]" for line in listed.readlines()[1:]}
        return len({link for link in _links(pids).values() if link.startswith("socket:")} - without)
    return math.inf


def watches(pids: Iterable[int]) -> float:
    """Return how many files these processes watch by epoll, or a number that is enough; infinite where one hides."""
    count = 0
    with contextlib.suppress(HiddenFiles):
        for path in (path for path, link in _links(pids).items() if link == "anon_inode:[eventpoll]"):
            folder, _, name = path.rpartition("/")
            with contextlib.suppress(OSError), open(f"{folder}info/{name}", "rb") as told:
                while count < WATCHES_COUNTED and (part := told.read(1 << 20)):
                    count += part.count(b"tfd:")
        return count
    return math.inf


def _links(pids: Iterable[int]) -> dict[str, str]:
    """Return what each open file of these processes is, by its place in ``/proc``. Raises HiddenFiles."""
    found: dict[str, str] = {}
    for path in _files(pids):
        with contextlib.suppress(OSError):  # closed meanwhile
            found[path] = os.readlink(path)
    return found


def unlinked(pids: Sequence[int], device: int, folders: Sequence[str]) -> dict[int, int]:
    """Return the bytes of each file of this device, by its inode, that these processes have open and that has no name.

    Raises HiddenFiles, also for a file that was in one of the ``folders`` and is mapped, but no longer open.
    """
    found: dict[int, int] = {}
    for path in _files(pids):
        with contextlib.suppress(OSError):  # closed meanwhile
            status = os.stat(path)
            if status.st_nlink == 0 and status.st_dev == device:
                found[status.st_ino] = status.st_blocks * BLOCK_BYTES
    begins = tuple(f"{folder}/" for folder in folders)
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", errors="surrogateescape") as maps:
            for fields in (line.split(None, 5) for line in maps if line.endswith(" (deleted)\n")):
                if fields[-1].startswith(begins) and int(fields[4]) not in found:
                    raise HiddenFiles
    return found


def _files(pids: Iterable[int]) -> Iterator[str]:
    """Yield the places in ``/proc`` of all files that these processes have open. Raises HiddenFiles."""
    for pid in pids:
        tables = list[str]()
        for thread in threads_of(pid):
            if any(_same_table(thread, known) for known in tables):
                continue
            tables.append(thread)
            try:
                names = os.listdir(f"{thread}/fd")
            except PermissionError:
                raise HiddenFiles from None
            except OSError:  # it is gone
                continue
            if len(tables) > TABLES_MOST or any(_in_queue(f"{thread}/fd", name) for name in names):
                raise HiddenFiles
            yield from (f"{thread}/fd/{name}" for name in names)


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

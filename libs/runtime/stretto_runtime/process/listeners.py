"""Listening sockets: opened by this process, or handed to it by the parent that opened them.

A parent that keeps them open may start a process anew: meanwhile nobody else takes its port, and who connects waits.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Generator
from pathlib import Path

from .faults import SettingsFault

BACKLOG = 128
"""Connections that wait for a process, such as one that is started again (taste). In a flood others wait behind these,
and a process that accepts all of them at once holds as many files."""
PRIVATE = 0o600
PATH_BYTES_MOST = 100
"""Longest path that is given to the kernel as it is (its own bound: 107 bytes)."""


def at_port(host: str, port: int) -> socket.socket:
    """Listen at an address; port 0: any free one. Raises OSError."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def at_path(path: Path) -> socket.socket:
    """Listen at a Unix socket that only its owner may connect to, in place of an earlier one. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        os.fchmod(listener.fileno(), PRIVATE)  # before there is a file that others see
        with short(path) as shorter:
            listener.bind(shorter)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


@contextlib.contextmanager
def short(path: Path) -> Generator[str]:
    """Yield a path that the kernel takes for a socket: a long one by its open folder."""
    if len(os.fsencode(path)) <= PATH_BYTES_MOST:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def handed(descriptor: int, variable: str) -> socket.socket:
    """Return the listening socket that a parent has handed over; the programs that this process starts do not get it.

    Raises SettingsFault.
    """
    refused = SettingsFault(f"{variable}={descriptor} is no listening socket: unset it, and the process makes its own")
    try:
        listener = socket.socket(fileno=descriptor)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        raise refused from None
    if not listens:
        raise refused
    listener.set_inheritable(False)
    return listener

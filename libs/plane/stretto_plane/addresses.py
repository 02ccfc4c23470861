"""Addresses, ``host:port`` or ``unix:/path``, and sockets that connect to them or listen there."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

from .errors import PlaneError

UNIX = "unix:"
PATH_BYTES_MAX = 107
"""Longest path that the kernel takes for a socket."""
NAME_BYTES_MAX = 80
"""Longest file name of a socket whose path is longer: it is reached by /proc/self/fd/<number>/<name>."""
SOCKET_MODE = 0o600

KEEPALIVE_IDLE_S = 4
KEEPALIVE_INTERVAL_S = 2
KEEPALIVE_COUNT = 3
UNIX_BUFFER_BYTES = 1_500_000
"""Size of a Unix socket's buffers. Measured on two cores: a pull and a push of 3.1 MB take 0.8 ms and 1.1 ms of CPU;
with the kernel's default size 1.1 and 1.4."""
UNACKNOWLEDGED_MS_MAX = 10_000
"""Time after which unacknowledged bytes end a connection. The end of a host is thus noticed within 10 s, and
by the probes (4 + 3 * 2 s) where nothing is sent."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host and a port; port 0 stands for any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """The path of a unix socket."""

    path: Path

    def __str__(self) -> str:
        return f"{UNIX}{self.path}"


Address = TcpAddress | UnixAddress


def parsed(address: str) -> Address:
    """Parse an address. Raises PlaneError."""
    if address.startswith(UNIX):
        path = Path(address.removeprefix(UNIX))
        if not path.is_absolute() or "\0" in address:
            raise PlaneError(f"address={address!r} is refused: give unix:/path with an absolute path")
        if len(os.fsencode(path)) > PATH_BYTES_MAX and len(os.fsencode(path.name)) > NAME_BYTES_MAX:
            raise PlaneError(
                f"address={address!r} is refused: the path has more than {PATH_BYTES_MAX} bytes and its last name more "
                f"than {NAME_BYTES_MAX}; take a shorter name"
            )
        return UnixAddress(path)
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (host and colon and port.isascii() and port.isdigit() and int(port) < 2**16):
        raise PlaneError(f"address={address!r} is refused: give host:port or unix:/path")
    return TcpAddress(host, int(port))


def connected(address: Address, timeout_s: float) -> socket.socket:
    """Return a blocking socket that is connected. Raises OSError; BlockingIOError: not in time."""
    if isinstance(address, UnixAddress):
        with _opened(socket.AF_UNIX) as link, _short(address.path) as path:
            tune(link)
            limit(link, socket.SO_SNDTIMEO, timeout_s)
            link.connect(path)
            return _kept(link)
    last: OSError | None = None
    for family, _, _, _, place in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
        try:
            with _opened(family) as link:
                tune(link)
                limit(link, socket.SO_SNDTIMEO, timeout_s)
                link.connect(place)
                return _kept(link)
        except OSError as error:
            last = error
    raise last or OSError(errno.EADDRNOTAVAIL, f"{address} has no address")


def listening(address: Address, backlog: int) -> tuple[socket.socket, Address, Callable[[], None]]:
    """Return a socket that listens, its address, and a function that removes what it left in the file system.

    Raises:
        PlaneError: somebody else serves there, or the address cannot be served.
    """
    try:
        if isinstance(address, UnixAddress):
            return _listening_unix(address, backlog)
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, place = found[0]
        with _opened(family) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tune(link)
            link.bind(place)
            link.listen(backlog)
            port = link.getsockname()[1]
            return _kept(link), TcpAddress(address.host, port), lambda: None
    except OSError as error:
        raise PlaneError(f"address={address} cannot be served ({error}); take a free one of this machine") from None


def tune(link: socket.socket) -> None:
    """Send small frames at once, and notice within 10 s that the peer's host is gone; unix sockets do both anyway.

    A unix socket gets room for a whole message, as far as the system allows (net.core.wmem_max): by default sender and
    receiver wake each other every 200 kB. TCP finds its room by itself.
    """
    if link.family == socket.AF_UNIX:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNIX_BUFFER_BYTES)
        return
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_COUNT)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)


def limit(link: socket.socket, option: int, timeout_s: float | None) -> None:
    """Limit the time of one call that sends (SO_SNDTIMEO) or receives (SO_RCVTIMEO); None: no limit."""
    micros = 0 if timeout_s is None else max(1, round(timeout_s * 1e6))
    link.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", micros // 10**6, micros % 10**6))


def peer_name(link: socket.socket) -> str:
    """Return the name of a connection's other side, for logs."""
    try:
        if link.family == socket.AF_UNIX:
            pid, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            return f"unix: process {pid} of user {uid}"
        host, port, *_ = link.getpeername()
        return str(TcpAddress(host, port))
    except OSError:
        return "a peer that is gone"


def _listening_unix(address: UnixAddress, backlog: int) -> tuple[socket.socket, Address, Callable[[], None]]:
    with _opened(socket.AF_UNIX) as link, _short(address.path) as path:
        try:
            link.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _remove_stale(path)
            link.bind(path)
        os.chmod(path, SOCKET_MODE)  # nobody gets in before listen
        made = os.stat(path)
        link.listen(backlog)
        kept = _kept(link)

    def remove() -> None:
        with contextlib.suppress(OSError):
            found = os.lstat(address.path)
            if (found.st_dev, found.st_ino) == (made.st_dev, made.st_ino):  # else it is a successor's
                os.unlink(address.path)

    return kept, address, remove


def _remove_stale(path: str) -> None:
    """Remove the socket of a process that is gone. Raises OSError: it is no socket, or somebody listens there."""
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "a file that is no socket is there")
    with _opened(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise OSError(errno.EADDRINUSE, "somebody listens there")


@contextlib.contextmanager
def _short(path: Path) -> Generator[str]:
    """Yield a path of at most 107 bytes that leads to the same place: by the open folder, where it is longer."""
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


@contextlib.contextmanager
def _opened(family: int) -> Generator[socket.socket]:
    """Yield a socket, which is closed in the end unless ``_kept`` took it."""
    with socket.socket(family, socket.SOCK_STREAM) as link:
        yield link


def _kept(link: socket.socket) -> socket.socket:
    return socket.socket(link.family, link.type, link.proto, fileno=link.detach())

"""Links that send and receive bytes within a time: a plain socket, or TLS on one.

Both raise TimeoutError when the time is over, EOFError when the peer has closed, and OSError else. A plain socket stays
blocking, with the kernel's own limits of time: on unix sockets one call receives all parts of a message
(MSG_WAITALL; over TCP that takes a fifth longer).
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import time
from collections.abc import Sequence

from .addresses import limit
from .frames import Bytes

BUFFERS_MAX = 1000
"""Most buffers of one call; the kernel takes 1024."""
JOIN_BYTES = 16 << 10
"""Size of a TLS record: smaller buffers are joined, since each call makes at least one."""


class PlainLink:
    """A connected blocking socket."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._limits_s: dict[int, float] = {}
        self._flags = socket.MSG_WAITALL if link.family == socket.AF_UNIX else 0

    def send(self, buffers: Sequence[Bytes], deadline_s: float | None) -> None:
        """Send buffers in order."""
        for begin in range(0, len(buffers), BUFFERS_MAX):
            rest = list(buffers[begin : begin + BUFFERS_MAX])
            while rest:
                self._limit(socket.SO_SNDTIMEO, deadline_s)
                try:
                    sent = self._link.sendmsg(rest, (), socket.MSG_NOSIGNAL)
                except BlockingIOError:
                    raise TimeoutError from None
                rest = _unsent(rest, sent)

    def receive_into(self, view: memoryview, deadline_s: float | None) -> None:
        """Fill a view."""
        done = 0
        while done < len(view):
            self._limit(socket.SO_RCVTIMEO, deadline_s)
            try:
                received = self._link.recv_into(view[done:], 0, self._flags)
            except BlockingIOError:
                raise TimeoutError from None
            if not received:
                raise EOFError
            done += received

    def close(self) -> None:
        self._link.close()

    def _limit(self, option: int, deadline_s: float | None) -> None:
        remaining_s = math.inf if deadline_s is None else deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        # a limit that is a little too long costs no further call: the deadline is looked at again
        if not remaining_s <= self._limits_s.get(option, math.nan) <= remaining_s * 1.1:
            limit(self._link, option, None if remaining_s == math.inf else remaining_s)
            self._limits_s[option] = remaining_s


class TlsLink:
    """A socket in TLS, whose handshake is done."""

    def __init__(self, link: ssl.SSLSocket) -> None:
        self._link = link

    def send(self, buffers: Sequence[Bytes], deadline_s: float | None) -> None:
        """Send buffers in order."""
        small: list[Bytes] = []
        small_bytes = 0
        for buffer in buffers:
            size = memoryview(buffer).nbytes
            if small and small_bytes + size > JOIN_BYTES:
                self._send(b"".join(small), deadline_s)
                small, small_bytes = [], 0
            if size > JOIN_BYTES:
                self._send(buffer, deadline_s)
            else:
                small.append(buffer)
                small_bytes += size
        if small:
            self._send(b"".join(small), deadline_s)

    def receive_into(self, view: memoryview, deadline_s: float | None) -> None:
        """Fill a view."""
        done = 0
        self._link.settimeout(_remaining_s(deadline_s))
        while done < len(view):
            received = self._link.recv_into(view[done:])
            if not received:
                raise EOFError
            done += received
            if deadline_s is not None:
                _remaining_s(deadline_s)

    def close(self) -> None:
        self._link.close()

    def _send(self, buffer: Bytes, deadline_s: float | None) -> None:
        self._link.settimeout(_remaining_s(deadline_s))
        self._link.sendall(buffer)


Link = PlainLink | TlsLink


def shut(link: socket.socket) -> None:
    """End all calls that other threads are in. The socket's owner has to close it."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(link, socket.SHUT_RDWR)  # that of an SSLSocket would drop its encryption first


def drain(link: socket.socket, time_s: float) -> None:
    """Send no more and drop what arrives, for a while: a peer that sends would else lose what was sent to it last."""
    deadline_s = time.monotonic() + time_s
    with contextlib.suppress(OSError):
        socket.socket.shutdown(link, socket.SHUT_WR)
        dropped = bytearray(JOIN_BYTES)
        while (remaining_s := deadline_s - time.monotonic()) > 0:
            limit(link, socket.SO_RCVTIMEO, remaining_s)
            if not socket.socket.recv_into(link, dropped):
                return


def deadline_of(timeout_s: float | None) -> float | None:
    """Return the time of the monotonic clock at which a time that begins now is over; None: never."""
    return None if timeout_s is None else time.monotonic() + timeout_s


def _remaining_s(deadline_s: float | None) -> float | None:
    if deadline_s is None:
        return None
    remaining_s = deadline_s - time.monotonic()
    if remaining_s <= 0:
        raise TimeoutError
    return remaining_s


def _unsent(buffers: list[Bytes], sent_bytes: int) -> list[Bytes]:
    """Return what is left of buffers of which so many bytes were sent."""
    for index, buffer in enumerate(buffers):
        size = memoryview(buffer).nbytes
        if sent_bytes < size:
            return [memoryview(buffer).cast("B")[sent_bytes:], *buffers[index + 1 :]]
        sent_bytes -= size
    return []

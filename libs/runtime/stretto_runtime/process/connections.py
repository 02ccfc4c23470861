"""Connections of a listener, bounded so that nobody keeps others out by connections that ask nothing.

uvicorn counts connections for ``limit_concurrency``, idle ones included, and waits for a request without a bound. Here
a connection is a stranger's until a request on it has presented a valid token. Of too many the oldest is closed, never
the newest: whoever comes and asks at once is answered, however many are open.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

log = structlog.get_logger("stretto.connections")
ADDRESS_MOST = 100
"""Number of characters that are kept of an address: a proxy may pass on any text."""
ACCEPTED = "accepted"
"""In the state of a request: a function of the caller's name, to be called once its token was found valid."""
LOOPBACK = "this machine"
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_LENGTHS = re.compile(rb"^(?:content-length|transfer-encoding)[ \t]*:", re.IGNORECASE | re.MULTILINE)
_LIST_OF_LENGTHS = re.compile(rb"^content-length[^\n]*,", re.IGNORECASE | re.MULTILINE)
_FOLDED = re.compile(rb"\n[ \t]")
"""A header that goes on in the next line, where a length could go on, too; no client of today sends one."""
_CREDENTIALS = struct.Struct("3i")
"""The kernel's answer to SO_PEERCRED: process, user, group."""


@dataclass(eq=False, slots=True)
class Slot:
    """One open connection. ``party``: whose it is; ``close`` ends it."""

    party: str
    close: Callable[[], None]


class Parties:
    """The open connections of each party: beyond ``each_most`` of one, or ``all_most``, the oldest of one is closed."""

    def __init__(self, each_most: int, all_most: int) -> None:
        self._each_most, self._all_most = each_most, all_most
        self._of: dict[str, dict[Slot, None]] = {}
        self._count = 0
        self._closed = 0

    def add(self, slot: Slot) -> None:
        """Add a connection; of too many, close the oldest of its party, or of the party that has most."""
        self._of.setdefault(slot.party, {})[slot] = None
        self._count += 1
        if len(self._of[slot.party]) > self._each_most:
            self._close_oldest(slot.party)
        elif self._count > self._all_most:
            self._close_oldest(max(self._of, key=lambda party: len(self._of[party])))

    def remove(self, slot: Slot) -> bool:
        """Remove a connection; returns whether it was there."""
        own = self._of.get(slot.party, {})
        if slot not in own:
            return False
        del own[slot]
        self._count -= 1
        if not own:
            del self._of[slot.party]
        return True

    def _close_oldest(self, party: str) -> None:
        self._closed += 1
        if self._closed.bit_count() == 1:  # the first, second, fourth …: a flood fills no log
            log.warning("of too many connections the oldest are closed", party=party, closed=self._closed)
        oldest = next(iter(self._of[party]))
        self.remove(oldest)
        oldest.close()


class Connections:
    """Open connections: at most ``each_most`` of one party, ``all_most`` of all strangers, and as many of all callers.

    A party is a caller, or a stranger: a network (``network_of``), or a process at the other end of a Unix socket.
    """

    def __init__(self, each_most: int, all_most: int, proxies: str = "") -> None:
        """``proxies``: addresses and networks without a bound here, separated by commas; ``*``: all are proxies."""
        self._trusted = [each.strip() for each in proxies.split(",") if each.strip()]
        self._strangers, self._callers = (Parties(each_most, all_most) for _ in range(2))

    def opened(self, address: str, close: Callable[[], None]) -> Slot:
        """Count a new connection, as a stranger's. It or an older one is closed later, once there are too many."""
        slot = Slot(network_of(address), close)
        if not self._is_proxy(address):
            self._strangers.add(slot)
        return slot

    def accepted(self, slot: Slot, caller: str) -> None:
        """Count a stranger's connection as one of a caller from now on; a proxy's, or one that ends, stays as it is."""
        if self._strangers.remove(slot):
            slot.party = caller
            self._callers.add(slot)

    def closed(self, slot: Slot) -> None:
        """Count the end of a connection."""
        if not self._strangers.remove(slot):
            self._callers.remove(slot)

    def _is_proxy(self, address: str) -> bool:
        if "*" in self._trusted or address in self._trusted:
            return True
        try:
            found = ipaddress.ip_address(address)
            return any(found in ipaddress.ip_network(each, strict=False) for each in self._trusted)
        except ValueError:  # a process at a socket
            return False


def network_of(address: str) -> str:
    """Return the part of an address that identifies one party: an IPv4 address, or the /64 network of an IPv6 one.

    All addresses of this machine's loopback are one party: whoever runs here has them all.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address[:ADDRESS_MOST]
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    if found.is_loopback:
        return LOOPBACK
    return str(found if found.version == 4 else ipaddress.ip_network((found, 64), strict=False))


class OneLength(h11.Connection):
    """A connection that refuses a request with two statements of its length, on which a proxy may take the other one.

    h11 takes equal lengths for one, and the chunks of a body before a length (RFC 9112, section 6.3).
    """

    def next_event(self) -> Any:
        """Return the next event, as h11 does. Raises RemoteProtocolError, also for two lengths."""
        if self.their_state is h11.IDLE:
            received = self.trailing_data[0]
            end = _END_OF_HEAD.search(received)
            head = received[: end.start()] if end is not None else b""
            if len(_LENGTHS.findall(head)) > 1 or _LIST_OF_LENGTHS.search(head) or _FOLDED.search(head):
                raise h11.RemoteProtocolError("a request has one length: one Content-Length, or Transfer-Encoding")
        return super().next_event()


def bounded(connections: Connections, headers_s: float) -> type[H11Protocol]:
    """Make uvicorn's protocol with two bounds: connections of one party, and time for the headers of a request."""

    class Bounded(H11Protocol):
        """A connection with bounds."""

        _slot: Slot
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            self.conn = OneLength(h11.SERVER)
            super().connection_made(transport)
            self._expect_headers()
            self._slot = connections.opened(self.client[0] if self.client else _process_of(transport), transport.abort)
            self.app_state = {**self.app_state, ACCEPTED: partial(connections.accepted, self._slot)}

        def connection_lost(self, exc: Exception | None) -> None:
            connections.closed(self._slot)
            self._stop_expecting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._stop_expecting()
            elif self._late is None and not self.transport.is_closing():
                self._expect_headers()  # headers of a further request; between requests, uvicorn's timer runs

        def _expect_headers(self) -> None:
            self._late = self.loop.call_later(headers_s, self.transport.abort)

        def _stop_expecting(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Bounded


def _process_of(transport: Any) -> str:
    """Return the process at the other end of a Unix socket, as a party."""
    link: socket.socket = transport.get_extra_info("socket")
    pid, _, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return f"process {pid}"

"""Connections of the listener, bounded so that one address cannot keep others out by connections that ask nothing.

uvicorn counts connections for ``limit_concurrency``, idle ones included, and waits for a request without a bound.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections import Counter
from typing import Any

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from .callers import network_of

log = structlog.get_logger("stretto.gateway")
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_LENGTHS = re.compile(rb"^(?:content-length|transfer-encoding)[ \t]*:", re.IGNORECASE | re.MULTILINE)
_LIST_OF_LENGTHS = re.compile(rb"^content-length[^\n]*,", re.IGNORECASE | re.MULTILINE)


class Addresses:
    """Open connections of each network (``network_of``): at most ``most``, without a bound for trusted ``proxies``.

    ``proxies``: addresses and networks separated by commas; ``*``: every connection comes through a proxy.
    """

    def __init__(self, most: int, proxies: str = "") -> None:
        self._most = most
        self._trusted = [each.strip() for each in proxies.split(",") if each.strip()]
        self._open: Counter[str] = Counter()
        self._full: set[str] = set()

    def open(self, address: str) -> bool:
        """Count a new connection; False if its network has too many with it. ``close`` has to be called in both
        cases."""
        network = network_of(address)
        self._open[network] += 1
        if self._open[network] <= self._most or self._is_proxy(address):
            return True
        if network not in self._full:
            self._full.add(network)
            log.warning("connections are refused: one address has too many", address=network, most=self._most)
        return False

    def close(self, address: str) -> None:
        """Count the end of a connection."""
        network = network_of(address)
        self._open[network] -= 1
        if self._open[network] <= self._most // 2:
            self._full.discard(network)
        if self._open[network] <= 0:
            del self._open[network]

    def _is_proxy(self, address: str) -> bool:
        if "*" in self._trusted or address in self._trusted:
            return True
        try:
            found = ipaddress.ip_address(address)
            return any(found in ipaddress.ip_network(each, strict=False) for each in self._trusted)
        except ValueError:  # the path of a socket, or any text of a proxy
            return False


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
            if len(_LENGTHS.findall(head)) > 1 or _LIST_OF_LENGTHS.search(head):
                raise h11.RemoteProtocolError("a request has one length: one Content-Length, or Transfer-Encoding")
        return super().next_event()


def bounded(addresses: Addresses, headers_s: float) -> type[H11Protocol]:
    """Make uvicorn's protocol with two bounds: connections of one address, and time for the headers of a request."""

    class Bounded(H11Protocol):
        """A connection with bounds."""

        _address = ""
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            self.conn = OneLength(h11.SERVER)
            super().connection_made(transport)
            self._address = self.client[0] if self.client else ""
            if addresses.open(self._address):
                self._expect_headers()
            else:
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            addresses.close(self._address)
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

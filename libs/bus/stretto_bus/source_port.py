"""Connections on this machine, also while another program has used up the ports that the kernel gives to connections.

One program can hold all of them, and then nobody connects from a port of the kernel's choice. The ports below those,
and all addresses of loopback but the first, are left: a local pod may choose neither (``landlock.py``).
"""

from __future__ import annotations

import asyncio
import errno
from urllib.parse import ParseResult

from nats.aio.transport import TcpTransport
from stretto_wire.surroundings import chance

LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 32_768)
"""The ports to choose from: below those that Linux gives to outgoing connections (32768 to 60999)."""


async def open_line(host: str, port: int, limit: int = 2**16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect. ``limit``: of the reader, as in asyncio. Raises OSError."""
    try:
        return await asyncio.open_connection(host, port, limit=limit)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL or host != LOOPBACK:
            raise
    address = ".".join(["127", *(str(chance().randrange(1, 255)) for _ in range(3))])
    return await asyncio.open_connection(host, port, limit=limit, local_addr=(address, chance().choice(PORTS)))


class Transport(TcpTransport):
    """The line of nats-py, by ``open_line``. A cancellation ends it, where ``asyncio.wait_for`` may lose one."""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        async with asyncio.timeout(connect_timeout):
            opened = await open_line(uri.hostname or "", uri.port or 0, buffer_size)
        self._bare_io_reader, self._bare_io_writer = opened
        self._io_reader, self._io_writer = self._bare_io_reader, self._bare_io_writer

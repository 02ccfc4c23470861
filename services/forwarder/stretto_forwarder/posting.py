"""Posts over HTTP to allowed addresses. Names are resolved here, and only a checked address is connected to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import httpcore
from stretto_runtime import SettingsFault

from stretto_forwarder.retrying import AttemptOutcome, retry_after_s
from stretto_forwarder.settings import Network

READ_BYTES = 1 << 16
"""The most that is read of an answer. An answer that is read to its end lets its connection be used again."""
TRANSLATED = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Forbidden(Exception):
    """An address that may not be posted to."""


class Guard(httpcore.AsyncNetworkBackend):
    """Connects to public addresses, and to those of ``networks``."""

    def __init__(self, networks: Sequence[Network], public: bool) -> None:
        """With ``public`` false, connect to ``networks`` only."""
        self._networks = networks
        self._public = public
        self._inner = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect. Raises Forbidden if any of the host's addresses is not allowed: a later attempt could reach it."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(f"{host} is not known: {error.strerror or error}") from error
        addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        for address in addresses:
            if not allowed(address, self._networks, self._public):
                lacks = "is not public" if self._public else "is in no network that may be posted to in plain HTTP"
                raise Forbidden(
                    f"{host} is at {address}, which {lacks}; to allow it, add its network to "
                    "STRETTO_FORWARDER_ALLOW_NETWORKS"
                )
        fault: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return await self._inner.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                fault = error
        raise fault

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def allowed(address: Address, networks: Sequence[Network], public: bool) -> bool:
    """Return True if an address may be posted to. An address that maps to an IPv4 address follows that one."""
    if any(address in network for network in networks):
        return True
    inner: Address | None = None
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in TRANSLATED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if inner is not None:
        return allowed(inner, networks, public)
    return public and address.is_global and not address.is_multicast


class Poster:
    """Posts to one endpoint. It follows no redirects and uses no proxy of the environment."""

    def __init__(self, url: str, networks: Sequence[Network], ca: Path | None, timeout_s: float) -> None:
        """Raises SettingsFault if the file of certificates cannot be used."""
        try:
            context = ssl.create_default_context(cafile=ca)
        except OSError as error:
            raise SettingsFault(f"STRETTO_FORWARDER_CA={ca} cannot be used: {error}; give a file in PEM") from None
        self._url = url
        self._timeout_s = timeout_s
        guard = Guard(networks, public=urlsplit(url).scheme == "https")
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context, network_backend=guard, max_connections=1, keepalive_expiry=30.0
        )

    async def post(self, headers: dict[str, str], body: bytes, path: str = "", method: str = "POST") -> AttemptOutcome:
        """Make one attempt, at a path below the endpoint's url. Never raises."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._post(headers, body, self._url.rstrip("/") + path if path else self._url, method)
        except TimeoutError:
            return AttemptOutcome(0, f"no answer within {self._timeout_s:g} s")
        except Forbidden as error:
            return AttemptOutcome(0, str(error))
        except Exception as error:  # a fault of one endpoint, of any kind, must not stop the others
            return AttemptOutcome(0, f"{type(error).__name__}: {error}"[:500])

    async def _post(self, headers: dict[str, str], body: bytes, url: str, method: str) -> AttemptOutcome:
        async with self._pool.stream(method, url, headers=list(headers.items()), content=body) as answer:
            found = {name.lower(): value for name, value in answer.headers}
            read = b""
            async for chunk in answer.aiter_stream():
                read += chunk
                if len(read) > READ_BYTES:
                    break
        reason = f"HTTP {answer.status}"
        if 300 <= answer.status < 400:
            reason += ": redirects are not followed"
        retry_after = found.get(b"retry-after", b"").decode("ascii", "replace")
        return AttemptOutcome(answer.status, reason, retry_after_s(retry_after, time.time()), read)

    async def close(self) -> None:
        await self._pool.aclose()

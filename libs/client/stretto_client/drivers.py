"""Drivers: the connections by httpx, for asyncio and blocking. They decide nothing."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import httpx

from .errors import Unusable
from .places import AUTHORITY, Place
from .protocol.connection import Answer, GatewayRequest, TransportFault

TIMEOUT_S = 20.0
CONNECT_S = 10.0
SILENCE_S = 60.0
"""An event stream that is silent for longer is broken: the gateway sends a comment more often."""
PATH_BYTES_MOST = 100
"""Longest path of a socket that is given to the kernel as it is (its own bound: 107 bytes)."""
_IN_TURN = (socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(CONNECT_S), 0))
"""Option by which the kernel queues a client at a full Unix socket: with a timeout of Python's it is refused."""


async def _suspended(duration_s: float) -> None:
    import asyncio  # a command, which blocks, starts sooner without it

    await asyncio.sleep(duration_s)


class AsyncDriver:
    """A connection for a running event loop: it suspends the coroutine that waits for it."""

    _connect_s: float | None = CONNECT_S

    def __init__(
        self,
        place: Place,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = _suspended,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place = place
        self._sleep, self._clock = sleep, clock
        self._folders = ExitStack()
        if transport is None:
            where = _socket_path(place.socket, self._folders)
            transport = httpx.AsyncHTTPTransport(verify=_trusted(place), trust_env=False, uds=where)
        self._http = httpx.AsyncClient(
            base_url=f"{_spoken(place)}/api/v1",
            headers={"Authorization": f"Bearer {place.token}"} if place.token else {},
            trust_env=False,
            transport=transport,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()
        self._folders.close()

    async def send(self, request: GatewayRequest) -> Answer:
        """Return the answer to a request. Raises TransportFault."""
        with _faults(self.place):
            response = await self._http.send(self._built(request, TIMEOUT_S))
        return self._answer(response, response.content)

    @asynccontextmanager
    async def stream(self, request: GatewayRequest) -> AsyncGenerator[tuple[Answer, AsyncIterator[bytes]]]:
        """Open an answer and the parts of its body; only an error has a ``content``. Raises TransportFault."""
        with _faults(self.place):
            response = await self._http.send(self._built(request, SILENCE_S), stream=True)
        async with aclosing(response):
            with _faults(self.place):
                content = await response.aread() if response.status_code >= 400 else b""
            async with aclosing(self._parts(response)) as parts:
                yield self._answer(response, content), parts

    async def pause(self, duration_s: float) -> None:
        """Wait for a time."""
        await self._sleep(duration_s)

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        return self._clock()

    async def _parts(self, response: httpx.Response) -> AsyncGenerator[bytes]:
        with _faults(self.place):
            async for part in response.aiter_bytes():
                yield part

    def _built(self, request: GatewayRequest, read_s: float) -> httpx.Request:
        return self._http.build_request(
            request.method,
            request.path,
            params=request.params or None,
            headers=request.headers,
            content=request.content,
            timeout=httpx.Timeout(TIMEOUT_S, connect=self._connect_s, read=read_s),
        )

    def _answer(self, response: httpx.Response, content: bytes) -> Answer:
        return Answer(response.status_code, response.headers, content, str(response.request.url), self.place.url)


class Driver(AsyncDriver):
    """A connection that blocks, and never suspends the coroutine that waits for it. It may be used by several threads.

    httpx needs an event loop only in its own transport for asyncio, in place of which a blocking one stands here.
    """

    def __init__(
        self,
        place: Place,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        async def pause(duration_s: float) -> None:
            sleep(duration_s)

        folders = ExitStack()
        where = _socket_path(place.socket, folders)
        options = None if where is None else [_IN_TURN]
        inner = transport or httpx.HTTPTransport(
            verify=_trusted(place), trust_env=False, uds=where, socket_options=options
        )
        super().__init__(place, _BlockingTransport(inner), pause, clock)
        self._folders = folders
        self._connect_s = CONNECT_S if where is None else None


class _BlockingTransport(httpx.AsyncBaseTransport):
    """A blocking transport in the form of one for asyncio."""

    def __init__(self, inner: httpx.BaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        found = self._inner.handle_request(request)
        assert isinstance(found.stream, httpx.SyncByteStream)
        stream = _BlockingStream(found.stream)
        return httpx.Response(found.status_code, headers=found.headers, stream=stream, extensions=found.extensions)

    async def aclose(self) -> None:
        self._inner.close()


class _BlockingStream(httpx.AsyncByteStream):
    """The body of a blocking transport's answer."""

    def __init__(self, inner: httpx.SyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._inner:
            yield part

    async def aclose(self) -> None:
        self._inner.close()


@contextmanager
def _faults(place: Place) -> Generator[None]:
    """Raise the protocol's fault in place of an error of httpx."""
    try:
        yield
    except httpx.ConnectError as error:
        kind = "certificate" if "CERTIFICATE_VERIFY_FAILED" in str(error) else "nobody"
        raise TransportFault(kind, f"{place.socket or place.url}: {error}") from error
    except (httpx.TransportError, httpx.InvalidURL) as error:
        broken = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.ReadTimeout)
        raise TransportFault("broken" if broken else "other", f"{place.url}: {type(error).__name__} {error}") from error


def _spoken(place: Place) -> str:
    """Return the URL to speak with: over its socket a gateway speaks without TLS, whatever it does at its port."""
    return place.url if place.socket is None else str(httpx.URL(place.url).copy_with(scheme="http"))


def _socket_path(path: Path | None, folders: ExitStack) -> str | None:
    """Return a path to a socket that the kernel takes: a long one by its open folder, which ``folders`` closes."""
    if path is None or len(os.fsencode(path)) <= PATH_BYTES_MOST:
        return None if path is None else str(path)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    folders.callback(os.close, folder)
    return f"/proc/self/fd/{folder}/{path.name}"


def _trusted(place: Place) -> ssl.SSLContext | bool:
    """Return the certificates to trust; True: the system's; False: none, as over a socket. Raises Unusable for a file
    without certificates."""
    if place.socket is not None:
        return False
    try:
        return ssl.create_default_context(cafile=place.authority) if place.authority else True
    except OSError as error:
        raise Unusable(f"{AUTHORITY}={place.authority} cannot be used: {error.strerror or error}") from None

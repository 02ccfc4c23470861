"""Drivers: they perform the protocol's commands by httpx, one blocking and one for asyncio, and decide nothing."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, closing
from typing import Any, TypeVar

import httpx

from .errors import Refused, Unusable
from .places import AUTHORITY, Place
from .protocol.connection import (
    Answer,
    Command,
    Course,
    Emit,
    Now,
    Open,
    Pause,
    Read,
    Request,
    Send,
    Steps,
    TransportFault,
)

TIMEOUT_S = 20.0
CONNECT_S = 10.0
SILENCE_S = 60.0
"""An event stream that is silent for longer is broken: the gateway sends a comment more often."""
_TIMEOUT, _STREAM_TIMEOUT = httpx.Timeout(TIMEOUT_S), httpx.Timeout(CONNECT_S, read=SILENCE_S)
T = TypeVar("T")


def fault_of(error: httpx.TransportError | httpx.InvalidURL, url: str) -> TransportFault:
    """Return the protocol's fault for an error of httpx."""
    if isinstance(error, httpx.ConnectError):
        kind = "certificate" if "CERTIFICATE_VERIFY_FAILED" in str(error) else "nobody"
        return TransportFault(kind, f"{url}: {error}")
    broken = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.ReadTimeout)
    return TransportFault("broken" if broken else "other", f"{url}: {type(error).__name__} {error}")


def options_of(place: Place) -> dict[str, Any]:
    """Return the options of an httpx client. Raises Unusable for a file without certificates."""
    try:
        verify = ssl.create_default_context(cafile=place.authority) if place.authority else True
    except OSError as error:
        raise Unusable(f"{AUTHORITY}={place.authority} cannot be used: {error.strerror or error}") from None
    headers = {"Authorization": f"Bearer {place.token}"} if place.token else {}
    return {
        "base_url": f"{place.url}/api/v1",
        "headers": headers,
        "trust_env": False,
        "verify": verify,
    }


def _built(
    http: httpx.Client | httpx.AsyncClient, request: Request, timeout: httpx.Timeout = _TIMEOUT
) -> httpx.Request:
    return http.build_request(
        request.method,
        request.path,
        params=httpx.QueryParams(list(request.params)) if request.params else None,
        headers=dict(request.headers),
        content=request.content,
        timeout=timeout,
    )


def _answer(response: httpx.Response, content: bytes) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, content, str(response.request.url))


class Driver:
    """Performs commands and blocks meanwhile, whether or not an event loop runs in this thread."""

    def __init__(
        self,
        place: Place,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place = place
        self._http = httpx.Client(**options_of(place), transport=transport)
        self._sleep, self._clock = sleep, clock

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def run(self, steps: Steps[T], emit: Callable[[Any], None] | None = None) -> T:
        """Return the result of an operation; ``emit`` gets the items that it emits."""
        items = self._items(course := Course(steps))
        with closing(items):
            for item in items:
                if emit is not None:
                    emit(item)
        return course.result

    def iterate(self, steps: Steps[Any]) -> Generator[Any]:
        """Yield what an operation emits."""
        yield from self._items(Course(steps))

    def _items(self, course: Course[Any]) -> Generator[Any]:
        opened: list[tuple[httpx.Response, Iterator[bytes]]] = []
        try:
            while (command := course.command) is not None:
                if isinstance(command, Emit):
                    yield command.item
                    course.answer(None)
                    continue
                try:
                    value = self._performed(command, opened)
                except (httpx.TransportError, httpx.InvalidURL) as error:
                    course.fail(fault_of(error, self.place.url))
                else:
                    course.answer(value)
        except Refused as refused:
            raise refused.at(self.place.url) from None
        finally:
            _close(opened)
            course.close()

    def _performed(self, command: Command, opened: list[tuple[httpx.Response, Iterator[bytes]]]) -> object:
        match command:
            case Send(request):
                response = self._http.send(_built(self._http, request))
                return _answer(response, response.content)
            case Open(request):
                _close(opened)
                response = self._http.send(_built(self._http, request, _STREAM_TIMEOUT), stream=True)
                if response.status_code >= 400:
                    with closing(response):
                        return _answer(response, response.read())
                opened.append((response, response.iter_bytes()))
                return _answer(response, b"")
            case Read():
                return next(opened[-1][1], b"")
            case Pause(duration_s):
                return self._sleep(duration_s)
            case Now():
                return self._clock()
            case Emit():
                raise AssertionError("items are yielded")


def _close(opened: list[tuple[httpx.Response, Iterator[bytes]]]) -> None:
    while opened:
        response, _ = opened.pop()
        response.close()


class AsyncDriver:
    """Performs commands in a running event loop."""

    def __init__(
        self,
        place: Place,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.place = place
        self._http = httpx.AsyncClient(**options_of(place), transport=transport)
        self._sleep, self._clock = sleep, clock

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def run(self, steps: Steps[T], emit: Callable[[Any], None] | None = None) -> T:
        """Return the result of an operation; ``emit`` gets the items that it emits."""
        items = self._items(course := Course(steps))
        async with aclosing(items):
            async for item in items:
                if emit is not None:
                    emit(item)
        return course.result

    async def iterate(self, steps: Steps[Any]) -> AsyncGenerator[Any]:
        """Yield what an operation emits."""
        async with aclosing(self._items(Course(steps))) as items:
            async for item in items:
                yield item

    async def _items(self, course: Course[Any]) -> AsyncGenerator[Any]:
        opened: list[tuple[httpx.Response, AsyncIterator[bytes]]] = []
        try:
            while (command := course.command) is not None:
                if isinstance(command, Emit):
                    yield command.item
                    course.answer(None)
                    continue
                try:
                    value = await self._performed(command, opened)
                except (httpx.TransportError, httpx.InvalidURL) as error:
                    course.fail(fault_of(error, self.place.url))
                else:
                    course.answer(value)
        except Refused as refused:
            raise refused.at(self.place.url) from None
        finally:
            await _aclose(opened)
            course.close()

    async def _performed(self, command: Command, opened: list[tuple[httpx.Response, AsyncIterator[bytes]]]) -> object:
        match command:
            case Send(request):
                response = await self._http.send(_built(self._http, request))
                return _answer(response, response.content)
            case Open(request):
                await _aclose(opened)
                response = await self._http.send(_built(self._http, request, _STREAM_TIMEOUT), stream=True)
                if response.status_code >= 400:
                    async with aclosing(response):
                        return _answer(response, await response.aread())
                opened.append((response, response.aiter_bytes()))
                return _answer(response, b"")
            case Read():
                return await anext(opened[-1][1], b"")
            case Pause(duration_s):
                return await self._sleep(duration_s)
            case Now():
                return self._clock()
            case Emit():
                raise AssertionError("items are yielded")


async def _aclose(opened: list[tuple[httpx.Response, AsyncIterator[bytes]]]) -> None:
    while opened:
        response, _ = opened.pop()
        await response.aclose()

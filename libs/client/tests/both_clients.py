"""The two clients behind one face, so that one table of tests runs through both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import httpx
from stretto_client.aio import AsyncClient, AsyncJob
from stretto_client.client import Client, Job
from stretto_client.drivers import AsyncDriver, Driver
from stretto_client.places import Place
from stretto_wire import JobSpec
from stretto_wire.rest.views import JobView

Handler = Callable[[httpx.Request], httpx.Response]
VIEW = JobView(
    "x", "training", JobSpec.parse({"name": "x", "model": {"entry": "m:M"}, "dataset": {"samples": 1}}), 0.0, "ada"
)


class Blocking:
    """An object of the client for asyncio: each call runs to its end in an event loop."""

    def __init__(self, inner: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._inner, self._loop = inner, loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._called(found) if inspect.ismethod(found) else found

    def _called(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            made = method(*given, **named)
            if inspect.isasyncgen(made):
                return self._iterated(made)
            result = self._loop.run_until_complete(made) if inspect.isawaitable(made) else made
            return Blocking(result, self._loop) if isinstance(result, AsyncJob) else result

        return call

    def _iterated(self, items: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(anext(items))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(items.aclose())


def job_of(client: Any) -> Any:
    """Return a job of a client that never read it."""
    if isinstance(client, Blocking):
        return Blocking(AsyncJob(client._inner._driver, VIEW), client._loop)
    return Job(client._driver, VIEW)


class Clock:
    """A clock that only pauses advance."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.pauses_s.append(duration_s)

    async def sleep_async(self, duration_s: float) -> None:
        self.sleep(duration_s)


def client_of(
    kind: str, loop: asyncio.AbstractEventLoop, place: Place, handler: Handler | None = None, clock: Clock | None = None
) -> Any:
    """Return the client of this kind, blocking or async, as a blocking one. ``handler`` stands for the network."""
    transport = httpx.MockTransport(handler) if handler else None
    if kind == "blocking":
        return Client(Driver(place, transport, **({"sleep": clock.sleep, "clock": clock} if clock else {})))
    times: dict[str, Any] = {"sleep": clock.sleep_async, "clock": clock} if clock else {}
    return Blocking(AsyncClient(AsyncDriver(place, transport, **times)), loop)

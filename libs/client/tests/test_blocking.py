"""The blocking client runs coroutines without an event loop, wherever it is called."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

import httpx
import pytest
from both_clients import Handler, job_of
from stretto_client.blocking import run
from stretto_client.client import Client
from stretto_client.drivers import Driver
from stretto_client.places import Place

Speaking = Callable[[Handler], Any]


class Endless(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A stream of events without an end, which knows whether it is open."""

    def __init__(self) -> None:
        self.is_open = True

    def __iter__(self) -> Iterator[bytes]:
        for seq in itertools.count(1):
            yield f"id: {seq}\nevent: shard-leased\ndata: {{}}\n\n".encode()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self:
            yield part

    def close(self) -> None:
        self.is_open = False

    async def aclose(self) -> None:
        self.close()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=self)


def test_a_generator_that_is_closed_early_closes_its_connection(speaking_to: Speaking) -> None:
    body = Endless()
    events = speaking_to(body).events()
    assert [next(events).id for _ in range(3)] == [1, 2, 3]
    assert body.is_open
    events.close()
    assert not body.is_open
    with pytest.raises(StopIteration):
        next(events)


def test_a_generator_that_is_left_alone_closes_its_connection() -> None:
    body = Endless()
    for event in Client(Driver(Place("http://gateway"), httpx.MockTransport(body))).events():
        assert event.id == 1
        break
    assert not body.is_open


def test_a_generator_outlives_the_event_loop_in_which_it_began() -> None:
    events = Client(Driver(Place("http://gateway"), httpx.MockTransport(Endless()))).events()

    async def cell() -> int:
        return next(events).id

    assert [asyncio.run(cell()), next(events).id, asyncio.run(cell())] == [1, 2, 3]


def test_an_interrupted_wait_ends_at_once() -> None:
    """Case: Ctrl-C while a job trains. Method: the pause raises it, as a signal does."""

    def sleep(duration_s: float) -> None:
        raise KeyboardInterrupt

    busy = httpx.MockTransport(lambda request: httpx.Response(429))
    client = Client(Driver(Place("http://gateway"), busy, sleep))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            job_of(client).wait()


def test_what_waits_for_an_event_loop_is_an_error() -> None:
    class Suspended:
        def __await__(self) -> Generator[None]:
            yield

    async def operation() -> None:
        await Suspended()

    with pytest.raises(RuntimeError, match="waits for an event loop"):
        run(operation())

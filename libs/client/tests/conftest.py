"""Both clients, of the real gateway and of a function in place of the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from both_clients import Clock, Handler, client_of
from installed_gateway import Installed
from stretto_client.places import Place, place_of

Speaking = Callable[[Handler], Any]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.run_until_complete(made.shutdown_asyncgens())
    made.close()


@pytest.fixture(params=["blocking", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def client(kind: str, loop: asyncio.AbstractEventLoop, installed: Installed) -> Iterator[Any]:
    """Each of the two clients, of the real gateway."""
    made = client_of(kind, loop, place_of(folder=installed.folder))
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def speaking_to(kind: str, loop: asyncio.AbstractEventLoop, clock: Clock) -> Speaking:
    """Each of the two clients, of a function in place of the network."""
    return lambda handler: client_of(kind, loop, Place("http://gateway", "t"), handler, clock)

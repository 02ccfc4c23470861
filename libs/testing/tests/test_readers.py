"""The reader of a simulation: it tells when the client library gives up although a gateway is there."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from stretto_gateway.problems import Problem
from stretto_gateway.streams.continuity import BreakSignal
from stretto_gateway.streams.stored_events import StoredEvent
from stretto_testing.processes.readers import EventReader
from stretto_testing.simulation import Simulation

ALIVE = SimpleNamespace(is_dead=False)


class Source:
    """A source with an event, whose text is ``data``."""

    def __init__(self, data: str) -> None:
        self.breaks = BreakSignal()
        self._data = data

    async def kept_of(self, _place: Any) -> None:
        return None

    async def follow(self, *_: Any) -> AsyncGenerator[StoredEvent]:
        yield StoredEvent(1, 1.0, "t", "s", "job-cancelled", "a", None, self._data)


class Views:
    """Views of a gateway that still reads the stream."""

    @property
    def source(self) -> Source:
        raise Problem(503, "not-ready", "it reads the stream")


def gateway(views: Any, is_ready: bool) -> Any:
    return SimpleNamespace(gateway=SimpleNamespace(views=views, follower=SimpleNamespace(ready=is_ready)))


def followed(*gateways: Any) -> EventReader:
    """Follow until the client library gives up."""
    reader = EventReader(lambda: [(ALIVE, each) for each in gateways])  # type: ignore[list-item]
    with Simulation(0) as simulation:
        simulation.run(reader.follow())
    return reader


def test_a_frame_that_no_client_can_read_is_told() -> None:
    (error,) = followed(gateway(SimpleNamespace(source=Source("{")), True)).given_up
    assert "no event" in error


@pytest.mark.parametrize("gateways", [(), (gateway(Views(), False),)])
def test_a_client_that_gives_up_where_no_gateway_is_ready_is_right(gateways: tuple[Any, ...]) -> None:
    assert followed(*gateways).given_up == []

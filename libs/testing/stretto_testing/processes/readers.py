"""A reader outside that follows all events by gateways, as the client library does: what it was told is what it knows.

HTTP is left out. No fault hits the reader; its stream breaks with the process of its gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from stretto_client.errors import ClientError
from stretto_client.protocol.connection import Answer, GatewayRequest, TransportFault
from stretto_client.protocol.events import END_LOST, events
from stretto_gateway.http import event_stream
from stretto_gateway.problems import Problem
from stretto_gateway.streams.stored_events import Selection
from stretto_wire.surroundings import chance, monotonic_s

from stretto_testing.nodes import SimulatedProcess
from stretto_testing.processes.gateways import SimulatedGateway

KEEPALIVE_S, LOOKS_EVERY_S = 15.0, 1.0
STREAM = {"content-type": "text/event-stream"}
Gateways = Callable[[], list[tuple[SimulatedProcess, SimulatedGateway]]]
"""The gateways that run, each with its process"""


class GatewayLine:
    """A connection of the client library to any of the gateways that run."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways
        self.was_ready = False
        """The gateway that was asked last was ready"""

    @asynccontextmanager
    async def stream(self, request: GatewayRequest) -> AsyncGenerator[tuple[Answer, AsyncIterator[bytes]]]:
        node, gateway = self._any()
        place = event_stream.place_of(request.headers["Last-Event-ID"], None)
        try:
            source = gateway.gateway.views.source if gateway.gateway is not None else None
        except Problem:
            source = None
        self.was_ready = source is not None
        if source is None:
            raise TransportFault("broken", "it is not ready")
        frames = event_stream.stream(source, place, Selection(), True, KEEPALIVE_S, _allowed)
        yield Answer(200, STREAM, b""), _while_alive(node, frames)

    async def send(self, request: GatewayRequest) -> Answer:
        _, gateway = self._any()
        self.was_ready = gateway.gateway is not None and gateway.gateway.follower.ready
        return Answer(200, {}, b'{"ready": true}' if self.was_ready else b'{"ready": false}')

    def _any(self) -> tuple[SimulatedProcess, SimulatedGateway]:
        if not (found := self._gateways()):
            self.was_ready = False
            raise TransportFault("nobody", "no gateway runs")
        return chance().choice(found)

    async def pause(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)

    def now(self) -> float:
        return monotonic_s()


async def _while_alive(node: SimulatedProcess, frames: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield frames as long as the process lives that sends them. Raises TransportFault."""
    while True:
        pending = asyncio.ensure_future(anext(frames))
        while not (await asyncio.wait([pending], timeout=LOOKS_EVERY_S))[0]:
            if node.is_dead:
                pending.cancel()
                raise TransportFault("broken", "the gateway has died")
        try:
            yield pending.result()
        except StopAsyncIteration:
            return


async def _allowed() -> bool:
    return True


class EventReader:
    """Somebody who follows all events. ``known``: sequence -> name and job of each event that counts."""

    def __init__(self, gateways: Gateways) -> None:
        self.known: dict[int, tuple[str, str]] = {}
        self.given_up: list[str] = []
        """The errors with which the client library gave up although a gateway was ready"""
        self._line = GatewayLine(gateways)

    async def run(self) -> None:
        """Follow for ever; read anew whenever the client library gives up."""
        while True:
            await self.follow()
            await asyncio.sleep(LOOKS_EVERY_S)

    async def follow(self) -> None:
        """Follow from the first event on, until the client library gives up."""
        self.known.clear()
        try:
            async for event in events(self._line, None, 0, True, (), has_answered=True):
                if event.name == END_LOST:
                    self.known = {seq: what for seq, what in self.known.items() if seq <= event.id}
                else:
                    self.known[event.id] = event.name, event.job
        except ClientError as error:
            if self._line.was_ready:
                self.given_up.append(str(error))

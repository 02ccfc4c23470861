"""A service on a real server, driven from outside its event loop, as generated tests need it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import stretto_wire as wire
from stretto_bus import Client
from stretto_bus.client import Event
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_runtime import Service, Settings, serve

T = TypeVar("T")


class DrivenService:
    """One service, and a client of the same server."""

    def __init__(self, folder: Path, service: type[Service], settings: type[Settings]) -> None:
        self._loop = asyncio.Runner()
        self._server = EmbeddedServer(folder / "nats", secured=False)
        self.client: Client
        self._stop: asyncio.Event
        self._task: asyncio.Task[None]
        self.do(self._start(folder, service, settings), 30)

    def do(self, work: Coroutine[Any, Any, T], timeout_s: float = 60.0) -> T:
        """Run ``work`` in the event loop of the service and return its result."""
        return self._loop.run(asyncio.wait_for(work, timeout_s))

    async def _start(self, folder: Path, service: type[Service], settings: type[Settings]) -> None:
        await self._server.start()
        self.client = await Client.connect(self._server.url)
        await provision(self.client.bus)
        self._stop = asyncio.Event()
        running = service(settings(nats_url=self._server.url, state_folder=folder / "state"))
        self._task = asyncio.create_task(serve(running, self._stop))

    def end(self) -> None:
        async def leave() -> None:
            self._stop.set()
            await self._task
            await self.client.close()

        self.do(leave(), 20)
        self._server.stop()
        self._loop.close()

    async def store(self, subject: str, body: bytes, message_id: str) -> int:
        """Put raw bytes into the stream and return their sequence."""
        return await self.client.bus.store_surely(subject, body, {"Nats-Msg-Id": message_id}, 5)

    async def set_aside(self, seq: int) -> Event:
        """Wait for the dead letter of a stored message and return it."""
        while True:
            for letter in await self.client.dead_letters():
                if letter.headers["seq"] == str(seq):
                    return letter
            await asyncio.sleep(0.02)

    def faults(self) -> list[str]:
        """Return the errors of messages that broke a machine instead of being refused by it."""
        letters = self.do(self.client.dead_letters())
        return [each.headers["error"] for each in letters if each.headers["reason"] == "fault"]


def is_of_the_wire(subject: str, body: bytes) -> bool:
    try:
        wire.parse(subject, body)
    except wire.WireError:
        return False
    return True

"""A real gateway process on a real nats-server, for the tests that talk to one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import stretto_wire as wire
from stretto_bus import Client
from stretto_installation.provision import make
from stretto_installation.server import EmbeddedServer
from stretto_installation.settings import StreamsSettings
from warm_processes import WarmProcess, WarmProcesses

from tests.waits import until

T = TypeVar("T")
AGE_NS = 100_000_000
START_S = 60.0
GATEWAYS = WarmProcesses("warm_gateway")
"""Gateways start as forks: the imports and routes of one take 3 s of CPU. It ends with the tests."""


@dataclass
class Running:
    """Where the gateway is, and how to reach the bus beside it."""

    url: str
    token: str
    server: EmbeddedServer
    folder: Path
    process: WarmProcess
    settings: dict[str, str] = field(default_factory=dict[str, str])

    def http(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=60,
            trust_env=False,
        )

    async def operator(self) -> Client:
        return await Client.connect(self.server.url, self.server.login())

    def publish(self, *messages: Any) -> None:
        """Publish events as the services that own them."""

        async def publish(client: Client) -> None:
            for message in messages:
                await client.publish(message)

        self.by_operator(publish)

    def age_out(self) -> None:
        """Let the stream lose every event that it has."""
        self.by_operator(age_out)

    def by_operator(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Let the operator's client do something, in a loop of its own: the caller's thread may have one."""

        async def run() -> T:
            client = await self.operator()
            try:
                return await work(client)
            finally:
                await client.close()

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, run()).result()

    def restart(self) -> None:
        """End the gateway and start another on the same stream."""
        self.process.terminate()
        self.process.wait(60)
        (self.folder / "run" / "gateway.json").unlink()
        self.process, self.url = start_gateway(self.server, self.folder, self.settings)


def start_gateway(server: EmbeddedServer, folder: Path, settings: dict[str, str]) -> tuple[WarmProcess, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("STRETTO_")}
    environment |= server.environment("gateway")
    environment |= {"STRETTO_STATE_FOLDER": str(folder), "STRETTO_GATEWAY_CALL_TIMEOUT_S": "0.5"}
    environment |= {"STRETTO_GATEWAY_RATE_PER_S": "0", **settings}
    with (folder / "gateway.log").open("ab") as log:
        process = GATEWAYS.start("-m", "stretto_gateway", environment=environment, stdout=log, stderr=log)
    deadline = time.monotonic() + START_S
    where = folder / "run" / "gateway.json"
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, httpx.HTTPError):
            found = json.loads(where.read_text())
            url = f"{found['scheme']}://{found['host']}:{found['port']}"
            if httpx.get(f"{url}/readyz", trust_env=False, verify=False, timeout=60).status_code == 200:
                return process, url
        time.sleep(0.02)
    process.kill()
    raise AssertionError((folder / "gateway.log").read_text())


@contextlib.contextmanager
def installed(folder: Path, settings: dict[str, str] | None = None) -> Iterator[Running]:
    server = EmbeddedServer(folder / "nats")

    async def prepare() -> None:
        await server.start()
        await make(server.url, server.login(), StreamsSettings())

    asyncio.run(prepare())
    settings = settings or {}
    process, url = start_gateway(server, folder, settings)
    running = Running(url, (folder / "gateway.token").read_text().strip(), server, folder, process, settings)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(60)
        server.stop()


async def age_out(client: Client) -> None:
    """Let the stream keep nothing for a moment: all that it has is then older than it keeps."""
    config = (await client.bus.ask(f"STREAM.INFO.{wire.STREAM}"))["config"]
    short = {**config, "max_age": AGE_NS, "duplicate_window": AGE_NS}
    await client.bus.ask(f"STREAM.UPDATE.{wire.STREAM}", short)

    async def is_empty() -> bool:
        return not (await client.bus.ask(f"STREAM.INFO.{wire.STREAM}"))["state"]["messages"]

    await until(is_empty)
    await client.bus.ask(f"STREAM.UPDATE.{wire.STREAM}", config)

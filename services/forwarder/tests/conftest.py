"""A real nats-server, a real HTTP server with scripted answers, and forwarders as processes."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from stretto_bus import Client
from stretto_installation.server import EmbeddedServer
from warm_processes import WarmProcess, WarmProcesses

from tests.http_served import Answer, Asked, served
from tests.live_bus import live_bus, progressed

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
WAIT_S = 60.0
FORWARDERS = WarmProcesses("stretto_forwarder.service", "stretto_forwarder.settings", "stretto_runtime.program")
"""Forwarders start as forks of a process that has imported them. It ends with the tests."""


@dataclass
class Request:
    """A received request. ``status``: its answer."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]


@dataclass
class Receiver:
    """A receiver of webhooks. ``behave`` returns the answer to a request: status and headers."""

    behave: Callable[[Request], tuple[int, dict[str, str]]] = lambda _: (204, {})
    answer: Callable[[Request], tuple[int, dict[str, str], bytes]] | None = None
    """Returns status, headers and body, where the body counts."""
    seen: list[Request] = field(default_factory=list[Request])
    url: str = ""

    def taken(self, path: str = "/hook") -> list[Request]:
        return [request for request in self.seen if request.status < 300 and request.path == path]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    def answer(asked: Asked) -> Answer:
        request = Request(asked.path, asked.headers, asked.body, 0)
        request.status, more, body = receiver.answer(request) if receiver.answer else (*receiver.behave(request), b"")
        receiver.seen.append(request)
        return request.status, more, body

    with served(answer) as receiver.url:
        yield receiver


@dataclass
class ForwarderHarness:
    """A bus, and forwarders on it."""

    server: EmbeddedServer
    client: Client
    folder: Path
    processes: list[WarmProcess] = field(default_factory=list[WarmProcess])

    def start(self, *endpoints: dict[str, Any], **settings: Any) -> WarmProcess:
        """Start a forwarder for these endpoints."""
        path = self.folder / "endpoints.yaml"
        of_webhook = {"secret_env": "HOOK"}
        given_endpoints = [
            {**(of_webhook if "form" not in each else {}), "start": "beginning", **each} for each in endpoints
        ]
        path.write_text(yaml.safe_dump(given_endpoints))
        given = {"endpoints_file": path, "allow_networks": '["127.0.0.0/8"]', "retry_s": 0.02, "retry_max_s": 0.2}
        environment = {key: value for key, value in os.environ.items() if not key.startswith("STRETTO_")}
        environment |= self.server.environment("forwarder") | {"HOOK": SECRET}
        environment |= {f"STRETTO_{key.upper()}": str(value) for key, value in {**given, **settings}.items()}
        environment |= {"STRETTO_STATE_FOLDER": str(self.folder)}
        with (self.folder / "forwarder.log").open("ab") as log:
            started = FORWARDERS.start("-m", "stretto_forwarder", environment=environment, stdout=log, stderr=log)
            self.processes.append(started)
        return self.processes[-1]

    async def publish(self, numbers: range, job: str = "a") -> list[str]:
        """Publish progress of a job in this order; return the ids."""
        ids = [f"dispatcher.{job}:{number}:0" for number in numbers]
        for number, id_ in zip(numbers, ids, strict=True):
            await self.client.publish(
                progressed(job, number, 10**6),
                id_,
            )  # fmt: skip
        return [id_.replace(".", "_") for id_ in ids]

    def log(self) -> str:
        return (self.folder / "forwarder.log").read_text()

    def end(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(60)


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[ForwarderHarness]:
    async with live_bus(tmp_path) as (server, client):
        harness = ForwarderHarness(server, client, tmp_path)
        yield harness
        harness.end()

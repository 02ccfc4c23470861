"""A real server per test: it starts in 14 ms."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import runtime_live
from runtime_live import Replicas, Running, connect
from stretto_bus import Client
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    embedded = EmbeddedServer(tmp_path / "nats")
    await embedded.start()
    yield embedded
    embedded.kill()


@pytest.fixture
async def client(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Client]:
    connected = await connect(server, spans=tmp_path)
    await provision(connected.bus)
    yield connected
    await connected.close()


@pytest.fixture
def starting(server: EmbeddedServer, tmp_path: Path) -> Running:
    return lambda kind, folder="", **settings: runtime_live.starting(kind, server, tmp_path / folder, **settings)


@pytest.fixture
def running(server: EmbeddedServer, tmp_path: Path) -> Running:
    return lambda kind, folder="", **settings: runtime_live.running(kind, server, tmp_path / folder, **settings)


@pytest.fixture
async def replicas(server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[Replicas]:
    started = Replicas(server, tmp_path)
    yield started
    started.end()

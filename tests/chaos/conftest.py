"""The counting service of the runtime's own tests, on clusters."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster, Network, provisioned
from runtime_live import Replicas
from stretto_bus import Client
from stretto_runtime.process.telemetry import configure_logs

configure_logs("test", "error")


ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "1"))
"""How often each test repeats its fault; ``make test`` is content with once."""


@pytest.fixture
def rounds() -> int:
    return ROUNDS


@pytest.fixture
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """``parametrize("cluster", ["always"], indirect=True)`` sets the ``sync_interval``."""
    started = Cluster(tmp_path, getattr(request, "param", ""))
    started.start()
    yield started
    started.end()


@pytest.fixture
def network() -> Iterator[Network]:
    if reason := Network.missing():
        pytest.skip(reason)
    network = Network()
    try:
        network.up()
        yield network
    finally:
        network.down()


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    connected = await provisioned(cluster)
    yield connected
    await connected.close()


@pytest.fixture
async def replicas(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Replicas]:
    started = Replicas(cluster, tmp_path)
    yield started
    started.end()

"""A server is cut off from the network, with the owner that is connected to it: packets vanish, nobody hears why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cluster import Cluster, Network
from runtime_books import feed, joined, settle
from runtime_live import Replicas
from stretto_runtime import Client


@pytest.fixture
async def cluster(tmp_path: Path, network: Network) -> AsyncIterator[Cluster]:
    started = Cluster(tmp_path, network=network)
    started.start()
    yield started
    started.end()


async def test_a_server_is_cut_off_together_with_an_owner(
    cluster: Cluster, client: Client, replicas: Replicas, network: Network, tmp_path: Path, rounds: int
) -> None:
    """The owner on the dead side believes in itself, its server may believe it leads: neither may get a word in."""
    for node in cluster.nodes:  # each replica beside one server, connected to that one only
        replicas.start(beside=node.prefix, nats_url=node.url, lease_s="1")
    await joined(client, 3)
    feeding = asyncio.create_task(feed(client, 14 * rounds, seed=3))
    for _ in range(rounds):
        await asyncio.sleep(1.5)
        number = (await cluster.leader(client)).number
        network.cut(number)
        await asyncio.sleep(6)
        network.heal(number)
        await cluster.whole(client)
    accepted = await feeding
    assert len(accepted) > 50
    (await settle(client, 10, timeout_s=60, replicas=replicas)).check(accepted)
    ended = (tmp_path / "replicas.log").read_text().count("partition session ended")
    assert ended < 2000 * rounds, "an owner that is cut off tries again and again without a pause"

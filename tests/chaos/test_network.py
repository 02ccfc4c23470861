"""A network partition of a server and the owner connected to it: packets vanish without an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cluster import Cluster, Network, Node
from runtime_books import feed, joined, settle
from runtime_live import Replicas
from stretto_bus import Client
from stretto_wire.contract.registry import PARTITIONS


@pytest.fixture
async def cluster(tmp_path: Path, network: Network) -> AsyncIterator[Cluster]:
    started = Cluster(tmp_path, network=network)
    started.start()
    yield started
    started.end()


@pytest.mark.night
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


@pytest.mark.night
async def test_who_is_connected_to_a_server_without_a_majority_finds_another(
    cluster: Cluster, client: Client, replicas: Replicas, network: Network, rounds: int
) -> None:
    """The connection stands, JetStream stores nothing: nobody tells the replica that it should go elsewhere."""
    for node in cluster.nodes:
        replicas.start(nats_url=node.url, lease_s="1")  # they learn of the other servers from this one
    await joined(client, 3)
    feeding = asyncio.create_task(feed(client, 15 * rounds, seed=9))
    for _ in range(rounds):
        await asyncio.sleep(1.5)
        number = (await cluster.leader(client)).number
        network.part(number)
        await until_all_serve(replicas, cluster.nodes[number])
        network.rejoin(number)
        await cluster.whole(client)
    accepted = await feeding
    assert len(accepted) > 50
    (await settle(client, 10, timeout_s=60, replicas=replicas)).check(accepted)


async def until_all_serve(replicas: Replicas, without: Node) -> None:
    """Each has its share of the partitions, and is connected to another server."""
    async with asyncio.timeout(60):
        while True:
            reports = await asyncio.to_thread(replicas.reports)
            served = [report.get("partitions", []) for report in reports]
            left = all(report.get("server") not in (None, f"{without.host}:{without.port}") for report in reports)
            if left and all(served) and sorted(number for share in served for number in share) == [*range(PARTITIONS)]:
                return
            await asyncio.sleep(0.5)

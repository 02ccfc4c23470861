"""Three servers, three replicas of the streams, three of the service: any one of them may die, or all at once.

Every effect is counted at the output stream: nothing lost, nothing doubled, nothing out of order per job.
"""

from __future__ import annotations

import asyncio

import pytest
from cluster import Cluster
from runtime_books import feed, joined, settle
from runtime_live import Replicas
from simulated_contract import OF_CLUSTERS
from stretto_bus import Client


@pytest.mark.night
async def test_the_streams_leaders_are_killed(
    cluster: Cluster, client: Client, replicas: Replicas, rounds: int
) -> None:
    for _ in range(2):
        replicas.start(lease_s="1")
    await joined(client, 2)
    feeding = asyncio.create_task(feed(client, 6 * rounds, seed=1))
    for stream in ("STRETTO", "KV_STATE") * rounds:
        await asyncio.sleep(1)
        leader = await cluster.leader(client, stream)
        leader.kill()
        await asyncio.sleep(1)
        leader.start()
        await cluster.whole(client)
    accepted = await feeding
    assert len(accepted) > 50
    (await settle(client, 10)).check(accepted)


@pytest.mark.parametrize("cluster", ["always"], indirect=True, ids=["sync-always"])
@pytest.mark.night
async def test_all_servers_are_killed_at_once(
    cluster: Cluster, client: Client, replicas: Replicas, rounds: int
) -> None:
    for _ in range(2):
        replicas.start(lease_s="1")
    await joined(client, 2)
    feeding = asyncio.create_task(feed(client, 5 * rounds, seed=2))
    for _ in range(rounds):
        await asyncio.sleep(2)
        cluster.end()
        await asyncio.sleep(0.5)
        cluster.start()
        await cluster.whole(client)
    accepted = await feeding
    assert len(accepted) > 50
    (await settle(client, 10)).check(accepted)


@pytest.mark.night
async def test_elections_are_what_the_simulation_has_of_them(cluster: Cluster, client: Client) -> None:
    for contract in OF_CLUSTERS:
        await contract(client.bus, contract.__name__)

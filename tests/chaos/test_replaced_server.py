"""The runbook for a server of the bus whose disk is lost (charts/runbook/StrettoReplicaBehind.md), carried out."""

from __future__ import annotations

import asyncio
import math
import shutil

import pytest
from cluster import Cluster, Node
from runtime_books import books, feed, joined, settle
from runtime_live import Replicas
from stretto_bus import Client
from stretto_bus.tasks import end
from stretto_runtime.process.health_warnings import HealthWarnings
from stretto_runtime.process.telemetry import Metrics
from stretto_wire.contract.registry import STATE, STREAM


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("cluster", ["always"], indirect=True, ids=["sync-always"])
@pytest.mark.night
async def test_a_server_whose_disk_is_lost_is_replaced_as_the_runbook_says(
    cluster: Cluster, client: Client, replicas: Replicas, leads: bool
) -> None:
    """Under load: the metric tells that it is gone, it comes back empty under its name, and has everything again."""
    metrics = Metrics("dispatcher")
    looking = asyncio.create_task(HealthWarnings(client.bus, metrics, every_s=0.1).run())
    for _ in range(2):
        replicas.start(lease_s="1")
    await joined(client, 2)
    leader = await cluster.leader(client)
    lost = leader if leads else next(node for node in cluster.nodes if node is not leader)
    feeding = asyncio.create_task(feed(client, 8, seed=3))
    await told(metrics, {node: 0.0 for node in cluster.nodes if node is not leader})  # step 1
    lost.kill()
    shutil.rmtree(lost.store)  # step 2
    await told(metrics, {lost: math.inf})
    lost.start()  # step 3
    accepted = await feeding
    found = await settle(client, 10, replicas=replicas)
    found.check(accepted)
    assert len(accepted) > 50
    await cluster.whole(client)
    leader = await cluster.leader(client)
    await told(metrics, {node: 0.0 for node in cluster.nodes if node is not leader})  # step 4
    await end(looking)
    for node in cluster.nodes:
        asked = await Client.connect(node.url, cluster.login())
        try:
            assert await books(asked) == found, node.name
        finally:
            await asked.close()


async def told(metrics: Metrics, lags: dict[Node, float]) -> None:
    """Wait until the metric has these lags, of log and bucket."""
    wanted = {
        f'stretto_stream_replica_lag{{server="{node.name}",service="dispatcher",stream="{stream}"}} '
        f"{'+Inf' if math.isinf(lag) else lag}"
        for node, lag in lags.items()
        for stream in (STREAM, STATE)
    }
    async with asyncio.timeout(60):
        while not wanted <= {*metrics.text().decode().splitlines()}:
            await asyncio.sleep(0.05)

"""The runbook for a server of the bus whose disk is lost (charts/runbook/StrettoReplicaBehind.md), carried out."""

from __future__ import annotations

import asyncio
import math
import shutil

import pytest
from cluster import Cluster
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
    await told(metrics, {})  # step 1
    lost.kill()
    shutil.rmtree(lost.store)  # step 2
    await told(metrics, {lost.name: math.inf})
    lost.start()  # step 3
    accepted = await feeding
    found = await settle(client, 10, replicas=replicas)
    found.check(accepted)
    assert len(accepted) > 50
    await cluster.whole(client)
    await told(metrics, {})  # step 4
    await end(looking)
    for node in cluster.nodes:
        asked = await Client.connect(node.url, cluster.login())
        try:
            assert await books(asked) == found, node.name
        finally:
            await asked.close()


async def told(metrics: Metrics, behind: dict[str, float]) -> None:
    """Wait until the metric has two replicas of log and bucket each, these behind and the others whole."""
    async with asyncio.timeout(60):
        while True:
            shown = [sample for family in metrics.replica_lag.collect() for sample in family.samples]
            lags = {(sample.labels["stream"], sample.labels["server"]): sample.value for sample in shown}
            expected = {key: behind.get(key[1], 0.0) for key in lags}
            of_each = [sum(stream == name for name, _ in lags) for stream in (STREAM, STATE)]
            if lags == expected and of_each == [2, 2] and behind.keys() <= {server for _, server in lags}:
                return
            await asyncio.sleep(0.05)

"""A job's whole life on Kubernetes: the service, the bus, and pods that answer, on a cluster that resizes or cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import Cluster, running_cluster
from stretto_messages.actuator import GetPodLog, MigrationFinished, PlanApplied, PodExited, PodPending, PodStarted
from stretto_messages.gateway import JobCancelled


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path / "cluster") as running:
        yield running


async def start(cluster: Cluster, stage: Any, **more: Any) -> None:
    await stage.start(
        backend="kubernetes",
        pod_image="trainer:1",
        kubernetes_config=cluster.kubeconfig(),
        kubernetes_namespace=cluster.server.namespace,
        **more,
    )


def names(cluster: Cluster) -> list[str]:
    return sorted(pod["metadata"]["labels"]["stretto.dev/pod"] for pod in cluster.pods())


def cores(cluster: Cluster) -> set[str]:
    return {pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] for pod in cluster.pods()}


@pytest.mark.parametrize("in_place", [True, False])
async def test_pods_get_the_limits_of_a_new_plan_in_place_or_by_being_replaced(
    cluster: Cluster, stage: Any, in_place: bool
) -> None:
    cluster.server.resizable = in_place
    await start(cluster, stage)
    await stage.submit()
    await stage.decide(1, workers=2, ps=2)
    await stage.applied(1)
    assert names(cluster) == ["ps-0", "ps-1", "worker-0", "worker-1"]
    assert cores(cluster) == {"500m"}

    await stage.decide(2, workers=2, ps=2, cpu=0.7)
    await stage.until(lambda: [event for event in stage.told(PlanApplied) if event.version == 2], limit_s=60)
    assert cores(cluster) == {"700m"}
    if in_place:
        assert names(cluster) == ["ps-0", "ps-1", "worker-0", "worker-1"]
    else:
        assert names(cluster) == ["ps-2", "ps-3", "worker-2", "worker-3"]
        assert stage.told(MigrationFinished), "parameters moved, they were not lost"
    exits = {event.reason for event in stage.told(PodExited)}
    assert exits == (set() if in_place else {"stopped"})

    await stage.client.publish(JobCancelled(job="actuated", by="test", reason=""))
    await stage.until(lambda: cluster.storage.objects == {})


async def test_an_actuator_and_an_api_server_that_die_are_outlived(cluster: Cluster, stage: Any) -> None:
    await start(cluster, stage)
    await stage.submit()
    await stage.decide(1, workers=1, ps=1)
    await stage.applied(1)
    await stage.stop_actuator(abruptly=True)
    await cluster.server.stop()
    uid = next(
        pod["metadata"]["uid"] for pod in cluster.pods() if pod["metadata"]["labels"]["stretto.dev/role"] == "worker"
    )
    cluster.kubelet.running[uid].process.kill()
    await start(cluster, stage)
    await cluster.server.start()
    replaced = await stage.until(lambda: [e for e in stage.told(PodStarted) if e.pod == "worker-1"])
    assert replaced[0].cause == "relaunch"
    (exited,) = stage.told(PodExited)
    assert (exited.pod, exited.reason, exited.exit_code) == ("worker-0", "killed", 137)


async def test_a_pod_without_room_is_told_of_and_runs_once_there_is(cluster: Cluster, stage: Any) -> None:
    cluster.kubelet.nodes["node-0"] = (1.0, 64 << 30)
    await start(cluster, stage)
    await stage.submit()
    await stage.decide(1, workers=2, ps=1)
    (pending,) = await stage.until(lambda: stage.told(PodPending))
    assert (pending.role, pending.reason) == ("worker", "no-room")
    assert "Insufficient cpu" in pending.detail
    cluster.kubelet.nodes["node-1"] = (4.0, 64 << 30)
    await stage.applied(1)


async def test_the_log_of_a_deleted_pod_is_in_the_store(cluster: Cluster, stage: Any, tmp_path: Path) -> None:
    """On Kubernetes a log goes with its pod's object: it is kept before that is deleted, and read after the job."""
    await start(cluster, stage, store_url=f"file://{tmp_path}/store")
    await stage.submit()
    await stage.decide(1, workers=1, ps=1)
    await stage.applied(1)
    await stage.client.publish(JobCancelled(job="actuated", by="test", reason=""))
    await stage.until(lambda: cluster.storage.objects == {})
    kept = tmp_path / "store/.logs/actuated"
    await stage.until(lambda: kept.exists() and {path.name for path in kept.iterdir()} == {"ps-0.log", "worker-0.log"})
    cluster.server.logs.clear()
    log = await stage.client.call(GetPodLog(job="actuated", pod="worker-0", whole=True))
    assert (log.answer, "worker-0 serves" in log.part) == ("ok", True)

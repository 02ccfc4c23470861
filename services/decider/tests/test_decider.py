"""An elastic Job under Kueue grows into quota that gets free and gives it back, with the reasons of each step: real
decider, planner, arbiter and nats-server, the API server of the tests, and the model of Kueue behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import Cluster, running_cluster
from stretto_arbiter.service import Arbiter
from stretto_arbiter.settings import ArbiterSettings
from stretto_bus import Client
from stretto_core.decider.fields import DECISION, GATES
from stretto_core.decider.objects import job_of
from stretto_decider.service import JOBS, SIZED, Decider
from stretto_decider.settings import DeciderSettings
from stretto_installation.server import EmbeddedServer
from stretto_kube import Api, Kind, KubeFault
from stretto_messages.base import GIB
from stretto_messages.objects.decider import ObjectReleased, SizeSettled
from stretto_planner.service import Planner
from stretto_planner.settings import PlannerSettings
from stretto_runtime import Runner
from stretto_runtime.replay import replay
from stretto_runtime.streams import BusStreams

from tests.live_bus import live_bus
from tests.waits import until

from . import objects_on_server
from .kueue_on_server import KueueOnServer, elastic_job, rigid_job

ROLE = {
    *(("jobs", verb) for verb in ("list", "watch", "patch")),
    *((kind, verb) for kind in ("workloads", "localqueues", "clusterqueues") for verb in ("list", "watch")),
    ("events", "create"),
}
"""Rights that the chart grants."""
OF_OTHERS = {
    ("jobs", "list"),
    ("jobs", "watch"),
    *((kind, verb) for kind in ("jobsets", "rayclusters") for verb in ("list", "watch", "patch")),
    ("events", "create"),
}
"""Rights of a decider of JobSets and RayClusters in a cluster without Kueue."""
ROOM: dict[str, Any] = {"cpu_cores": 64, "memory_bytes": 256 * GIB}


class Stage:
    """The cluster with its queue of eight cores, the services beside it, and what the decider has told."""

    def __init__(self, cluster: Cluster, kueue: KueueOnServer, user: Api, client: Client) -> None:
        self.cluster, self.kueue, self.user, self.client = cluster, kueue, user, client
        self.facts: list[Any] = []

    async def follow(self) -> None:
        async for event in self.client.events(patterns=["evt.v1.decider.>"]):
            self.facts.append(event.message)

    def job(self, name: str) -> Any:
        return self.cluster.storage.get("jobs", name)

    async def has(self, name: str, ready: int) -> None:
        """Wait until the Job asks for so many pods and all are ready."""
        await until(lambda: self.pods(name) == (ready, ready), self.told)

    async def accepted(self, name: str, count: int) -> None:
        """Wait until a Job has so many pods, and the decision that gave it them has ended."""
        await self.has(name, count)
        await until(lambda: isinstance(last := [None, *self.facts][-1], SizeSettled) and last.count == count, self.told)

    def pods(self, name: str) -> tuple[int, int]:
        """Pods that a Job asks for, and that are ready."""
        one = self.job(name)
        return one["spec"]["parallelism"], one.get("status", {}).get("ready", 0)

    def told(self) -> Any:
        return self.facts, self.cluster.storage.all("jobs"), self.cluster.storage.all("workloads")

    def events(self, reason: str) -> list[str]:
        return [each["message"] for each in self.cluster.storage.all("events") if each["reason"] == reason]


@contextlib.asynccontextmanager
async def serving(server: EmbeddedServer, folder: Path, cluster: Cluster, **decides: Any) -> AsyncIterator[None]:
    common = {"nats_url": server.url, "state_folder": folder}

    def own(name: str) -> dict[str, Any]:
        return {**common, "nats_credentials": server.login(name).credentials}

    where = {"kubernetes_config": cluster.kubeconfig("decider"), "kubernetes_namespace": cluster.server.namespace}
    services = [
        Planner(PlannerSettings(**own("planner"), **ROOM)),
        Arbiter(ArbiterSettings(**own("arbiter"), **ROOM, settle_s=0, round_s=0)),
        Decider(DeciderSettings(**own("decider"), **where, **decides, look_s=0.2)),
    ]
    runners = [Runner(each) for each in services]
    tasks = [asyncio.create_task(each.run()) for each in runners]
    try:
        yield
    finally:
        for runner in runners:
            runner.stop()
        await asyncio.gather(*tasks)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with live_bus(tmp_path) as (server, client), running_cluster(tmp_path / "cluster") as cluster:
        cluster.server.allowed["decider"] = {(verb, kind) for kind, verb in ROLE}
        kueue = KueueOnServer(cluster, 8)
        user = await Api.connect("kubectl", cluster.server.namespace, cluster.kubeconfig())
        made = Stage(cluster, kueue, user, client)
        async with serving(server, tmp_path, cluster):
            tasks = [asyncio.create_task(kueue.run()), asyncio.create_task(made.follow())]
            yield made
            for task in tasks:
                task.cancel()
        await user.close()


async def test_a_job_grows_into_free_quota_and_gives_it_back_and_each_step_is_explained(stage: Stage) -> None:
    await stage.user.create(JOBS, rigid_job("other", 5, 0))
    await stage.has("other", 5)
    await stage.user.create(JOBS, elastic_job("my-dlrm", 1, 6))
    await stage.accepted("my-dlrm", 3)  # of eight cores the other one has five
    assert "room for 2 more pods; the plan allows 6" in stage.job("my-dlrm")["metadata"]["annotations"][DECISION]

    await stage.user.patch(JOBS, "other", {"spec": {"parallelism": 1}})  # Kueue gives the quota of four back at once
    await stage.accepted("my-dlrm", 6)
    assert stage.kueue.most_alive == 8, "the pods of the other one took their time to end"

    await stage.user.create(JOBS, rigid_job("urgent", 5, 1))
    await until(lambda: "urgent" in stage.kueue.model.jobs, stage.told)
    stage.kueue.model.preempt("my-dlrm", "write", 2)  # an order: the decider writes nothing against it
    await stage.has("urgent", 5)
    await stage.has("my-dlrm", 2)
    ordered = "wrote 2 in place of 6: an order"
    await until(lambda: any(ordered in getattr(fact, "reason", "") for fact in stage.facts), stage.told)

    await stage.user.patch(JOBS, "urgent", {"spec": {"parallelism": 1}})
    await stage.accepted("my-dlrm", 6)  # its workload was admitted with six, then got smaller, and grows again

    # what was written, since a decision by a view that lags is made, and ends before its patch
    assert stage.kueue.sizes["my-dlrm"] == [1, 3, 6, 2, 6]
    await until(lambda: len(stage.events("SizeDecided")) == 3, stage.told)
    await until(lambda: stage.events("SizeAccepted") and stage.events("SizeTaken"), stage.told)

    job = job_of(stage.job("my-dlrm"))
    await stage.user.delete(JOBS, "my-dlrm")
    await until(lambda: isinstance(stage.facts[-1], ObjectReleased), stage.told)
    done = await replay(BusStreams(stage.client.bus), Decider(DeciderSettings()), job)
    assert done.reproduced
    assert done.count("same") == len(stage.facts)
    assert {fact.outcome for fact in stage.facts if isinstance(fact, SizeSettled)} == {"accepted", "taken"}


async def test_a_gated_job_gets_its_size_before_kueue_admits_it(stage: Stage) -> None:
    await stage.user.create(JOBS, rigid_job("other", 5, 0))
    await stage.has("other", 5)
    gates = {"stretto.dev/size": "auto", "stretto.dev/max": "6", GATES: "example.com/first,stretto.dev/size"}
    await stage.user.create(JOBS, rigid_job("my-dlrm", 1, 0, gates))
    await until(lambda: stage.job("my-dlrm")["metadata"]["annotations"][GATES] == "example.com/first", stage.told)
    assert stage.job("my-dlrm")["spec"]["parallelism"] == 3, "of eight cores the other one has five"
    await stage.user.patch(JOBS, "my-dlrm", {"metadata": {"annotations": {GATES: ""}}})
    await stage.has("my-dlrm", 3)
    assert stage.kueue.sizes["my-dlrm"] == [1, 3]


async def test_job_sets_and_ray_clusters_get_the_pods_of_their_plans(tmp_path: Path) -> None:
    async with live_bus(tmp_path) as (server, _), running_cluster(tmp_path / "cluster") as cluster:
        objects_on_server.install(cluster)
        cluster.server.allowed["decider"] = {(verb, kind) for kind, verb in OF_OTHERS}
        user = await Api.connect("kubectl", cluster.server.namespace, cluster.kubeconfig())
        decides = {"kinds": ("JobSet", "RayCluster"), "kueue": False}
        controllers = asyncio.create_task(objects_on_server.run_controllers(cluster))

        def sizes() -> tuple[int, int]:
            jobs = cluster.storage.get("jobsets", "train")["spec"]["replicatedJobs"]  # type: ignore[index]
            groups = cluster.storage.get("rayclusters", "ray")["spec"]["workerGroupSpecs"]  # type: ignore[index]
            assert groups[1]["replicas"] == 2
            return jobs[0]["template"]["spec"]["completions"], groups[0]["replicas"]

        def told() -> Any:
            return cluster.storage.all("events")

        def accepted() -> set[str]:
            return {each["involvedObject"]["kind"] for each in told() if each["reason"] == "SizeAccepted"}

        async with serving(server, tmp_path, cluster, **decides):
            await user.create(SIZED["JobSet"], objects_on_server.job_set("train", 2, 5))
            await user.create(SIZED["RayCluster"], objects_on_server.ray_cluster("ray", 1, 4))
            await until(lambda: sizes() == (5, 4), told)
            await until(lambda: accepted() == {"JobSet", "RayCluster"}, told)
        controllers.cancel()
        await user.close()


async def test_an_event_that_the_server_did_not_take_is_made_later(stage: Stage) -> None:
    refusals, create = iter((503, 503)), Api.create

    async def failing(api: Api, kind: Kind, one: Any) -> Any:
        if kind.name == "Event" and (status := next(refusals, 0)):
            raise KubeFault("POST", status, "ServiceUnavailable", "as the test wants it")
        return await create(api, kind, one)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Api, "create", failing)
        await stage.user.create(JOBS, elastic_job("my-dlrm", 1, 6))
        await stage.accepted("my-dlrm", 6)
        await until(lambda: stage.events("SizeDecided") and stage.events("SizeAccepted"), stage.told)
    assert next(refusals, None) is None


async def test_an_object_that_cannot_be_sized_is_told_why(stage: Stage) -> None:
    job = elastic_job("my-dlrm", 1, 6)
    del job["metadata"]["annotations"]["stretto.dev/max"]
    await stage.user.create(JOBS, job)
    await until(lambda: stage.events("SizeNotDecided"), stage.told)
    assert "stretto.dev/max is not stated; state a number of pods" in stage.events("SizeNotDecided")[0]
    assert stage.facts == []

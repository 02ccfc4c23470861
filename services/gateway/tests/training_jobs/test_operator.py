"""TrainingJobs on a real nats-server, a real gateway process, and an API server that checks what it is sent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import stretto_wire as wire
from fake_kubernetes import Cluster, running_cluster
from stretto_bus import Client
from stretto_gateway.training_jobs.schema import TRAINING_JOBS, definition
from stretto_kube import Api
from stretto_messages.actuator import JobFinished, PodStarted
from stretto_messages.base import Message, example_of
from stretto_wire.jobspec.kubernetes import INSTALLATION, JOB

from tests.waits import until

from ..gateway_process import Running, installed, start_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROLE = {
    *(("trainingjobs", verb) for verb in ("list", "watch", "patch")),
    *(("leases", verb) for verb in ("get", "create", "update")),
    ("trainingjobs/status", "patch"),
    ("pods", "list"),
}
"""what the README asks the cluster's owner to grant"""
SPEC: dict[str, Any] = {"model": {"entry": "m:M"}, "dataset": {"samples": 1000}}


class Stage:
    """The cluster, the gateway beside it, and somebody with kubectl."""

    def __init__(self, cluster: Cluster, gateway: Running, user: Api, bus: Client) -> None:
        self.cluster, self.gateway, self.user, self.bus = cluster, gateway, user, bus

    async def apply(self, name: str, /, **more: Any) -> None:
        await self.user.apply(TRAINING_JOBS, {"metadata": {"name": name}, "spec": {**SPEC, **more}})

    def object(self, name: str) -> dict[str, Any] | None:
        return self.cluster.storage.get("trainingjobs", name)

    def status(self, name: str) -> dict[str, Any]:
        return (self.object(name) or {}).get("status", {})

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        return next((each for each in self.status(name).get("conditions", []) if each["type"] == kind), {})

    async def happens(self, message: type[Message], job: str, **more: Any) -> None:
        """Publish an event as the service that owns it."""
        await self.bus.publish(replace(example_of(message), job=job, **more))

    async def rest(self, job: str) -> dict[str, Any]:
        with self.gateway.http() as http:
            answer = await asyncio.to_thread(http.get, f"/jobs/{job}")
        return answer.json() if answer.status_code == 200 else {}

    async def until(self, true: Callable[[], object], what: str = "") -> None:
        def told() -> str:
            log = (self.gateway.folder / "gateway.log").read_text()[-3000:]
            return f"{what} {self.cluster.storage.all('trainingjobs')}\n{log}"

        await until(true, told)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with standing(tmp_path_factory.mktemp("shared")) as shared:
        yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def own_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """For what others could not bear."""
    async with standing(tmp_path) as own:
        yield own


@contextlib.asynccontextmanager
async def standing(folder: Path) -> AsyncIterator[Stage]:
    async with running_cluster(folder) as cluster:
        cluster.install(definition())
        cluster.server.allowed["gateway"] = {(verb, resource) for resource, verb in ROLE}
        more = {
            "STRETTO_GATEWAY_TRAININGJOBS": "true",
            "STRETTO_GATEWAY_TRAININGJOBS_NAMESPACE": cluster.server.namespace,
            "STRETTO_GATEWAY_TRAININGJOBS_CONFIG": str(cluster.kubeconfig("gateway")),
            "STRETTO_GATEWAY_TRAININGJOBS_S": "0.2",
            "STRETTO_GATEWAY_TRAININGJOBS_LEASE_S": "1",
        }
        stack = contextlib.ExitStack()
        try:
            (folder / "gateway").mkdir()
            gateway = await asyncio.to_thread(stack.enter_context, installed(folder / "gateway", more))
            user = await Api.connect("kubectl", cluster.server.namespace, cluster.kubeconfig())
            bus = await gateway.operator()
            yield Stage(cluster, gateway, user, bus)
            await bus.close()
            await user.close()
        finally:
            await asyncio.to_thread(stack.close)


async def test_what_is_applied_is_submitted_and_shows_what_rest_shows(stage: Stage) -> None:
    await stage.apply("clicks", priority=2)
    await stage.until(lambda: stage.condition("clicks", "Admitted").get("status") == "True")
    assert stage.status("clicks")["phase"] == "Submitted"
    assert stage.status("clicks")["observedGeneration"] == 1
    seen = await stage.rest("clicks")
    assert seen["submitted_by"] == "trainingjob/training/clicks"
    assert seen["spec"]["priority"] == 2

    await stage.happens(PodStarted, "clicks", pod="ps-0", role="ps")
    await stage.happens(PodStarted, "clicks", pod="worker-0", role="worker")
    await stage.until(lambda: (stage.status("clicks").get("workers"), stage.status("clicks").get("ps")) == (1, 1))
    await stage.happens(JobFinished, "clicks")
    await stage.until(lambda: stage.condition("clicks", "Completed").get("status") == "True")
    assert stage.status("clicks")["phase"] == "Finished"
    assert stage.condition("clicks", "Running")["status"] == "False"
    assert (await stage.rest("clicks"))["status"] == "finished"
    assert {(resource, verb) for verb, resource in stage.cluster.server.used} - ROLE <= {
        ("trainingjobs", "create")  # kubectl's
    }


async def test_what_is_deleted_is_cancelled_and_stays_until_its_pods_are_gone(stage: Stage) -> None:
    await stage.apply("views")
    await stage.until(lambda: stage.condition("views", "Admitted").get("status") == "True")
    stage.cluster.kubelet.lost.add("far")  # where nothing ends by itself
    for installation in ("stretto", "another"):
        meta = {"name": f"views-{installation}", "labels": {JOB: "views", INSTALLATION: installation}}
        pod = {"metadata": meta, "spec": {"nodeName": "far", "containers": []}, "status": {}}
        stage.cluster.storage.put("pods", pod)
    await stage.user.delete(TRAINING_JOBS, "views")
    await stage.until(lambda: stage.condition("views", "Failed").get("reason") == "Cancelled")
    assert (await stage.rest("views"))["status"] == "cancelled"
    assert stage.object("views") is not None
    stage.cluster.storage.remove("pods", "views-stretto")  # the other installation's may stay
    await stage.until(lambda: stage.object("views") is None)


async def test_what_is_no_job_says_why_and_can_be_corrected(stage: Stage) -> None:
    await stage.apply("carts", name="another")
    await stage.until(lambda: stage.status("carts").get("phase") == "Failed")
    assert stage.condition("carts", "Admitted") | {"lastTransitionTime": ""} == {
        "type": "Admitted",
        "status": "False",
        "reason": "InvalidSpec",
        "message": stage.status("carts")["message"],
        "lastTransitionTime": "",
        "observedGeneration": 1,
    }
    assert "spec.name" in stage.status("carts")["message"]
    await stage.apply("carts")
    await stage.until(lambda: stage.condition("carts", "Admitted").get("status") == "True")
    assert stage.status("carts")["observedGeneration"] == 2
    assert stage.condition("carts", "Failed")["status"] == "False"


async def test_a_change_after_submission_has_no_effect_and_says_so(stage: Stage) -> None:
    await stage.apply("shops")
    await stage.until(lambda: stage.condition("shops", "Admitted").get("status") == "True")
    await stage.apply("shops", dataset={"samples": 5}, priority=3)
    await stage.until(lambda: stage.condition("shops", "SpecChanged"))
    assert stage.condition("shops", "SpecChanged")["message"].startswith("spec.dataset, spec.priority changed")
    assert (await stage.rest("shops"))["spec"]["dataset"]["samples"] == 1000
    await stage.apply("shops")
    await stage.until(lambda: not stage.condition("shops", "SpecChanged"))


async def test_a_name_that_is_taken_is_neither_changed_nor_cancelled(stage: Stage) -> None:
    other = wire.JobSpec.parse({**SPEC, "name": "taken", "priority": 9})
    await stage.bus.publish(wire.JobSubmitted(job="taken", spec=other, submitted_by="ada"))
    await stage.apply("taken")
    await stage.until(lambda: stage.condition("taken", "Admitted").get("reason") == "NameTaken")
    assert "choose another name" in stage.status("taken")["message"]
    await stage.user.delete(TRAINING_JOBS, "taken")
    await stage.until(lambda: stage.object("taken") is None)
    assert (await stage.rest("taken"))["status"] == "submitted"


async def test_an_object_adopts_no_job_that_somebody_else_submitted_not_even_an_equal_one(stage: Stage) -> None:
    with stage.gateway.http() as http:
        answer = await asyncio.to_thread(http.post, "/jobs", json={**SPEC, "name": "shared"})
    assert answer.status_code == 201
    await stage.apply("shared")
    await stage.until(lambda: stage.condition("shared", "Admitted").get("reason") == "NameTaken")
    assert "that admin submitted" in stage.status("shared")["message"]
    await stage.user.delete(TRAINING_JOBS, "shared")
    await stage.until(lambda: stage.object("shared") is None)
    assert (await stage.rest("shared"))["status"] == "submitted"


@pytest.mark.night
async def test_two_replicas_write_as_one_and_the_second_takes_over(own_stage: Stage, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    settings = own_stage.gateway.settings
    process, _ = await asyncio.to_thread(start_gateway, own_stage.gateway.server, second, settings)
    try:
        await own_stage.apply("one")
        await own_stage.until(lambda: own_stage.condition("one", "Admitted").get("status") == "True")
        own_stage.gateway.process.kill()
        await own_stage.apply("two")
        await own_stage.until(lambda: own_stage.condition("two", "Admitted").get("status") == "True", "not taken over")
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 10)


async def test_an_api_server_that_dies_meanwhile_is_found_again(own_stage: Stage) -> None:
    await own_stage.apply("last")
    await own_stage.until(lambda: own_stage.condition("last", "Admitted").get("status") == "True")
    await own_stage.cluster.server.stop()
    await own_stage.happens(PodStarted, "last", pod="worker-0", role="worker")
    await own_stage.cluster.server.start()
    await own_stage.until(lambda: own_stage.status("last").get("workers") == 1)

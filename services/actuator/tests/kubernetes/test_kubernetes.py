"""The Kubernetes backend against an API server that runs its pods as processes of this machine."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_kubernetes import Cluster, running_cluster
from stretto_actuator.backend import BackendError, NotInPlace, PodSpec, PodStatus, Waiting
from stretto_actuator.kubernetes.backend import KubernetesBackend, backend_of
from stretto_actuator.kubernetes.manifest import Installation
from stretto_actuator.kubernetes.pod_status import wanted
from stretto_actuator.settings import ActuatorSettings

MIB = 1 << 20
SLEEP = (sys.executable, "-c", "import time; print('sleeps', flush=True); time.sleep(600)")
JOB = {"name": "job"}
ROLE = {
    *(("pods", verb) for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *(("secrets", verb) for verb in ("create", "patch", "delete")),
    *(("networkpolicies", verb) for verb in ("create", "patch", "delete", "list")),
    ("pods/resize", "patch"),
    ("pods/log", "get"),
    ("configmaps", "get"),
}
"""what the README asks the cluster's owner to grant"""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        running.server.allowed["actuator"] = {(verb, resource) for resource, verb in ROLE}
        yield running


def settings_of(cluster: Cluster, **more: Any) -> ActuatorSettings:
    given = {
        "state_folder": cluster.folder,
        "pod_image": "trainer:1",
        "kubernetes_config": cluster.kubeconfig("actuator"),
        "kubernetes_namespace": cluster.server.namespace,
        "stop_grace_s": 5,
    }
    return ActuatorSettings(**(given | more))


@asynccontextmanager
async def opened(cluster: Cluster, **more: Any) -> AsyncIterator[KubernetesBackend]:
    backend = backend_of(settings_of(cluster, **more))
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


@pytest.fixture
async def backend(cluster: Cluster) -> AsyncIterator[KubernetesBackend]:
    async with opened(cluster) as backend:
        yield backend


def spec(pod: str = "worker-0", command: tuple[str, ...] = SLEEP, **more: Any) -> PodSpec:
    given: dict[str, Any] = {
        "cpu_cores": 1.0,
        "memory_bytes": 256 * MIB,
        "files": {"job.json": json.dumps(JOB).encode()},
    }
    environment = {"PATH": os.environ["PATH"]}
    return PodSpec(job="job", pod=pod, command=command, environment=environment, **(given | more))


async def until(backend: KubernetesBackend, true: Callable[[PodStatus], bool], pod: str = "worker-0") -> PodStatus:
    """The first status that is as wanted; every change of the job's pods is heard of."""
    heard = asyncio.Event()
    leave = backend.follow("job", heard.set)
    last = None
    try:
        async with asyncio.timeout(60):
            while True:
                heard.clear()
                last = next((status for status in await backend.list("job") if status.pod == pod), None)
                if last is not None and true(last):
                    return last
                try:
                    async with asyncio.timeout(0.5):  # what was never placed changes only when it is tried again
                        await heard.wait()
                except TimeoutError:
                    continue
    except TimeoutError:
        raise AssertionError(f"still {last}") from None
    finally:
        leave()


async def launched(backend: KubernetesBackend) -> None:
    """Launch worker-0, and wait until it runs."""
    await backend.launch(spec())
    await until(backend, runs)


def exited(status: PodStatus) -> bool:
    return status.state == "exited"


def runs(status: PodStatus) -> bool:
    return status.state == "running"


def name_of(pod: str = "worker-0") -> str:
    return Installation(name="stretto", image="").name_of("job", pod)


class TestEnds:
    """Each with its own reason."""

    @pytest.mark.parametrize(
        ("said", "reason"), [("EvictionByEvictionAPI", "evicted"), ("PreemptionByScheduler", "preempted")]
    )
    async def test_by_the_cluster(self, cluster: Cluster, backend: KubernetesBackend, said: str, reason: str) -> None:
        await launched(backend)
        cluster.disrupt(name_of(), said)
        status = await until(backend, exited)
        assert (status.reason, status.exit_code) == (reason, 143)

    async def test_by_the_loss_of_its_node(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        await launched(backend)
        cluster.lose("node-0")
        assert (await until(backend, exited)).reason == "node-lost"
        await backend.forget("job", "worker-0")
        assert cluster.pods() == []  # no kubelet would have ended it

    async def test_by_somebody_who_deletes_it_behind_our_back(
        self, cluster: Cluster, backend: KubernetesBackend
    ) -> None:
        await launched(backend)
        cluster.storage.remove("pods", name_of())
        status = await until(backend, exited)
        assert (status.reason, status.exit_code) == ("vanished", None)

    async def test_while_nobody_could_see_it(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        await launched(backend)
        await cluster.server.stop()
        cluster.storage.remove("pods", name_of())
        cluster.storage.compact()
        await cluster.server.start()
        assert (await until(backend, exited)).reason == "vanished"


class TestWaits:
    """Pods that do not run yet, with the reason."""

    async def test_for_quota_and_is_tried_again(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        cluster.server.quota = {"pods": 1}
        await backend.launch(spec("ps-0"))
        await backend.launch(spec("worker-0"))
        status = await until(backend, lambda status: status.state == "pending")
        assert status.waiting is not None
        assert status.waiting.reason == "quota"
        assert "exceeded quota" in status.waiting.detail
        assert len(cluster.pods()) == 1
        cluster.server.quota = {}
        await until(backend, runs)

    async def test_for_an_api_server_in_trouble(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        """It is nobody's failure: the pod comes when the server does."""
        await cluster.server.stop()
        await backend.launch(spec())
        status = await until(backend, lambda status: status.state == "pending")
        assert status.waiting is not None
        assert status.waiting.reason == "starting"
        await cluster.server.start()
        await until(backend, runs)

    async def test_no_longer_when_it_is_not_wanted(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        cluster.server.quota = {"pods": 0}
        await backend.launch(spec())
        await backend.stop("job", "worker-0", 5)
        cluster.server.quota = {}
        assert await backend.list("job") == []
        assert cluster.storage.all("secrets") == []

    async def test_what_can_never_be_is_refused(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        async with opened(cluster, pod_image="") as bare:
            with pytest.raises(BackendError, match="STRETTO_ACTUATOR_POD_IMAGE"):
                await bare.launch(spec())
        with pytest.raises(BackendError, match="is refused by Kubernetes"):
            await backend.launch(spec("WORKER_0"))
        cluster.server.allowed["actuator"].discard(("patch", "pods"))
        with pytest.raises(BackendError, match="is refused by Kubernetes"):
            await backend.launch(spec())
        assert cluster.storage.all("secrets") == []


class TestResize:
    async def test_memory_in_use_is_not_taken(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        holds = "held = bytearray(100 << 20); import time; print('holds', flush=True); time.sleep(600)"
        await backend.launch(spec(command=(sys.executable, "-c", holds)))
        await until(backend, runs)
        async with asyncio.timeout(60):
            while "holds" not in await backend.logs("job", "worker-0", 5):
                await asyncio.sleep(0.02)
        assert await backend.resize("job", "worker-0", 1.5, 50 * MIB) == (1.5, 256 * MIB), "the cores may change"
        pod = cluster.storage.get("pods", name_of())
        assert pod is not None
        assert wanted(pod) == (1.5, 256 * MIB), "nor is it taken later, when nobody reckons with it"

    async def test_waits_for_room_on_its_node(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        cluster.kubelet.nodes["node-0"] = (3.0, 64 << 30)
        await backend.launch(spec("ps-0"))
        await backend.launch(spec("worker-0"))
        await until(backend, runs, "ps-0")
        await until(backend, runs)
        assert await backend.resize("job", "worker-0", 1.2345678, 256 * MIB) == (1.2345678, 256 * MIB)
        now = await backend.resize("job", "worker-0", 1.2345678, (64 << 30) - 100 * MIB)
        assert now == (1.2345678, 256 * MIB), "no cores have changed that would have to be told"
        assert await backend.resize("job", "worker-0", 2.5, 256 * MIB) == (1.235, 256 * MIB)
        await backend.kill("job", "ps-0")
        await until(backend, lambda status: status.cpu_cores == 2.5)

    async def test_where_no_node_is_large_enough_the_pod_is_to_be_replaced(
        self, cluster: Cluster, backend: KubernetesBackend
    ) -> None:
        cluster.kubelet.nodes["node-0"] = (2.0, 64 << 30)
        await launched(backend)
        with pytest.raises(NotInPlace, match="no room to grow"):
            await backend.resize("job", "worker-0", 3.0, 256 * MIB)

    async def test_where_the_cluster_cannot_the_pod_is_to_be_replaced(
        self, cluster: Cluster, backend: KubernetesBackend
    ) -> None:
        cluster.server.resizable = False
        await launched(backend)
        for _ in range(2):
            with pytest.raises(NotInPlace, match="cannot resize a running pod"):
                await backend.resize("job", "worker-0", 2.0, 256 * MIB)
        assert await backend.resize("job", "worker-0", 1.0, 256 * MIB) == (1.0, 256 * MIB)


class TestLives:
    async def test_nothing_more_is_asked_of_the_cluster_than_its_role(
        self, cluster: Cluster, backend: KubernetesBackend
    ) -> None:
        await launched(backend)
        await backend.resize("job", "worker-0", 2.0, 256 * MIB)
        await backend.logs("job", "worker-0", 5)
        await backend.stop("job", "worker-0", 5)
        await until(backend, exited)
        await backend.forget("job", "worker-0")
        assert {(resource, verb) for verb, resource in cluster.server.used} <= ROLE
        assert cluster.storage.objects == {}

    async def test_a_container_that_its_node_has_removed_has_no_log(
        self, cluster: Cluster, backend: KubernetesBackend
    ) -> None:
        """A kubelet says so in place of a log, which must not take the place of the log that is kept."""
        await launched(backend)
        os.unlink(cluster.server.logs[name_of()])
        assert await backend.logs("job", "worker-0", 5) == ""

    async def test_pods_go_with_the_installation(self, cluster: Cluster) -> None:
        owner = cluster.storage.put("configmaps", {"metadata": {"name": "release"}})
        async with opened(cluster, kubernetes_owner="release") as backend:
            await launched(backend)
            cluster.storage.remove("configmaps", owner["metadata"]["name"])
            assert cluster.storage.objects == {}

    async def test_an_owner_that_is_not_there_is_named(self, cluster: Cluster) -> None:
        with pytest.raises(BackendError, match="KUBERNETES_OWNER=release: no such ConfigMap"):
            async with opened(cluster, kubernetes_owner="release"):
                pass

    async def test_another_replica_that_starts_the_same_pod_changes_nothing(
        self, cluster: Cluster, backend: KubernetesBackend
    ) -> None:
        async with opened(cluster) as other:
            await asyncio.gather(backend.launch(spec()), other.launch(spec()), backend.launch(spec()))
            await until(backend, runs)
            await other.launch(spec(command=(sys.executable, "-c", "print('another')")))
            assert len(cluster.pods()) == 1
            assert (await until(other, runs)).adopted is False

    async def test_a_namespace_that_may_not_be_seen_is_said_at_once(self, cluster: Cluster) -> None:
        cluster.server.allowed["actuator"] = set()
        with pytest.raises(BackendError, match=r'cannot be reached.*User "actuator" cannot list'):
            async with opened(cluster):
                pass


def policies(cluster: Cluster) -> list[str]:
    return [one["metadata"]["labels"]["stretto.dev/job"] for one in cluster.storage.all("networkpolicies")]


async def left(backend: KubernetesBackend, pod: str) -> None:
    """End a pod and clear it."""
    await backend.kill("job", pod)
    await until(backend, exited, pod)
    await backend.forget("job", pod)


class TestPolicies:
    """A job's NetworkPolicy lasts as long as a pod is there, or on its way."""

    async def test_is_there_before_the_first_pod_and_goes_with_the_last(
        self, cluster: Cluster, backend: KubernetesBackend
    ) -> None:
        """Read the history of changes for the order; end two pods one after the other."""
        await backend.launch(spec("ps-0"))
        await backend.launch(spec("worker-0"))
        written = [plural for _, plural, kind, _ in cluster.storage.history if kind == "ADDED"]
        assert written.index("networkpolicies") < written.index("pods")
        assert written.count("networkpolicies") == 1
        await left(backend, "ps-0")
        assert policies(cluster) == ["job"]
        await left(backend, "worker-0")
        assert policies(cluster) == []

    async def test_is_put_back_with_the_next_pod(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        """Delete and change it behind the actuator's back; a launch makes it what it has to be."""
        await backend.launch(spec("ps-0"))
        (made,) = cluster.storage.all("networkpolicies")
        cluster.storage.remove("networkpolicies", made["metadata"]["name"])
        await backend.launch(spec("worker-0"))
        (again,) = cluster.storage.all("networkpolicies")
        cluster.storage.put("networkpolicies", {**again, "spec": {**again["spec"], "ingress": [{}]}})
        await backend.launch(spec("worker-1"))
        (last,) = cluster.storage.all("networkpolicies")
        assert last["spec"] == again["spec"] == made["spec"]

    async def test_stays_while_pods_come_as_others_go(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        """Each round clears the last pod of the job while the next one starts."""
        await backend.launch(spec("worker-0"))
        for number in range(4):
            await backend.kill("job", f"worker-{number}")
            await until(backend, exited, f"worker-{number}")
            await asyncio.gather(
                backend.forget("job", f"worker-{number}"), backend.launch(spec(f"worker-{number + 1}"))
            )
            assert policies(cluster) == ["job"]

    async def test_goes_with_a_pod_that_was_never_placed(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        """A quota keeps the pod out, and it is not wanted any more; another one can never be."""
        cluster.server.quota = {"pods": 0}
        await backend.launch(spec())
        assert policies(cluster) == ["job"]
        await backend.stop("job", "worker-0", 5)
        assert policies(cluster) == []
        with pytest.raises(BackendError, match="is refused by Kubernetes"):
            await backend.launch(spec("WORKER_0"))
        assert policies(cluster) == []

    async def test_that_an_actuator_left_behind_is_removed_by_the_next(self, cluster: Cluster) -> None:
        """Let the clock of one that starts stand an hour later; the policy of a job with pods stays."""
        async with opened(cluster) as first:
            await first.launch(spec())
            await until(first, runs)
            (kept,) = cluster.storage.all("networkpolicies")
            labels = {**kept["metadata"]["labels"], "stretto.dev/job": "gone"}
            left_behind = {**kept, "metadata": {"name": "left-behind", "labels": labels}}
            cluster.storage.put("networkpolicies", left_behind)
        async with opened(cluster):
            assert sorted(policies(cluster)) == ["gone", "job"], "its first pod may be on its way"
        settings = settings_of(cluster)
        later = backend_of(settings)
        later._clock = lambda: time.time() + 3600
        await later.open()
        await later.close()
        assert policies(cluster) == ["job"]

    async def test_that_may_not_be_made_keeps_the_pod_out(self, cluster: Cluster, backend: KubernetesBackend) -> None:
        """Without the right, a launch is refused; where the setting says so, pods are launched without policies."""
        cluster.server.allowed["actuator"] -= {(verb, "networkpolicies") for verb in ("create", "patch", "list")}
        with pytest.raises(BackendError, match="networkpolicies"):
            await backend.launch(spec())
        assert cluster.storage.objects == {}
        async with opened(cluster, kubernetes_network_policies=False) as without:
            await without.launch(spec())
            await until(without, runs)
        assert policies(cluster) == []


async def test_a_pod_that_is_held_back_gets_its_files_anew_and_no_other_does(
    cluster: Cluster, backend: KubernetesBackend
) -> None:
    def laid(pod: str) -> str:
        secret = cluster.storage.get("secrets", name_of(pod))
        assert secret is not None
        return base64.b64decode(secret["data"]["bus.creds"]).decode()

    for pod in ("worker-0", "worker-1"):
        await backend.launch(spec(pod, cpu_cores=1000.0, files={"bus.creds": b"first"}))
        await until(backend, lambda status: status.waiting is not None and status.waiting.reason == "no-room", pod)
    found = cluster.storage.get("pods", name_of())
    assert found is not None
    gate = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "waits for Kueue"}
    found |= {"spec": {**found["spec"], "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}}
    cluster.storage.put("pods", {**found, "status": {**found["status"], "conditions": [gate]}})
    await until(backend, lambda status: status.waiting == Waiting("quota", "waits for Kueue", held=True))
    for pod in ("worker-0", "worker-1"):
        await backend.launch(spec(pod, cpu_cores=1000.0, files={"bus.creds": b"second"}))
    assert (laid("worker-0"), laid("worker-1")) == ("second", "first")
    assert len(cluster.storage.all("pods")) == 2

"""The contract with pods of an API server that runs them as processes of this machine."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest
from backend_contract import BackendContract
from fake_kubernetes import Cluster, running_cluster
from stretto_actuator.backend import Backend, PodSpec
from stretto_actuator.kubernetes.backend import KubernetesBackend, backend_of
from stretto_actuator.kubernetes.manifest import Installation
from stretto_actuator.kubernetes.pod_status import in_force
from stretto_actuator.settings import ActuatorSettings

IMAGE = "trainer:1"


class Pods:
    """Two installations share a namespace."""

    python = sys.executable
    image = IMAGE
    memory_bytes = 256 * 2**20
    resizes = True
    absent: ClassVar = {
        "test_memory_in_use_is_never_taken_away": "a kubelet refuses the whole shrinking: tested in test_kubernetes"
    }

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.backend: KubernetesBackend
        self._others: list[KubernetesBackend] = []
        cluster.kubelet.images = {IMAGE}

    async def opened(self, installation: str = "one") -> KubernetesBackend:
        settings = ActuatorSettings(
            state_folder=self.cluster.folder,
            installation=installation,
            pod_image=IMAGE,
            kubernetes_namespace=self.cluster.server.namespace,
            kubernetes_config=self.cluster.kubeconfig(),
        )
        backend = backend_of(settings)
        await backend.open()
        return backend

    async def restart(self) -> None:
        await self.backend.close()
        self.backend = await self.opened()

    async def break_watch(self) -> None:
        await self.cluster.server.stop()
        await self.cluster.server.start()

    async def age(self) -> None:
        """Nothing is kept for a time."""

    async def other(self) -> Backend:
        self._others.append(await self.opened("two"))
        return self._others[-1]

    async def slay(self, job: str, pod: str) -> None:
        uid = self._object(job, pod)["metadata"]["uid"]
        self.cluster.kubelet.running[uid].process.kill()

    def too_large(self) -> PodSpec:
        return PodSpec("contract", "worker-0", (self.python,), {}, cpu_cores=1000.0, memory_bytes=2**30)

    async def enforced(self, job: str, pod: str) -> tuple[float, int]:
        one = self._object(job, pod)
        cpu_cores, _ = in_force(one)
        return cpu_cores, self.cluster.kubelet.running[one["metadata"]["uid"]].limit_bytes

    def _object(self, job: str, pod: str) -> dict[str, dict[str, str]]:
        found = self.cluster.storage.get("pods", Installation("one", "").name_of(job, pod))
        assert found is not None
        return found

    async def end(self) -> None:
        for backend in (self.backend, *self._others):
            await backend.close()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Pods]:
    async with running_cluster(tmp_path) as cluster:
        made = Pods(cluster)
        made.backend = await made.opened()
        yield made
        await made.end()


class TestKubernetes(BackendContract):
    """The contract, with ``kubernetes.py``."""

"""The contract with pods of a real cluster: STRETTO_TEST_KUBECONFIG names it (`python -m tests.kubernetes up` runs one
of this machine's Docker engine). Skips without."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from backend_contract import BackendContract
from stretto_actuator.backend import Backend, PodSpec
from stretto_actuator.kubernetes.backend import KubernetesBackend, backend_of
from stretto_actuator.kubernetes.manifest import Installation
from stretto_actuator.kubernetes.pod_status import in_force
from stretto_actuator.settings import ActuatorSettings
from stretto_kube import PODS, Api

KUBECONFIG = os.environ.get("STRETTO_TEST_KUBECONFIG", "")
IMAGE = os.environ.get("STRETTO_TEST_POD_IMAGE", "python:3.11-slim-bookworm")
NAMESPACE = "default"
pytestmark = pytest.mark.skipif(not KUBECONFIG, reason="no real cluster: set STRETTO_TEST_KUBECONFIG")


class Way:
    """A TCP connection to the API server that can be cut."""

    def __init__(self, url: str) -> None:
        there = urlsplit(url)
        self._there = there.hostname, there.port
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in [*self._open]:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection(*self._there)
        both = {writer, here}
        self._open |= both
        with contextlib.suppress(asyncio.CancelledError):  # the end of the test
            await asyncio.gather(_pass_on(reader, here), _pass_on(there, writer))
        self._open -= both


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()


class RealPods:
    """Two installations share a namespace."""

    python = "python3"
    image = IMAGE
    memory_bytes = 256 * 2**20

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"t{uuid.uuid4().hex[:8]}"
        self._others: list[KubernetesBackend] = []
        self.backend: KubernetesBackend
        self.resizes = False
        self.absent = {"test_memory_in_use_is_never_taken_away": "a kubelet refuses the whole shrinking"}

    async def start(self) -> None:
        document = yaml.safe_load(await asyncio.to_thread(Path(KUBECONFIG).read_text))
        cluster = document["clusters"][0]["cluster"]
        self._way = Way(cluster["server"])
        await self._way.start()
        cluster["server"] = f"https://127.0.0.1:{self._way.port}"
        self.kubeconfig = self._folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(document))
        self.api = await Api.connect("test", NAMESPACE, self.kubeconfig)
        minor = int((await self.api._ask("GET", "/version"))["minor"].rstrip("+"))
        self.resizes = minor >= 33
        if minor < 22:
            self.absent["test_a_pod_is_asked_first_and_killed_after_its_grace"] = (
                "before 1.22 a kubelet keeps to the grace that it was told first"
            )
        self.backend = await self.opened(self._name)

    async def opened(self, installation: str) -> KubernetesBackend:
        settings = ActuatorSettings(
            state_folder=self._folder,
            installation=installation,
            pod_image=IMAGE,
            kubernetes_namespace=NAMESPACE,
            kubernetes_config=self.kubeconfig,
        )
        backend = backend_of(settings)
        await backend.open()
        return backend

    async def restart(self) -> None:
        await self.backend.close()
        self.backend = await self.opened(self._name)

    async def break_watch(self) -> None:
        await self._way.stop()
        await self._way.start()

    async def age(self) -> None:
        """Nothing is kept for a time."""

    async def other(self) -> Backend:
        self._others.append(await self.opened(f"{self._name}-other"))
        return self._others[-1]

    async def slay(self, job: str, pod: str) -> None:
        """By the engine below the kubelet."""
        labels = {"io.kubernetes.pod.name": self._named(job, pod), "io.kubernetes.container.name": "pod"}
        filters = [part for key, value in labels.items() for part in ("--filter", f"label={key}={value}")]
        found = await asyncio.to_thread(subprocess.check_output, ["docker", "ps", "-q", *filters], text=True)
        await asyncio.to_thread(subprocess.check_output, ["docker", "kill", found.strip()])

    def too_large(self) -> PodSpec:
        return PodSpec("contract", "worker-0", (self.python,), {}, cpu_cores=1000.0, memory_bytes=2**30)

    async def enforced(self, job: str, pod: str) -> tuple[float, int]:
        found = await self.api.get(PODS, self._named(job, pod))
        assert found is not None
        return in_force(found)

    def _named(self, job: str, pod: str) -> str:
        return Installation(self._name, "").name_of(job, pod)

    async def end(self) -> None:
        for backend in (self.backend, *self._others):
            for pod in await backend.list():
                await backend.kill(pod.job, pod.pod)
                await backend.forget(pod.job, pod.pod)
            await backend.close()
        await self.api.close()
        await self._way.stop()


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[RealPods]:
    made = RealPods(tmp_path)
    await made.start()
    yield made
    await made.end()


class TestRealKubernetes(BackendContract):
    """The contract, with ``kubernetes.py``."""

"""A real Docker engine as the contract's place; reached through a proxy, so that its connections can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from pathlib import Path
from typing import Any, ClassVar

import docker
import docker.errors
import pytest
from stretto_actuator.backend import Backend, PodSpec
from stretto_actuator.docker.backend import DockerBackend, backend_of
from stretto_actuator.docker.engine import INSTALLATION
from stretto_actuator.settings import ActuatorSettings

IMAGE = os.environ.get("STRETTO_TEST_POD_IMAGE", "python:3.11-slim-bookworm")
SOCKET = Path(os.environ.get("STRETTO_TEST_DOCKER_SOCKET", "/var/run/docker.sock"))
AWAY_S = 0.3
PERIOD_US = 100_000


def engine_client() -> Any:
    """Skips, with the reason, where there is no engine or no image to run."""
    if not SOCKET.exists():
        pytest.skip(f"no Docker engine listens at {SOCKET}")
    try:
        client = docker.APIClient(f"unix://{SOCKET}", version="auto")
        client.inspect_image(IMAGE)
    except docker.errors.ImageNotFound:
        pytest.skip(f"the engine has no image {IMAGE}; pull it, or name another in STRETTO_TEST_POD_IMAGE")
    except docker.errors.DockerException as error:
        pytest.skip(f"the Docker engine at {SOCKET} does not answer: {error}")
    return client


class Proxy:
    """A socket that leads to the engine's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_unix_connection(SOCKET)
        both = {writer, here}
        self._open |= both
        try:
            await asyncio.gather(_pass_on(reader, here), _pass_on(there, writer))
        finally:
            self._open -= both
            for each in both:
                each.close()

    async def stop(self) -> None:
        """Stop listening and cut open connections."""
        assert self._server is not None
        self._server.close()
        for writer in [*self._open]:
            writer.transport.abort()
        self.path.unlink(missing_ok=True)


async def _pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
        target.write_eof()


class Containers:
    """Two installations are two labels on one engine."""

    python = "python"
    image = IMAGE
    memory_bytes = 256 * 2**20
    resizes = True
    absent: ClassVar = {
        "test_a_pod_without_room_is_pending_and_says_why": "an engine has no notion of room or quota: containers start"
    }

    def __init__(self, client: Any, folder: Path) -> None:
        self.client = client
        self.name = f"t{uuid.uuid4().hex[:10]}"
        self.proxy = Proxy(folder / "engine.sock")
        self.backend: DockerBackend
        self._others: list[DockerBackend] = []

    async def start(self) -> None:
        await self.proxy.start()
        self.backend = await self.opened()

    async def opened(self, more: str = "", **settings: Any) -> DockerBackend:
        """Start a backend of this or another installation; all are on one network."""
        given = {
            "installation": self.name + more,
            "docker_url": f"unix://{self.proxy.path}",
            "docker_network": f"{self.name}-pods",
            "pod_nats_url": "nats://bus:4222",
            "pod_image": IMAGE,
        }
        made = backend_of(ActuatorSettings(**(given | settings)))
        await made.open()
        return made

    async def restart(self) -> None:
        await self.backend.close()
        self.backend = await self.opened()

    async def break_watch(self) -> None:
        await self.proxy.stop()
        await asyncio.sleep(AWAY_S)
        await self.proxy.start()

    async def age(self) -> None:
        """Nothing is kept for a time."""

    async def other(self) -> Backend:
        self._others.append(await self.opened("-other"))
        return self._others[-1]

    def container(self, job: str, pod: str) -> str:
        return f"{pod}.{job}.{self.name}"

    async def slay(self, job: str, pod: str) -> None:
        await asyncio.to_thread(self.client.kill, self.container(job, pod))

    def too_large(self) -> PodSpec:
        raise NotImplementedError

    async def enforced(self, job: str, pod: str) -> tuple[float, int]:
        told = (await asyncio.to_thread(self.client.inspect_container, self.container(job, pod)))["HostConfig"]
        assert told["MemorySwap"] == told["Memory"]
        return told["CpuQuota"] / told["CpuPeriod"], told["Memory"]

    async def end(self) -> None:
        for backend in (self.backend, *self._others):
            await backend.close()
        await self.proxy.stop()
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        ours = [{"label": f"{INSTALLATION}={name}"} for name in (self.name, f"{self.name}-other")]
        for each in (each for filters in ours for each in self.client.containers(all=True, filters=filters)):
            self.client.remove_container(each["Id"], v=True, force=True)
        for each in (each for filters in ours for each in self.client.networks(filters=filters)):
            self.client.remove_network(each["Id"])

"""The actuator over a real bus with the trainer's own image on a real engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import docker
import pytest
from engine_place import Containers, engine_client
from stretto_messages.actuator import PodExited, PodStarted, ServersChanged
from stretto_messages.gateway import JobCancelled

from tests.containers.images import name_of, of_another_revision

TRAINER = os.environ.get("STRETTO_TEST_TRAINER_IMAGE", name_of("trainer"))
LIMIT_S = 300.0


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Containers]:
    made = Containers(engine_client(), tmp_path)
    try:
        image = made.client.inspect_image(TRAINER)
    except docker.errors.ImageNotFound:
        pytest.skip(f"the engine has no image {TRAINER}; make it (compose/Dockerfile)")
    if reason := of_another_revision(TRAINER, image):
        pytest.skip(reason)
    yield made
    made._remove()


@pytest.fixture
async def door(stage: Any) -> AsyncIterator[int]:
    """A port at which containers reach the server, which listens on loopback alone."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, here = await asyncio.open_connection("127.0.0.1", stage.server.port)
        await asyncio.gather(_copy(reader, here), _copy(there, writer))

    server = await asyncio.start_server(pass_on, "0.0.0.0")
    yield server.sockets[0].getsockname()[1]
    server.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        target.write(data)
    target.close()


@pytest.mark.slow
async def test_a_plan_becomes_containers_that_find_each_other_and_are_replaced(
    stage: Any, place: Containers, door: int
) -> None:
    await stage.start(
        backend="docker",
        installation=place.name,
        start_timeout_s=LIMIT_S,
        docker_network=f"{place.name}-pods",
        docker_reach="host",
        pod_image=TRAINER,
        pod_python="",
        pod_nats_url=f"nats://host.docker.internal:{door}",
        signing_key_file=stage.server.keys.signing_file,
    )
    await stage.submit(model={"entry": "stretto.examples.wide_deep:WideDeep"})
    await stage.decide(1, workers=1, ps=2, cpu=1.0, memory=1 << 30)
    first = await stage.until(lambda: stage.told(ServersChanged), LIMIT_S)
    hosts = [server.address.partition(":")[0] for server in first[0].servers]
    assert hosts == [f"ps-{number}.actuated.{place.name}" for number in (0, 1)]
    await stage.until(lambda: [e for e in stage.told(PodStarted) if e.role == "worker"], LIMIT_S)
    assert {e.limits for e in stage.told(PodStarted)} == {("docker-cpu", "docker-memory")}
    assert {e.cpu_cores for e in stage.told(PodStarted)} == {1.0}
    await place.slay("actuated", "worker-0")
    (exited,) = await stage.until(lambda: stage.told(PodExited), LIMIT_S)
    assert (exited.pod, exited.reason) == ("worker-0", "killed")
    await stage.until(lambda: [e for e in stage.told(PodStarted) if e.pod == "worker-1"], LIMIT_S)
    await stage.client.publish(JobCancelled(job="actuated"))
    await stage.until(lambda: len(stage.told(PodExited)) == 4, LIMIT_S)
    await stage.stop_actuator()
    assert place.client.containers(filters={"name": place.name}) == []

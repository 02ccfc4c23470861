"""Seconds from a decided plan to its running container, on a real Docker engine that has the image.

The actuator runs in this process, over a real bus; the engine says when each container began. Without an engine, or
without the image, there are no rows.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
import uuid
from datetime import datetime
from typing import Any

import docker
import docker.errors
from stretto_actuator.service import Actuator
from stretto_actuator.settings import ActuatorSettings
from stretto_bus import Client
from stretto_messages.gateway import JobCancelled
from stretto_runtime import serve
from stretto_wire.jobspec.kubernetes import INSTALLATION

from tests.bench.log.bus import fresh_bus
from tests.bench.rows import Row, row_at_most
from tests.live_bus import decision, plan_of, submission

IMAGE = "python:3.11-slim-bookworm"
JOBS = 10
BAR_S = 1.5
GIVE_UP_S = 60.0
MIB = 1 << 20


def run() -> list[Row]:
    """Return one row, the worst of some jobs that start one after the other."""
    try:
        engine: Any = docker.APIClient(**docker.utils.kwargs_from_env(), version="auto")
        engine.inspect_image(IMAGE)
    except docker.errors.DockerException:
        return []
    took_s = asyncio.run(_measure(engine))
    note = f"worst of {len(took_s)} jobs; median {statistics.median(took_s):.2f} s; load {os.getloadavg()[0]:.1f}"
    return [row_at_most("container runs after plan-decided", max(took_s), "s", BAR_S, note)]


async def _measure(engine: Any) -> list[float]:
    installation = f"bench-{uuid.uuid4().hex[:8]}"
    ours = {"label": f"{INSTALLATION}={installation}"}
    stop = asyncio.Event()
    async with fresh_bus() as (client, server, folder):
        given = {"backend": "docker", "installation": installation, "pod_image": IMAGE, "pod_python": "sleep"}
        settings = ActuatorSettings(nats_url=server.url, state_folder=folder, **given)
        serving = asyncio.create_task(serve(Actuator(settings), stop))
        try:
            took_s = [await _start(client, engine, ours, f"job-{number}") for number in range(JOBS + 1)]
            return took_s[1:]  # before the first one, the actuator had just come
        finally:
            stop.set()
            await serving
            for each in engine.containers(all=True, filters=ours):
                engine.remove_container(each["Id"], v=True, force=True)
            for each in engine.networks(filters=ours):
                engine.remove_network(each["Id"])


async def _start(client: Client, engine: Any, ours: dict[str, str], job: str) -> float:
    """Time the start of a job's first parameter server, and end it at once."""
    await client.publish(submission(job, dataset={"samples": 1}, checkpoint={"every_s": None}))
    await asyncio.sleep(0.5)  # the submission has been handled: what is measured begins with the plan
    decided_s = time.time()
    await client.publish(decision(job, plan_of(memory=64 * MIB)))
    name = f"ps-0.{job}.{ours['label'].partition('=')[2]}"
    while time.time() - decided_s < GIVE_UP_S:
        try:
            state = (await asyncio.to_thread(engine.inspect_container, name))["State"]
        except docker.errors.NotFound:
            state = {"Status": "created"}
        if state["Status"] != "created":
            await client.publish(JobCancelled(job=job))
            return datetime.fromisoformat(state["StartedAt"]).timestamp() - decided_s
        await asyncio.sleep(0.02)
    raise RuntimeError(f"{name} did not start within {GIVE_UP_S:.0f} s")

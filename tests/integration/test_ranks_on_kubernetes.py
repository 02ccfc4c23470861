"""A TrainingJob of several ranks on Kubernetes: an API server that checks what it is sent, and pods as processes.

Actuator and dispatcher are real, and the pods run the user's script by Stretto's own program. The test decides the
plans; what makes a job of an object is the gateway's own function.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import stretto_wire as wire
from fake_kubernetes import Cluster, running_cluster
from stretto_actuator.service import Actuator
from stretto_actuator.settings import ActuatorSettings
from stretto_bus import Client
from stretto_dispatcher.service import Dispatcher
from stretto_dispatcher.settings import DispatcherSettings
from stretto_gateway.training_jobs.schema import TRAINING_JOBS, definition
from stretto_gateway.training_jobs.status import spec_of
from stretto_kube import Api
from stretto_messages.actuator import JobFinished
from stretto_messages.base import NO_SERVERS
from stretto_messages.values import Plan
from stretto_runtime import serve

from tests.containers.test_ranks import TRAIN
from tests.live_bus import decision, live_bus
from tests.waits import until

JOB, SAMPLES = "ranks", 20_000
SPEC: dict[str, Any] = {
    "program": {"command": [sys.executable, "train.py"], "level": 2, "resize": "restart"},
    "dataset": {"samples": SAMPLES, "batch_size": 64, "batches_per_shard": 10},
    "resources": {"workers": {"count": {"min": 1, "max": 3}}},
}

pytestmark = [pytest.mark.slow, pytest.mark.night]


class Stage:
    """A bus and a cluster, and the plans of the job."""

    def __init__(self, client: Client, cluster: Cluster) -> None:
        self.client, self.cluster, self.version = client, cluster, 0
        self.finished: list[JobFinished] = []

    async def decide(self, workers: int) -> None:
        """The arbiter's word."""
        self.version += 1
        ps, ps_cpu_cores, ps_memory_bytes = NO_SERVERS
        plan = Plan(workers, ps, 0.2, ps_cpu_cores, 2**29, ps_memory_bytes)
        await self.client.publish(decision(JOB, plan, self.version))

    async def follow(self) -> None:
        async for event in self.client.events(patterns=(f"evt.v1.actuator.job-finished.{JOB}",)):
            if isinstance(event.message, JobFinished):
                self.finished.append(event.message)

    def printed(self) -> str:
        """Return what the programs of all pods so far have printed."""
        return "".join(Path(log).read_text(errors="replace") for log in self.cluster.server.logs.values())

    async def prints(self, text: str, times: int = 1) -> None:
        await until(lambda: self.printed().count(text) >= times, lambda: f"{text}\n{self.printed()[-3000:]}", 120.0)

    def kill(self, pod: str) -> None:
        """Kill -9 the process of a pod, as the kernel may."""
        found = next(each for each in self.cluster.pods() if each["metadata"]["labels"]["stretto.dev/pod"] == pod)
        os.killpg(self.cluster.kubelet.running[found["metadata"]["uid"]].process.pid, signal.SIGKILL)


@contextlib.asynccontextmanager
async def standing(folder: Path) -> AsyncIterator[Stage]:
    async with live_bus(folder) as (server, client), running_cluster(folder / "cluster") as cluster:
        cluster.install(definition())
        assert server.keys is not None
        settings = {"nats_url": server.url, "state_folder": folder / "state", "lease_s": 1.0}
        place = {
            "backend": "kubernetes",
            "pod_image": "trainer:1",
            "pod_python": sys.executable,
            "kubernetes_config": cluster.kubeconfig(),
            "kubernetes_namespace": cluster.server.namespace,
            "store_url": f"file://{folder}/store",
            "signing_key_file": server.keys.signing_file,
            "poll_s": 0.3,
            "stop_grace_s": 3.0,
        }
        stop = asyncio.Event()
        services = [
            Actuator(ActuatorSettings(**settings, **place, nats_credentials=server.login("actuator").credentials)),
            Dispatcher(DispatcherSettings(**settings, nats_credentials=server.login("dispatcher").credentials)),
        ]
        stage = Stage(client, cluster)
        tasks = [asyncio.create_task(serve(each, stop)) for each in services]
        tasks.append(asyncio.create_task(stage.follow()))
        try:
            yield stage
        finally:
            stop.set()
            tasks[-1].cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def submit(stage: Stage, folder: Path) -> None:
    """Apply the object as a user does, and submit its job as the gateway does."""
    (folder / "train.py").write_text(TRAIN)
    spec = {**SPEC, "program": {**SPEC["program"], "path": str(folder)}}
    user = await Api.connect("kubectl", stage.cluster.server.namespace, stage.cluster.kubeconfig())
    await user.apply(TRAINING_JOBS, {"metadata": {"name": JOB}, "spec": spec})
    await user.close()
    applied = stage.cluster.storage.get("trainingjobs", JOB)
    assert applied is not None
    await stage.client.publish(wire.JobSubmitted(job=JOB, spec=spec_of(applied)))


async def test_the_ranks_of_a_training_job_are_killed_and_resized(tmp_path: Path) -> None:
    async with standing(tmp_path) as stage:
        await submit(stage, tmp_path)
        await stage.decide(workers=2)
        await stage.prints("rank 1 of 2\n")
        stage.kill("worker-1")
        await stage.prints("rank 1 of 2\n", times=2)
        await stage.decide(workers=1)
        await stage.prints("rank 0 of 1\n")
        await stage.decide(workers=3)
        await stage.prints("rank 2 of 3\n")
        (finished,) = await until(lambda: stage.finished, lambda: stage.printed()[-3000:], 120.0)
        assert (finished.samples_applied, finished.samples_lost) == (SAMPLES, 0)
        ends = {line for line in stage.printed().splitlines() if line.startswith("parameters ")}
        assert ends == {f"parameters {SAMPLES} {SAMPLES * (SAMPLES - 1) // 2}"}

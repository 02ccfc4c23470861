"""Three replicas of each of the eight services, one of each dying on the way: the same decisions as one would make.

What one would have made is what a replay of the same inputs makes: one machine, in order, never interrupted.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from stretto_actuator.service import Actuator
from stretto_arbiter.service import Arbiter
from stretto_bus import Client
from stretto_checkpoints.service import Checkpoints
from stretto_dispatcher.service import Dispatcher
from stretto_fitter.service import Fitter
from stretto_messages.actuator import PlanApplied, PodExited, PodStarted
from stretto_messages.dispatcher import JobCompleted, JobProgressed, NextShard, ShardReport
from stretto_messages.pods import PsReported, WorkerReported
from stretto_messages.values import StepTimes
from stretto_oom.service import Oom
from stretto_planner.service import Planner
from stretto_profiler.service import Profiler
from stretto_runtime import Runner, Service
from stretto_runtime.replay import replay
from stretto_runtime.streams import BusStreams
from stretto_wire.contract.registry import partition_of

from tests.integration.pods import end_pods
from tests.live_bus import live_bus, python_of, submission
from tests.waits import until

FAKE_POD = Path(__file__).parents[2] / "services/actuator/tests/fake_pod.py"
MIB, GIB = 1 << 20, 1 << 30
JOBS = ("job-1", "job-2", "job-3")
SAMPLES = 500_000
SETTINGS: dict[type[Service], dict[str, Any]] = {
    Profiler: {"window_s": 0.5},
    Fitter: {},
    Planner: {"cpu_cores": 8, "memory_bytes": 32 * GIB, "window_s": 0.5, "ps_change_s": 0.5},
    Arbiter: {"cpu_cores": 8, "memory_bytes": 32 * GIB, "settle_s": 0, "round_s": 0},
    Dispatcher: {"forget_after_s": 1, "progress_every_s": 0.3},
    Checkpoints: {},
    Oom: {"repeat_s": 1},
    Actuator: {"poll_s": 0.3, "stop_grace_s": 1},
}


class Installation:
    """The services, and the jobs' workers, which lease shards and send telemetry."""

    def __init__(self, client: Client, url: str, folder: Path) -> None:
        self.client = client
        self.told: list[Any] = []
        self.replicas: list[tuple[Runner, asyncio.Task[None]]] = []
        python = python_of(folder / "fake-python", FAKE_POD)
        self._base = {"nats_url": url, "state_folder": folder / "state"}
        self._more = {Actuator: {"pod_python": python, "pod_nats_url": url}}
        self._workers: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._following = asyncio.create_task(self._follow())

    async def start(self, kind: type[Service]) -> None:
        settings = kind.settings_type(**self._base, **SETTINGS[kind], **self._more.get(kind, {}))
        runner = Runner(kind(settings))
        self.replicas.append((runner, asyncio.create_task(runner.run())))
        await self.until(lambda: runner.port)  # one after another: they write where they listen, all under one pid

    async def kill(self, kind: type[Service], job: str) -> None:
        """The owner of ``job``, without a chance to save or to leave."""
        await self.until(lambda: self._owner(kind, job) is not None)
        task = self._owner(kind, job)
        assert task is not None
        task.cancel()
        await asyncio.wait([task])

    def _owner(self, kind: type[Service], job: str) -> asyncio.Task[None] | None:
        for runner, task in self.replicas:
            serves = isinstance(runner.service, kind) and not task.done()
            if serves and partition_of(job) in runner.report()["partitions"]:
                return task
        return None

    async def end(self) -> None:
        for task in (self._following, *self._workers.values()):
            task.cancel()
        for runner, _ in self.replicas:
            runner.stop()
        await asyncio.gather(*(task for _, task in self.replicas), return_exceptions=True)

    def of(self, kind: type, job: str = "") -> list[Any]:
        return [one for one in self.told if isinstance(one, kind) and job in ("", one.job)]

    async def until(self, condition: Any) -> None:
        await until(condition, self._found)

    def _found(self) -> Any:
        unready = [report for runner, _ in self.replicas if not (report := runner.report())["ready"]]
        told = [(type(one).__name__, one.job) for one in self.told[-30:]]
        return f"last events: {told}; not ready: {unready}; ended: {[task for _, task in self.replicas if task.done()]}"

    async def _follow(self) -> None:
        async for event in self.client.events():
            message: Any = event.message
            self.told.append(message)
            if isinstance(message, PodStarted) and message.role in ("worker", "ps"):
                pod = self._work if message.role == "worker" else self._serve
                self._workers[message.job, message.pod] = asyncio.create_task(pod(message))
            elif isinstance(message, PodExited) and (task := self._workers.pop((message.job, message.pod), None)):
                task.cancel()

    async def _work(self, pod: PodStarted) -> None:
        done: ShardReport | None = None
        samples = 0
        for number in itertools.count(1):
            request = NextShard(job=pod.job, request_id=f"{pod.pod}.{number}", pod=pod.pod, complete=done)
            reply = await self.client.call(request, 30)
            if reply.answer in ("end", "unknown"):
                return
            await asyncio.sleep(0.05)
            done = None
            if reply.shard is not None:
                samples += 512
                done = ShardReport(id=reply.shard.id, attempt=reply.shard.attempt)
            await self.client.publish(
                WorkerReported(
                    job=pod.job, pod=pod.pod, plan_version=pod.plan_version, ended_at_s=time.time(), window_s=0.05,
                    steps=samples // 512 and 1, steps_total=samples // 512, samples_total=samples, step_time_s=0.04,
                    longest_gap_s=0.05, times=StepTimes(emb_s=0.01, grad_s=0.01, upd_s=0.01, sync_s=0.01),
                    cpu_used_cores=0.4, cpu_limit_cores=0.5, memory_used_bytes=100 * MIB,
                    memory_limit_bytes=pod.memory_bytes,
                )
            )  # fmt: skip

    async def _serve(self, pod: PodStarted) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(0.1)
            await self.client.publish(
                PsReported(
                    job=pod.job, pod=pod.pod, ended_at_s=time.time(), window_s=0.1, updates=2, update_time_s=0.001,
                    applied_samples_total=1024 * number, categories=1000 * number, row_bytes=152.6,
                    table_bytes=160_000 * number, buckets=32, cpu_used_cores=0.1, cpu_limit_cores=0.5,
                    memory_used_bytes=(100 + 5 * number) * MIB, memory_limit_bytes=pod.memory_bytes,
                )
            )  # fmt: skip


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    async with live_bus(tmp_path, secured=False) as (server, client):
        made = Installation(client, server.url, tmp_path)
        yield made
        await made.end()
        await end_pods(tmp_path / "state")


async def test_three_replicas_decide_what_one_would_have_decided(installation: Installation) -> None:
    for kind in SETTINGS:
        for _ in range(3):
            await installation.start(kind)
    await installation.until(
        lambda: all(r.report()["ready"] and r.report()["partitions"] for r, _ in installation.replicas)
    )
    assert all(len(runner.report()["partitions"]) < 7 for runner, _ in installation.replicas)
    for job in JOBS:
        dataset = {"samples": SAMPLES, "batch_size": 512}
        await installation.client.publish(submission(job, dataset=dataset, checkpoint={"every_s": 2}))
    await installation.until(lambda: all(installation.of(PlanApplied, job) for job in JOBS))
    for kind in SETTINGS:
        await installation.kill(kind, JOBS[0])
    before = len(installation.of(JobProgressed, JOBS[0]))
    await installation.until(lambda: len(installation.of(JobProgressed, JOBS[0])) > before)
    await installation.until(lambda: all(installation.of(JobCompleted, job) for job in JOBS))
    decided = dict.fromkeys((kind.name for kind in SETTINGS), 0)
    for kind, job in itertools.product(SETTINGS, JOBS):
        again = await replay(
            BusStreams(installation.client.bus),
            kind(kind.settings_type(state_folder=installation._base["state_folder"])),
            job,
        )
        others = [decision for decision in again.decisions if decision.verdict != "same"]
        assert not others, (kind.name, job, others[:3])
        decided[kind.name] += again.count("same")
    # the memory watch may find nothing worth telling before a quick job is over
    assert all(count for name, count in decided.items() if name != Oom.name), decided

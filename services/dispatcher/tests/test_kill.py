"""kill -9 of the dispatcher in the middle of a job: every shard is completed once, by the worker that held it.

Meanwhile data arrive in partitions, held-out shards go round, and workers vanish between their push and their report.
Orders of events are the simulation's (`libs/testing`); here processes die for real.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stretto_bus import Client
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import PodExited
from stretto_messages.dispatcher import (
    AuditLedger,
    EvaluationMeasured,
    JobCompleted,
    MarkLedger,
    NextShard,
    ShardReport,
)
from stretto_messages.gateway import DataArrived
from stretto_messages.values import SCORE_BINS, DataPartition, PartialEvaluation, Shard
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec

from tests.live_bus import live_bus

JOB, WORKERS = "killed", 4


class Stage:
    """Two replicas of the dispatcher on a server of their own."""

    def __init__(self, server: EmbeddedServer, client: Client, folder: Path) -> None:
        self.client = client
        self._environment = {
            **os.environ,
            "STRETTO_NATS_URL": server.url,
            "STRETTO_STATE_FOLDER": str(folder),
            "STRETTO_LEASE_S": "1",
        }
        self._replicas: list[Process] = []

    async def add(self) -> None:
        command = (sys.executable, "-m", "stretto_dispatcher")
        process = await asyncio.create_subprocess_exec(*command, env=self._environment, stdout=DEVNULL, stderr=DEVNULL)
        self._replicas.append(process)

    async def replace(self) -> None:
        self._replicas.pop(0).kill()
        await self.add()

    async def end(self) -> None:
        for process in self._replicas:
            process.kill()
            await process.wait()
        self._replicas.clear()

    async def submit(self, submitted: JobSubmitted) -> None:
        """Returns when the dispatcher knows the job."""
        await self.client.publish(submitted)
        while (await self.client.call(MarkLedger(job=JOB, request_id=os.urandom(8).hex()), 60)).answer != "ok":
            await asyncio.sleep(0.05)

    async def said(self) -> list[Any]:
        """All there ever will be: nobody goes on."""
        await self.end()
        return [event.message async for event in self.client.events(follow=False)]


@asynccontextmanager
async def dispatching(folder: Path) -> AsyncIterator[Stage]:
    async with live_bus(folder, secured=False) as (server, client):
        stage = Stage(server, client, folder / "state")
        for _ in range(2):
            await stage.add()
        yield stage
        await stage.end()


class Stream:
    """A growing job: what its workers trained and evaluated, and partitions that are told one after the other."""

    PARTS, EACH, HELD_OUT, EVERY = 12, 800, 300, 2_000

    def __init__(self, client: Client) -> None:
        self.client = client
        self.trained: Counter[tuple[str, int]] = Counter()
        self.vanished: list[tuple[str, Shard]] = []
        self.pods = 0
        self.evaluated = 0

    def submitted(self) -> JobSubmitted:
        document = {
            "name": JOB,
            "model": {"entry": "a:B"},
            "dataset": {"growing": True, "held_out": "test", "batch_size": 10, "batches_per_shard": 2},
            "evaluate": self.HELD_OUT,
            "evaluate_every_samples": self.EVERY,
        }
        return JobSubmitted(job=JOB, spec=JobSpec.parse(document))

    async def arrive(self) -> None:
        for number in range(self.PARTS):
            half = number % 2 * self.EACH // 2  # every other one comes in two pieces
            for samples in (self.EACH - half, self.EACH):
                part = DataPartition(name=f"part={number}", samples=samples, priority=number % 3)
                await self.client.publish(DataArrived(job=JOB, partitions=(part,)))
                await asyncio.sleep(0.05)
        await self.client.publish(DataArrived(job=JOB, closed=True))

    async def work(self) -> None:
        """Pods one after the other: each vanishes after some shards, having trained one that it does not report."""
        while True:
            pod, done = f"worker-{self.pods}", None
            self.pods += 1
            for number in range(60):
                request = NextShard(job=JOB, request_id=f"{pod}.{number}", pod=pod, complete=done)
                reply = await self.client.call(request, timeout_s=60)
                assert not reply.stale
                if reply.answer == "end":
                    return
                done = None
                if reply.answer == "wait":
                    await asyncio.sleep(0.05)
                elif reply.shard is not None:
                    done = self.train(reply.shard)
                    await asyncio.sleep(0.005)
            if done is not None:
                self.vanished.append((pod, reply.shard))
                if reply.shard.kind == "train":  # its records are with the servers: whoever goes on skips them
                    self.count(reply.shard, -1)
            await self.client.publish(PodExited(job=JOB, pod=pod, role="worker", reason="killed", exit_code=-9))

    def count(self, shard: Shard, times: int) -> None:
        for sample in range(shard.start, shard.start + shard.length):
            self.trained[shard.partition, sample] += times

    def train(self, shard: Shard) -> ShardReport:
        if shard.kind == "train":
            self.count(shard, 1)
            return ShardReport(id=shard.id, attempt=shard.attempt)
        assert shard.partition == "test"
        self.evaluated += shard.length
        positives = (shard.length,) + (0,) * (SCORE_BINS - 1)
        found = PartialEvaluation(
            samples=shard.length, loss_sum=shard.length * 0.5, positives=positives, negatives=(0,) * SCORE_BINS
        )
        return ShardReport(id=shard.id, attempt=shard.attempt, evaluation=found)

    async def late_words(self) -> None:
        """Zombies report what they had: they are told that nobody knows them, and nothing counts twice."""
        for pod, shard in self.vanished:
            late = NextShard(job=JOB, request_id=f"{pod}.999", pod=pod, complete=self.report(shard))
            assert (await self.client.call(late, timeout_s=60)).answer == "unknown"

    def report(self, shard: Shard) -> ShardReport:
        before, trained = self.evaluated, self.trained.copy()
        report = self.train(shard)
        self.evaluated, self.trained = before, trained
        return report


async def test_a_growing_job_under_kills_trains_each_sample_and_counts_each_evaluation_once(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as stage:
        stream = Stream(stage.client)
        total = stream.PARTS * stream.EACH
        await stage.submit(stream.submitted())
        tasks = [asyncio.create_task(stream.work()) for _ in range(WORKERS)]
        tasks.append(asyncio.create_task(stream.arrive()))
        for third in (1, 2):
            while sum(stream.trained.values()) < third * total / 3:
                await asyncio.sleep(0.01)
                for task in tasks:
                    assert not task.done() or task.exception() is None
            await stage.replace()
        await asyncio.gather(*tasks)
        await stream.late_words()
        books = (await stage.client.call(AuditLedger(job=JOB), 60)).ledger
        said = await stage.said()
    every = {(f"part={n}", sample): 1 for n in range(stream.PARTS) for sample in range(stream.EACH)}
    assert stream.trained == Counter(every)
    assert (books.samples_done, books.samples_total, books.growing) == (total, total, False)
    (completed,) = [message for message in said if isinstance(message, JobCompleted)]
    assert completed.samples == total
    assert completed.requeued == sum(shard.kind == "train" for _, shard in stream.vanished) > 0
    measured = [message for message in said if isinstance(message, EvaluationMeasured)]
    assert len(measured) >= 2
    assert {(m.evaluation.samples, m.evaluation.loss) for m in measured} == {(stream.HELD_OUT, 0.5)}

"""An installation that is lost with all its pods, restored from a backup: its jobs go on, and the books are exact.

The pods are real processes that answer as pods do, without TensorFlow; what travels between the services is real.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import stretto_wire as wire
from stretto_bus import Client
from stretto_gateway.read_model.folds.fold import Returned
from stretto_gateway.requests.job_audit import returns
from stretto_installation.backup import restore, take
from stretto_installation.provision import provision, streams
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import JobFinished, PlanApplied, PodStarted
from stretto_messages.checkpoints import CheckpointFlushed, CheckpointRestored, SaveCheckpoint
from stretto_messages.dispatcher import (
    AuditLedger,
    AuditLedgerReply,
    JobCompleted,
    JobProgressed,
    NextShard,
    NextShardReply,
    ShardReport,
)
from stretto_runtime.restorations import restorations

from tests.integration.pods import end_pods
from tests.integration.test_parameters_come_back import JOB, House, plan_decided

SAMPLES, SHARD = 8192, 512
SPEC = {
    "name": JOB,
    "model": {"entry": "m:M"},
    "dataset": {"samples": SAMPLES, "batch_size": 64, "batches_per_shard": 8},
    "checkpoint": {"every_s": None, "keep": 1},
    "evaluate": 50,
    "environment": {"FAKE_EVALUATIONS": "15"},
}
Trained = list[tuple[int, int]]
"""first sample and number of samples of each shard, in the order of completion"""


@asynccontextmanager
async def house_on(server: EmbeddedServer, folder: Path) -> AsyncIterator[House]:
    """Run the services on ``server`` until they are stopped; then kill their pods."""
    client = await Client.connect(server.url, server.login())
    house = House(server, client, folder)
    try:
        house.start()
        yield house
    finally:
        house.stop.set()
        follower, *services = house.tasks
        await asyncio.gather(*services)
        follower.cancel()
        await end_pods(folder)
        await client.close()


class Worker:
    """A worker that completes shards on demand, and says which samples they were."""

    def __init__(self, house: House, name: str) -> None:
        self._house, self._name = house, name
        self._number = 0
        self._done: ShardReport | None = None

    async def train(self, shards: int) -> Trained:
        """Complete so many shards, or all that there are."""
        trained: Trained = []
        while len(trained) < shards and not self._house.told(JobCompleted):
            reply = await self._next()
            if reply.shard is not None:
                trained.append((reply.shard.start, reply.shard.length))
                self._done = ShardReport(id=reply.shard.id, attempt=reply.shard.attempt)
                if len(trained) == shards:
                    await self._next()  # reports the last one, and holds another
            elif reply.answer == "wait":
                await asyncio.sleep(0.05)
        return trained

    async def _next(self) -> NextShardReply:
        self._number += 1
        request = NextShard(job=JOB, request_id=f"{self._name}.{self._number}", pod=self._name, complete=self._done)
        reply = await self._house.client.call(request)
        self._done = None
        assert isinstance(reply, NextShardReply)
        return reply


async def save(house: House, number: int) -> CheckpointFlushed:
    """Take a checkpoint; returns the fact that it is complete."""
    await house.client.call(SaveCheckpoint(job=JOB, request_id=f"me.{number}"))
    return (await house.until(lambda: len(house.told(CheckpointFlushed)) == number and house.told(CheckpointFlushed)))[
        -1
    ]


async def samples_done(house: House) -> int:
    reply = await house.client.call(AuditLedger(job=JOB))
    assert isinstance(reply, AuditLedgerReply)
    assert reply.ledger is not None
    return reply.ledger.samples_done


async def test_a_restored_job_goes_on_from_its_latest_checkpoint_and_trains_each_sample_once(tmp_path: Path) -> None:
    """Method: three shards, the backup, two more, a checkpoint that replaces the one which the backup knows, one more.
    What is trained after the restoration is compared with what the checkpoint holds: nothing lacks, nothing is twice,
    and of all that was trained after the backup only the shard after the checkpoint is trained again. The audit's
    account of the return says the same."""
    state = tmp_path / "state"
    state.mkdir()
    first = EmbeddedServer(tmp_path / "nats")
    await first.start()
    operator = await Client.connect(first.url, first.login())
    await provision(operator.bus)
    async with house_on(first, state) as house:
        await house.client.publish(wire.JobSubmitted(job=JOB, spec=wire.JobSpec.parse(SPEC)))
        await house.client.publish(plan_decided())
        await house.until(lambda: house.told(PlanApplied))
        await save(house, 1)
        worker = Worker(house, "worker-0")
        before = await worker.train(3)
        manifest = await take(operator.bus, tmp_path / "backup", [config["name"] for config in streams()], time.time())
        after = await worker.train(2)
        latest = await save(house, 2)
        in_checkpoint = before + after
        lost = await worker.train(1)
        await house.until(lambda: len(list((state / f"checkpoints/{JOB}").glob("*/manifest.json"))) == 1)
    await operator.close()
    first.kill()

    second = EmbeddedServer(tmp_path / "nats-restored")
    await second.start()
    operator = await Client.connect(second.url, second.login())
    await restore(operator.bus, tmp_path / "backup", streams(), time.time())
    await operator.close()
    async with house_on(second, state) as house:
        [restored] = await house.until(lambda: house.told(CheckpointRestored))
        assert restored.checkpoint.id == latest.checkpoint.id
        pods = await house.until(
            lambda: [e.pod for e in house.told(PodStarted) if e.role == "worker" and e.pod != "worker-0"]
        )
        async with asyncio.timeout(60):
            while await samples_done(house) != SHARD * len(in_checkpoint):
                await asyncio.sleep(0.05)
        again = await Worker(house, pods[0]).train(SAMPLES // SHARD)
        [finished] = await house.until(lambda: house.told(JobFinished))
        assert await samples_done(house) == SAMPLES
        said = [event async for event in house.client.events(follow=False)]
        known = await restorations(house.client.bus)
    second.kill()
    assert finished.samples_expected == SAMPLES
    [returned] = [
        Returned(event.seq, event.time_s, event.message.returned)
        for event in said
        if isinstance(event.message, JobProgressed) and event.message.returned is not None
    ]
    [told] = returns([returned], known, submitted_at_s=said[0].time_s)
    assert (told.checkpoint, told.backup_at_s) == (latest.checkpoint.id, manifest.taken_at_s)
    assert (told.samples_before, told.samples_gained, told.samples_undone) == (3 * SHARD, 2 * SHARD, 0)
    assert set(lost) <= set(again)
    assert not set(in_checkpoint) & set(again)
    assert sorted(in_checkpoint + again) == [(start, SHARD) for start in range(0, SAMPLES, SHARD)]

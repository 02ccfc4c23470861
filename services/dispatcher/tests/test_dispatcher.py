"""The dispatcher on a real server: requests, faults, and what a restart must not change."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from stretto_bus import CallRefused, Client
from stretto_dispatcher.service import Dispatcher
from stretto_dispatcher.settings import DispatcherSettings
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import PodExited
from stretto_messages.checkpoints import CheckpointRestored
from stretto_messages.dispatcher import (
    JobCompleted,
    MarkLedger,
    NextShard,
    NextShardReply,
    ReleaseShard,
    ShardAbandoned,
    ShardHeartbeat,
    ShardReport,
)
from stretto_messages.gateway import JobCancelled
from stretto_messages.values import CheckpointRef, Shard
from stretto_runtime import serve
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec

from tests.live_bus import live_bus


class DispatcherHarness:
    """A client beside a dispatcher that can be stopped and started."""

    def __init__(self, client: Client, server: EmbeddedServer, folder: Path) -> None:
        self.client = client
        self._settings = DispatcherSettings(nats_url=server.url, state_folder=folder, forget_after_s=1)
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._serial: Counter[str] = Counter()

    def start(self) -> None:
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(serve(Dispatcher(self._settings), self._stop))

    async def stop(self) -> None:
        self._stop.set()
        if self._task:
            await self._task

    async def submit(self, job: str, **dataset: int) -> None:
        document = {"name": job, "model": {"entry": "a:B"}, "dataset": dataset}
        seq = await self.client.publish(JobSubmitted(job=job, spec=JobSpec.parse(document)))
        assert seq > 0
        probe = MarkLedger(job=job, request_id="probe")
        for n in range(200):
            request = replace(probe, request_id=f"probe.{n}")
            if (await self.client.call(request)).answer == "ok":
                return
            await asyncio.sleep(0.02)
        raise AssertionError("the job did not become known")

    def request(self, job: str, pod: str, done: Shard | None = None) -> NextShard:
        self._serial[pod] += 1
        report = ShardReport(id=done.id, attempt=done.attempt) if done else None
        return NextShard(job=job, request_id=f"{pod}.{self._serial[pod]}", pod=pod, complete=report)

    async def next(self, job: str, pod: str, done: Shard | None = None) -> NextShardReply:
        return await self.client.call(self.request(job, pod, done))

    async def lease(self, job: str, pod: str, done: Shard | None = None) -> Shard:
        reply = await self.next(job, pod, done)
        assert reply.shard is not None, reply
        return reply.shard

    async def drain(self, job: str, pod: str, done: Shard | None = None) -> list[Shard]:
        """Train everything that is left."""
        shards: list[Shard] = []
        while True:
            reply = await self.next(job, pod, done)
            if reply.answer == "end":
                return shards
            assert reply.answer == "shard", reply
            assert reply.shard is not None
            done = reply.shard
            shards.append(done)

    async def said(self, kind: type) -> list[object]:
        return [e.message async for e in self.client.events(follow=False) if isinstance(e.message, kind)]


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[DispatcherHarness]:
    async with live_bus(tmp_path, secured=False) as (server, client):
        harness = DispatcherHarness(client, server, tmp_path / "state")
        harness.start()
        yield harness
        with contextlib.suppress(Exception):
            await harness.stop()


def covered(shards: list[Shard]) -> Counter[tuple[int, int]]:
    return Counter((s.epoch, sample) for s in shards for sample in range(s.start, s.start + s.length))


async def test_a_restart_changes_no_lease_and_no_answer(harness: DispatcherHarness) -> None:
    await harness.submit("long", samples=990, epochs=2, batch_size=10, batches_per_shard=8)
    first = await harness.lease("long", "worker-0")
    request = harness.request("long", "worker-1")
    answer = await harness.client.call(request)
    assert answer.shard is not None
    await harness.stop()
    harness.start()
    assert await harness.client.call(request) == answer
    assert await harness.lease("long", "worker-0") == first
    lost = answer.shard
    await harness.client.publish(PodExited(job="long", pod="worker-1", role="worker", reason="killed", exit_code=-9))
    while (await harness.next("long", "worker-1")).answer != "unknown":
        await asyncio.sleep(0.02)
    shards = [first, *await harness.drain("long", "worker-0", first)]
    assert covered(shards) == Counter({(e, s): 1 for e in range(2) for s in range(990)})
    assert [(s.id, s.attempt) for s in shards if s.id == lost.id] == [(lost.id, 2)]
    completed = await harness.said(JobCompleted)
    assert [(c.samples, c.requeued) for c in completed] == [(1980, 1)]  # type: ignore[attr-defined]


async def test_a_shard_ahead_outlasts_a_restart_and_the_death_of_its_holder(harness: DispatcherHarness) -> None:
    await harness.submit("ahead", samples=990, batch_size=10, batches_per_shard=8)
    first = await harness.client.call(replace(harness.request("ahead", "worker-0"), ahead=True))
    other = await harness.client.call(replace(harness.request("ahead", "worker-1"), ahead=True))
    assert first.ahead is not None
    assert other.ahead is not None
    await harness.stop()
    harness.start()
    request = replace(harness.request("ahead", "worker-0", first.shard), ahead=True)
    second = await harness.client.call(request)
    assert second.shard == first.ahead
    assert await harness.client.call(request) == second
    await harness.client.publish(PodExited(job="ahead", pod="worker-1", role="worker", reason="killed", exit_code=-9))
    while (await harness.next("ahead", "worker-1")).answer != "unknown":
        await asyncio.sleep(0.02)
    assert first.shard is not None
    shards = [first.shard, second.shard, *await harness.drain("ahead", "worker-0", second.shard)]
    assert covered(shards) == Counter({(0, s): 1 for s in range(990)})
    attempts = {shard.id: shard.attempt for shard in shards}
    assert other.shard is not None
    assert (attempts[other.shard.id], attempts[other.ahead.id]) == (2, 1)
    completed = await harness.said(JobCompleted)
    assert [(c.samples, c.requeued) for c in completed] == [(990, 1)]  # type: ignore[attr-defined]


async def test_bad_reports_are_refused_by_field_value_and_remedy(harness: DispatcherHarness) -> None:
    assert (await harness.next("nobody", "worker-0")).answer == "unknown"
    await harness.submit("strict", samples=100, batch_size=10, batches_per_shard=4)
    shard = await harness.lease("strict", "worker-0")
    beat = ShardHeartbeat(job="strict", pod="worker-0", shard=shard.id, attempt=1, offset=41, samples_per_s=5.0)
    with pytest.raises(CallRefused, match="offset is 41; give 0 to 40"):
        await harness.client.call(beat)
    with pytest.raises(CallRefused, match="pod is 'ps-0'; give the name of a worker"):
        await harness.next("strict", "ps-0")
    assert (await harness.client.call(replace(beat, offset=40))).answer == "ok"
    assert (await harness.client.call(replace(beat, attempt=2))).answer == "stale"
    assert (await harness.client.call(replace(beat, pod="worker-5"))).answer == "stale"


async def test_failing_data_are_abandoned_and_the_job_completes(harness: DispatcherHarness) -> None:
    await harness.submit("dirty", samples=80, batch_size=10, batches_per_shard=4)
    bad = await harness.lease("dirty", "worker-0")
    for attempt in (1, 2, 3):
        back = ReleaseShard(
            job="dirty", pod="worker-0", shard=bad.id, attempt=attempt, offset=10, failure="row 12 is not a number"
        )
        assert (await harness.client.call(back)).answer == "ok"
        if attempt < 3:
            assert (await harness.lease("dirty", "worker-0")).id == bad.id
    await harness.drain("dirty", "worker-0")
    (abandoned,) = await harness.said(ShardAbandoned)
    assert (abandoned.shard.id, abandoned.shard.offset) == (bad.id, 10)  # type: ignore[attr-defined]
    (completed,) = await harness.said(JobCompleted)
    assert (completed.samples, completed.samples_abandoned) == (50, 30)  # type: ignore[attr-defined]


async def test_books_go_back_with_a_checkpoint(harness: DispatcherHarness) -> None:
    await harness.submit("twice", samples=160, batch_size=10, batches_per_shard=4)
    first = await harness.lease("twice", "worker-0")
    mark = await harness.client.call(MarkLedger(job="twice", request_id="mark.1"))
    later = await harness.lease("twice", "worker-0", first)
    reference = CheckpointRef(id="c1", url="file:///c1", samples=0, size_bytes=1, ps=1)
    await harness.client.publish(
        CheckpointRestored(job="twice", checkpoint=reference, ps=1, ledger=mark.ledger, request_id="r1")
    )
    broken = CheckpointRestored(job="twice", checkpoint=reference, ps=1, ledger="{}", request_id="r2")
    await harness.client.publish(broken)
    reply = await harness.next("twice", "worker-0", later)
    while not reply.stale:  # the restore has not been heard yet
        await asyncio.sleep(0.02)
        reply = await harness.next("twice", "worker-0", later)
    assert reply.shard is not None
    assert (reply.shard.id, reply.shard.attempt) == (first.id, 2)
    shards = [reply.shard, *await harness.drain("twice", "worker-0", reply.shard)]
    assert covered(shards) == Counter({(0, s): 1 for s in range(160)})
    (letter,) = await harness.client.dead_letters()
    assert "ledger" in letter.headers["error"]


async def test_images_copied_while_training_goes_on_are_restored_between_two_marks(harness: DispatcherHarness) -> None:
    await harness.submit("flash", samples=160, batch_size=10, batches_per_shard=4)
    first = MarkLedger(job="flash", request_id="mark-first.c1")
    assert (await harness.client.call(first)).samples_done == 0
    during = await harness.lease("flash", "worker-0")
    after = await harness.lease("flash", "worker-0", during)
    second = MarkLedger(job="flash", request_id="mark-second.c1", after=first.request_id)
    mark = await harness.client.call(second)
    with pytest.raises(CallRefused, match="after is 'mark-first"):
        await harness.client.call(replace(second, request_id="mark-second.c1-again"))
    reference = CheckpointRef(id="c1", url="file:///c1", samples=0, size_bytes=1, ps=1)
    await harness.client.publish(
        CheckpointRestored(job="flash", checkpoint=reference, ps=1, ledger=mark.ledger, request_id="r1")
    )
    reply = await harness.next("flash", "worker-0", after)
    while not reply.stale:
        await asyncio.sleep(0.02)
        reply = await harness.next("flash", "worker-0", after)
    assert reply.shard is not None
    shards = [reply.shard, *await harness.drain("flash", "worker-0", reply.shard)]
    again = {(s.id, s.start, s.length, s.attempt) for s in shards}
    assert {(s.id, s.start, s.length, 2) for s in (during, after)} <= again
    assert covered(shards) == Counter({(0, s): 1 for s in range(160)})


async def test_a_cancelled_job_ends_its_workers(harness: DispatcherHarness) -> None:
    await harness.submit("short", samples=160, batch_size=10, batches_per_shard=4)
    shard = await harness.lease("short", "worker-0")
    await harness.client.publish(JobCancelled(job="short", by="alice"))
    while (reply := await harness.next("short", "worker-0")).answer == "shard":
        await asyncio.sleep(0.02)
    assert reply.answer == "end"
    beat = ShardHeartbeat(job="short", pod="worker-0", shard=shard.id, attempt=1, offset=0, samples_per_s=0.0)
    assert (await harness.client.call(beat)).answer == "stale"

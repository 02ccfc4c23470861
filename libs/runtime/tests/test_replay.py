"""A past job is decided again from the stream, bit by bit, and what comes out otherwise is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flipped_bits import blocks, flip
from runtime_counting import Add, Counter, Counting, CountingSettings, CountState, add, submission
from runtime_live import Running, published
from stretto_bus import Client
from stretto_core.machine import Action, Tick
from stretto_installation.server import EmbeddedServer
from stretto_messages.dispatcher import NextShard
from stretto_messages.gateway import JobCancelled
from stretto_runtime import Input, RuntimeFault
from stretto_runtime.inputs import CLUSTER
from stretto_runtime.owner.tenure.terms import fence_subject, terms
from stretto_runtime.replay import replay
from stretto_runtime.streams import BusStreams, read
from stretto_wire.contract.excerpts import Excerpt
from stretto_wire.contract.registry import STREAM, partition_of

from tests.waits import until

JOB = "job-a"


class Scaling(CountingSettings):
    factor: int = 1


class Scaled(Counting):
    """Sums what it is told, times a setting."""

    settings_type = Scaling
    tick_s = 0.2

    def deciding(self) -> dict[str, Any]:
        return {"factor": self.settings.factor}

    def to_event(self, message: Any, meta: Any) -> Any:
        event = super().to_event(message, meta)
        return Add(event.job, event.value * self.settings.factor) if isinstance(event, Add) else event


def present(folder: Path, kind: type[Counting] = Scaled, **settings: Any) -> Counting:
    return kind(kind.settings_type(state_folder=folder, **settings))


async def live(running: Running, client: Client, numbers: list[int], **settings: Any) -> None:
    """The service, under ``settings``, until every number was added; what it answers is in the stream too."""
    async with running(Scaled, **settings):
        before = len([event async for event in client.events(patterns=["evt.v1.dispatcher.*.*"], follow=False)])
        for number in numbers:
            await client.publish(add(JOB, number))
            await client.publish(add("job-b", 7))
        asked = NextShard(job=JOB, request_id=f"worker-0.{before}", pod="worker-0")
        await client.call(asked)
        await published(client, "dispatcher", before + 2 * len(numbers) + 1)


async def test_every_decision_is_reproduced_byte_by_byte_under_the_settings_of_its_era(
    client: Client, tmp_path: Path, running: Running
) -> None:
    await client.publish(submission(JOB))
    await client.publish(add(JOB, 333))  # breaks the machine, as it did then
    await live(running, client, [1, 2, 3], factor=2)
    await live(running, client, [4, 5], factor=10)
    done = await replay(BusStreams(client.bus), present(tmp_path, factor=1000), JOB)
    assert [decision.verdict for decision in done.decisions] == ["same"] * 7
    totals = [json.loads(decision.now or b"")["samples_total"] for decision in done.decisions]
    assert totals == [2, 6, 12, 0, 52, 102, 0]
    assert done.reproduced
    assert done.missing == []
    fences = Excerpt(subject=(fence_subject("dispatcher", partition_of(JOB)),))
    recorded = terms(await read(BusStreams(client.bus), fences))
    assert [era.settings["factor"] for era in recorded if era.settings] == [2, 10]


class Overseen(Counting):
    """One count for all jobs."""

    inputs = (Input(JobCancelled, scope="cluster"),)
    rpcs = ()
    observations = (JobCancelled,)
    state_types = {"cluster": CountState}  # noqa: RUF012


async def test_what_an_edge_of_the_cluster_saw_is_replayed_with_the_rest(
    client: Client, tmp_path: Path, running: Running
) -> None:
    await client.publish(submission(JOB))
    async with running(Overseen) as runner:
        await client.publish(add("job-b", 1))
        await runner.observe(CLUSTER, add(JOB, 2), "")
        await client.publish(add(JOB, 4))
        await published(client, "dispatcher", 3)
    done = await replay(BusStreams(client.bus), present(tmp_path, Overseen), JOB)
    assert [decision.verdict for decision in done.decisions] == ["same"] * 2
    assert {json.loads(decision.now or b"")["samples_done"] for decision in done.decisions} == {2, 3}


async def test_other_code_is_told_where_it_decides_otherwise(client: Client, tmp_path: Path, running: Running) -> None:
    class AddsMore(Counter):
        def handle(self, event: Any, now: float) -> list[Action]:
            actions = super().handle(event, now)
            if not isinstance(event, Tick) and self.state.count == 3:
                self.state.total += 100
            return [] if self.state.count == 2 else actions

    class Newer(Scaled):
        version = 2

        def machine(self, key: str, state: Any) -> Counter:
            return AddsMore(state)

    await client.publish(submission(JOB))
    await live(running, client, [1, 2, 3, 4])
    done = await replay(BusStreams(client.bus), present(tmp_path, Newer), JOB)
    verdicts = [decision.verdict for decision in done.decisions]
    assert verdicts == ["same", "not decided now", "same", "differs", "same"]
    assert done.decisions[3].differences() == [("samples_total", 10, 110)]
    assert (done.decisions[3].version, done.version) == (1, 2)
    assert not done.reproduced


async def test_other_settings_are_tried_on_the_same_inputs(client: Client, tmp_path: Path, running: Running) -> None:
    await client.publish(submission(JOB))
    await live(running, client, [1, 2])
    done = await replay(BusStreams(client.bus), present(tmp_path), JOB, {"factor": 3})
    assert [decision.differences() for decision in done.decisions] == [
        [("samples_total", 1, 3)],
        [("samples_total", 3, 9)],
        [],
    ]
    with pytest.raises(RuntimeFault, match="factor of dispatcher is refused"):
        await replay(BusStreams(client.bus), present(tmp_path), JOB, {"factor": "many"})


async def test_what_is_gone_is_said_and_a_snapshot_is_begun_from(
    client: Client, tmp_path: Path, running: Running
) -> None:
    """The journal is kept for an hour at least; a replica that looks back from further than that misses requests."""
    await client.publish(submission(JOB))
    await live(running, client, [1, 2])
    service = present(tmp_path)
    object.__setattr__(service.settings, "journal_ttl_s", 0)
    done = await replay(BusStreams(client.bus), service, JOB)
    assert [decision.verdict for decision in done.decisions] == ["not replayed"] * 3
    assert "ticks before" in done.missing[0]
    assert "only from the snapshot after input" in done.missing[1]


async def test_a_job_that_never_was_is_an_error(client: Client, tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match="no submission of 'nobody'"):
        await replay(BusStreams(client.bus), present(tmp_path), "nobody")


async def test_an_input_that_cannot_be_read_is_named_and_everything_else_decided_again(
    server: EmbeddedServer, client: Client, tmp_path: Path, running: Running
) -> None:
    """Method: a bit of the last input's event is flipped while the server is down."""
    await client.publish(submission(JOB))
    await live(running, client, [1, 2, 3], factor=2)
    before = (await replay(BusStreams(client.bus), present(tmp_path), JOB)).decisions
    server.stop()
    (file,) = blocks(server.folder, STREAM)
    flip(file, f".job-cancelled.{JOB}".encode())
    await server.start()
    await until(lambda: client.bus.connected)
    done = await replay(BusStreams(client.bus), present(tmp_path), JOB)
    subject = f"{partition_of(JOB)}.evt.v1.gateway.job-cancelled.{JOB}"
    (said,) = done.missing
    assert said.startswith("1 message of the stream STRETTO cannot be read; sequence ")
    assert said.endswith(f"; subject {subject} (job {JOB})")
    assert len(done.decisions) == len(before)
    assert {decision.verdict for decision in done.decisions} == {"not decided now", "differs", "same"}

"""Actuator, checkpoints and dispatcher together: what a lost parameter server owned comes back from a checkpoint.

The pods are real processes that answer as pods do, without TensorFlow; what travels between the services is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
import stretto_wire as wire
from stretto_actuator.service import Actuator
from stretto_actuator.settings import ActuatorSettings
from stretto_bus import Client
from stretto_checkpoints.service import Checkpoints
from stretto_checkpoints.settings import CheckpointsSettings
from stretto_core.checkpoints.names import restore_number
from stretto_dispatcher.service import Dispatcher
from stretto_dispatcher.settings import DispatcherSettings
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import (
    JobFailed,
    JobFinished,
    MigrationFinished,
    ParametersLost,
    PlanApplied,
    PodExited,
    PodStarted,
    ServersChanged,
)
from stretto_messages.arbiter import PlanDecided
from stretto_messages.checkpoints import CheckpointFlushed, CheckpointRestored, ColumnsRestored, SaveCheckpoint
from stretto_messages.dispatcher import JobCompleted, NextShard, RecomputationDecided, ShardReport
from stretto_messages.pods import GetOwnership
from stretto_runtime import serve
from stretto_runtime.replay import replay
from stretto_runtime.streams import BusStreams

from tests.integration.pods import end_pods
from tests.live_bus import decision, live_bus, plan_of, python_of
from tests.waits import until

FAKE_POD = Path(__file__).parents[2] / "services/actuator/tests/fake_pod.py"
JOB = "comes-back"
AnyHouse = TypeVar("AnyHouse", bound="House")


class House:
    """The services on one bus."""

    services: ClassVar[tuple[tuple[type[Any], type[Any]], ...]] = (
        (Actuator, ActuatorSettings),
        (Checkpoints, CheckpointsSettings),
        (Dispatcher, DispatcherSettings),
    )

    def __init__(self, server: EmbeddedServer, client: Client, folder: Path) -> None:
        self.server, self.client, self.folder = server, client, folder
        self.events: list[Any] = []
        self.stop = asyncio.Event()
        self.tasks = [asyncio.create_task(self.follow())]

    async def follow(self) -> None:
        async for event in self.client.events(patterns=(f"evt.v1.*.*.{JOB}",)):
            self.events.append(event.message)

    def fake_python(self) -> str:
        """Make a program that answers as pods do, whatever it is asked to run."""
        everything = self.server.login().credentials  # a pod that plays several
        return python_of(self.folder.parent / "fake-python", FAKE_POD, STRETTO_NATS_CREDENTIALS=everything)

    def start(self, others: Mapping[str, Mapping[str, Any]] | None = None, **actuator: Any) -> None:
        """Start the services with these settings; by default, pods answer without TensorFlow."""
        more = {"actuator": {"poll_s": 0.3, **(actuator or {"pod_python": self.fake_python()})}, **(others or {})}
        for service, settings in self.services:
            options = {
                "nats_url": self.server.url,
                "nats_credentials": self.server.login(service.name).credentials,
                "state_folder": self.folder,
                **more.get(service.name, {}),
            }
            self.tasks.append(asyncio.create_task(serve(service(settings(**options)), self.stop)))

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, check: Callable[[], Any], limit_s: float = 60.0) -> Any:
        return await until(check, lambda: [type(event).__name__ for event in self.events], limit_s)


@contextlib.asynccontextmanager
async def opened(kind: type[AnyHouse], folder: Path) -> AsyncGenerator[AnyHouse]:
    """Give a bus and a house on it whose services are still to be started; end all of it."""
    async with live_bus(folder) as (server, client):
        (folder / "state").mkdir()
        made = kind(server, client, folder / "state")
        yield made
        made.stop.set()
        follower, *services = made.tasks
        await asyncio.gather(*services)
        follower.cancel()
        await end_pods(made.folder)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with opened(House, tmp_path) as made:
        made.start()
        yield made


async def decisions_repeat(house: House) -> None:
    """Decide all again from the stream alone: every output comes out byte by byte as it was."""
    for kind, settings in (
        (Actuator, ActuatorSettings),
        (Checkpoints, CheckpointsSettings),
        (Dispatcher, DispatcherSettings),
    ):
        again = await replay(BusStreams(house.client.bus), kind(settings(state_folder=house.folder)), JOB)
        others = [decision for decision in again.decisions if decision.verdict != "same"]
        assert not others, (kind.name, others[:3])
        assert again.count("same") > 0


def plan_decided() -> PlanDecided:
    return decision(JOB, plan_of(ps=2, memory=256 * 2**20))


def kill(house: House, pod: str, number: int = signal.SIGKILL) -> None:
    os.kill(int((house.folder / f"pods/{JOB}/{pod}/pid").read_text()), number)


async def begun(house: House, **changes: Any) -> CheckpointFlushed:
    """Start the job on one worker and two servers; return its first checkpoint, from before anything is trained."""
    data = {"samples": 4096, "batch_size": 64, "batches_per_shard": 8}
    document = {"name": JOB, "model": {"entry": "m:M"}, "dataset": data, **changes}
    await house.client.publish(wire.JobSubmitted(job=JOB, spec=wire.JobSpec.parse(document)))
    await house.client.publish(plan_decided())
    await house.until(lambda: house.told(PlanApplied))
    (first,) = await house.until(lambda: house.told(CheckpointFlushed))
    return first


async def test_only_the_columns_of_a_lost_parameter_server_come_back_while_all_others_go_on(house: House) -> None:
    """Goal: no other pod ends; what the columns lack is leased again, first. Method: two shards after a checkpoint."""
    first = await begun(house)
    leased: list[Any] = []
    done = None
    for number in range(3):
        reply = await house.client.call(NextShard(job=JOB, request_id=f"w.{number}", pod="worker-0", complete=done))
        leased.append(reply.shard)
        done = ShardReport(id=reply.shard.id, attempt=reply.shard.attempt)

    kill(house, "ps-1")
    (restored,) = await house.until(lambda: house.told(ColumnsRestored))
    (decided,) = await house.until(lambda: house.told(RecomputationDecided))
    (lost,) = house.told(ParametersLost)
    assert (restored.loss, restored.checkpoint, restored.columns) == (lost.version, first.checkpoint, 32 + 6)
    assert (decided.granted, decided.shards, decided.samples) == (True, 2, 1024)
    late = await house.client.call(NextShard(job=JOB, request_id="w.9", pod="worker-0", complete=done))
    assert late.stale, "it was trained on the lost columns"
    assert (late.shard.id, late.shard.attempt) == (leased[2].id, 2)
    other = await house.client.call(NextShard(job=JOB, request_id="v.1", pod="worker-7"))
    assert (other.shard.id, other.shard.attempt) == (leased[0].id, 2)

    await house.until(lambda: [e for e in house.told(PodStarted) if e.pod == "ps-2"])
    await house.until(lambda: house.told(MigrationFinished))
    owned = [await house.client.call_pod(f"ps-{n}", GetOwnership(job=JOB)) for n in (0, 2)]
    assert [sum(reply.buckets) for reply in owned] == [32, 32]
    assert [event.pod for event in house.told(PodExited)] == ["ps-1"]
    assert not house.told(CheckpointRestored)
    assert not house.told(JobFailed)
    await decisions_repeat(house)


async def test_parameters_of_which_no_server_survives_bring_job_and_ledger_back(house: House) -> None:
    first = await begun(house)
    lease = await house.client.call(NextShard(job=JOB, request_id="w.1", pod="worker-0"))
    assert lease.answer == "shard"

    kill(house, "ps-1")
    kill(house, "ps-0")
    (restored,) = await house.until(lambda: house.told(CheckpointRestored))
    assert (restored.ps, restored.checkpoint.id) == (2, first.checkpoint.id)
    gone, back = house.told(ServersChanged)[-2:]
    assert gone.servers == ()
    numbers = [server.index for server in back.servers]
    owned = [await house.client.call_pod(f"ps-{n}", GetOwnership(job=JOB)) for n in numbers]
    assert sum(sum(reply.buckets) for reply in owned) == 64
    late = ShardReport(id=lease.shard.id, attempt=lease.shard.attempt)
    again = await house.client.call(NextShard(job=JOB, request_id="w.2", pod="worker-0", complete=late))
    assert (again.answer, again.stale) == ("shard", True), "its lease was of the books that were undone"
    assert (lease.lineage, again.lineage) == (0, restore_number(restored.request_id))
    exited = {event.pod for event in house.told(PodExited)}
    assert exited == {"ps-0", "ps-1"}, "the worker keeps its process"
    assert not house.told(JobFailed)


async def test_lost_parameter_server_without_a_checkpoint_ends_the_job_with_the_reason(house: House) -> None:
    document = {"name": JOB, "model": {"entry": "m:M"}, "dataset": {"samples": 4096}, "checkpoint": {"every_s": None}}
    await house.client.publish(wire.JobSubmitted(job=JOB, spec=wire.JobSpec.parse(document)))
    await house.client.publish(plan_decided())
    await house.until(lambda: house.told(PlanApplied))
    kill(house, "ps-0")
    (failed,) = await house.until(lambda: house.told(JobFailed))
    assert "no complete checkpoint (checkpoint.every_s is null)" in failed.reason
    exited = {"ps-0", "ps-1", "worker-0"}
    await house.until(lambda: exited <= {event.pod for event in house.told(PodExited)})


async def train(house: House, worker: str, completions: int) -> None:
    """Lease and complete shards until the job was completed so many times.

    An answer of "end" is asked for again, as workers do: the ledger may not have returned to the checkpoint yet.
    """
    number, done = 0, None
    while len(house.told(JobCompleted)) < completions:
        number += 1
        request = NextShard(job=JOB, request_id=f"{worker}.{number}", pod=worker, complete=done)
        reply = await house.client.call(request)
        done = None
        if reply.answer == "shard":
            done = ShardReport(id=reply.shard.id, attempt=reply.shard.attempt)
        else:
            await asyncio.sleep(0.05)


async def test_parameter_server_lost_after_the_last_shard_trains_the_rest_again_and_finishes(house: House) -> None:
    document = {
        "name": JOB,
        "model": {"entry": "m:M"},
        "dataset": {"samples": 4096, "batch_size": 64, "batches_per_shard": 8},
        "checkpoint": {"every_s": None, "keep": 1},
        "evaluate": 50,
        "environment": {"FAKE_EVALUATIONS": "15"},
    }
    await house.client.publish(wire.JobSubmitted(job=JOB, spec=wire.JobSpec.parse(document)))
    await house.client.publish(plan_decided())
    await house.until(lambda: house.told(PlanApplied))
    await house.client.call(SaveCheckpoint(job=JOB, request_id="me.1"))
    await house.until(lambda: house.told(CheckpointFlushed))
    await train(house, "worker-0", completions=1)

    kill(house, "ps-1")
    await house.until(lambda: house.told(CheckpointRestored))
    owned = [await house.client.call_pod(f"ps-{n}", GetOwnership(job=JOB)) for n in (0, 2)]
    assert [sum(reply.buckets) for reply in owned] == [32, 32], "the one that lives was emptied in place"
    await train(house, "worker-0", completions=2)
    (finished,) = await house.until(lambda: house.told(JobFinished))
    assert finished.samples_expected == 4096
    assert [event.samples for event in house.told(JobCompleted)] == [4096, 4096]
    assert house.told(PodExited)[0].pod == "ps-1"
    assert {event.pod for event in house.told(PodStarted)} == {"ps-0", "ps-1", "ps-2", "worker-0"}
    assert not house.told(JobFailed)
    await decisions_repeat(house)

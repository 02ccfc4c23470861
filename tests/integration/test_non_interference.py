"""Nothing that a pod can send changes another job's decisions, books or availability.

Six real services on a real server with keys decide about a victim and about a hostile job of the same partition; this
test plays the pods of both. The hostile ones send every message that the registry lets pods publish, with each reply
subject and each header that anybody gives a meaning; then they lease, give back and report what they never had, and
last they do what twenty seeds draw. In a test of its own, hostile pods answer actuator and checkpoints with lies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from runtime_live import running
from stretto_actuator.service import Actuator
from stretto_arbiter.service import Arbiter
from stretto_bus import Client
from stretto_bus.connection import lines_of
from stretto_bus.reading.ordered_consumer import read
from stretto_checkpoints.service import Checkpoints
from stretto_dispatcher.service import Dispatcher
from stretto_drills.chaos.hostile import (
    HostilePod,
    Sequence,
    Strike,
    headers,
    job_beside,
    lanes_repeated,
    leases_completed,
    leases_released,
    numbers_huge,
    replies,
    sequences,
    shards_unleased,
    sound,
    strikes,
    subject_for,
    workers_invented,
)
from stretto_fitter.service import Fitter
from stretto_installation.access.permissions import channels_of_pods
from stretto_installation.server import EmbeddedServer
from stretto_messages.actuator import JobFailed, MigrationFinished, PlanApplied, PodExited, PodStarted
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import example_of
from stretto_messages.checkpoints import CheckpointFailed, CheckpointFlushed, CheckpointRestored, SaveCheckpoint
from stretto_messages.dispatcher import NextShard
from stretto_messages.pods import PsReported, WorkerReported
from stretto_messages.values import Plan
from stretto_oom.service import Oom
from stretto_planner.service import Planner
from stretto_profiler.service import Profiler
from stretto_runtime import Runner, Service
from stretto_runtime.access.identity import Key, mint
from stretto_runtime.inputs import Routes
from stretto_runtime.owner.reports import FLOODED_TURN_S
from stretto_runtime.owner.state.recovery import recovered
from stretto_runtime.owner.state.snapshots import Mark, cursor_in
from stretto_runtime.owner.tenure.ownership import ALIVE
from stretto_runtime.replay import replay
from stretto_runtime.streams import BusStreams
from stretto_wire.contract.registry import partition_of
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec import spec

from tests.integration.pods import end_pods
from tests.live_bus import live_bus, submission

GIB = 2**30
VICTIM = "victim"
HOSTILE, POD = job_beside(VICTIM), "worker-0"
CLUSTER = {"cpu_cores": 16.0, "memory_bytes": 64 * GIB}
PAUSE = {"lease_timeout_s": 3600.0}
"""The victim is silent while pods send, for longer than a lease on a busy machine."""
SERVICES: dict[type[Service[Any, Any, Any]], dict[str, Any]] = {
    Profiler: {"window_s": 0.5}, Fitter: {}, Planner: CLUSTER, Arbiter: CLUSTER, Dispatcher: PAUSE, Oom: {},
}  # fmt: skip
STREAMS = ("STRETTO", "TELEMETRY", "KV_STATE", "DLQ", "AUDIT")
BY_OWNERS = ("journal", "cursor", "mark", "member", "snap")
"""First tokens of subjects that their owners write as time goes on: what they wrote is looked at (``owners_wrote``).

Fences and the entries of owners are written by takeovers alone, so nothing at all may be written there.
"""
BY_THE_CLOCK = f"STRETTO {partition_of(VICTIM)}.evt.v1.dispatcher.job-progressed.{VICTIM}"
"""The victim's only event that time brings about; its decisions are repeated at the end like all others."""
SEEDS = 20
WORKERS_INVENTED = 12_000
HONEST_LANE = "honest"
"""Lane of the victim's requests, which no other request has."""
SMALL = {"workers": 1, "ps": 1, "worker_cpu_cores": 0.5, "ps_cpu_cores": 0.5}
HOSTILE_RESOURCES = {"fixed": True, "initial": SMALL | {"worker_memory_bytes": GIB, "ps_memory_bytes": GIB}}
ASKED = Counter({"ping": 3, "claim-buckets": 2, "get-ownership": 12})
"""Questions of actuator and checkpoints that hostile pods have to hear before the victim changes its plan."""
FAKE_POD = Path(__file__).parents[2] / "services/actuator/tests/fake_pod.py"


class Stage:
    """The services, and the victim's pods, which this test plays."""

    def __init__(self, server: EmbeddedServer, client: Client, folder: Path) -> None:
        self.server, self.client, self.folder = server, client, folder
        self.runners: list[Runner] = []
        self.turns = 0
        self.plans: dict[str, Plan] = {}

    @contextlib.asynccontextmanager
    async def services(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            self.runners = [
                await stack.enter_async_context(running(service, self.server, self.folder, **more))
                for service, more in SERVICES.items()
            ]
            yield

    @property
    def ready(self) -> bool:
        return all(runner.report()["ready"] for runner in self.runners)

    async def submit(self) -> None:
        """Submit the hostile job, then the victim, and play the actuator for the first plan of each."""
        self.plans[HOSTILE] = await self.start(HOSTILE, resources=HOSTILE_RESOURCES)
        self.plans[VICTIM] = await self.start(VICTIM)

    async def start(self, job: str, **more: Any) -> Plan:
        await self.client.publish(submission(job, dataset={"samples": 10**9}, **more))
        plan: Plan | None = None
        async with asyncio.timeout(60):
            async for event in self.client.events(patterns=(f"evt.v1.arbiter.plan-decided.{job}",)):
                assert isinstance(event.message, PlanDecided)
                plan = event.message.plan
                break
        assert plan is not None
        for role, count in (("ps", plan.ps), ("worker", plan.workers)):
            for number in range(count):
                started = replace(example_of(PodStarted), job=job, pod=f"{role}-{number}", role=role, plan_version=1)
                await self.client.publish(started)
        await self.client.publish(PlanApplied(job=job, version=1, plan=plan, took_s=1.0))
        return plan

    async def turn(self) -> None:
        """Let each pod of both jobs report once, and a worker of the victim lease a shard; waits for the answer."""
        self.turns += 1
        for job, plan in self.plans.items():
            await self.report(job, plan, steps=10 * self.turns)
        lease = NextShard(job=VICTIM, request_id=f"{HONEST_LANE}.{self.turns}", pod="worker-0")
        assert (await self.client.call(lease, 10.0)).answer == "shard"

    async def report(self, job: str, plan: Plan, steps: int) -> None:
        now, batch = time.time(), 512
        for number in range(plan.workers):
            done = {"steps": 10, "steps_total": steps, "samples_total": steps * batch, "step_time_s": 0.01}
            report = replace(example_of(WorkerReported), job=job, pod=f"worker-{number}", plan_version=1, **done)
            await self.client.publish(replace(report, ended_at_s=now, window_s=0.2, longest_gap_s=0.02))
        for number in range(plan.ps):
            report = replace(example_of(PsReported), job=job, pod=f"ps-{number}", ended_at_s=now, window_s=0.2)
            await self.client.publish(report)

    async def profiles(self) -> int:
        events = self.client.events(patterns=(f"evt.v1.profiler.profile-measured.{VICTIM}",), follow=False)
        return len([event async for event in events])

    async def train(self, profiles: int) -> None:
        """Take turns until the profiler has published so many more profiles."""
        wanted = await self.profiles() + profiles
        async with asyncio.timeout(60):
            while await self.profiles() < wanted:
                await self.turn()
                await asyncio.sleep(0.1)

    async def stored(self) -> dict[str, list[int]]:
        """Sequences of every subject of every stream."""
        found: dict[str, list[int]] = {}
        for stream in STREAMS:
            for each in await read(self.client.bus, stream, [">"], headers_only=True):
                found.setdefault(f"{stream} {each.subject}", []).append(each.seq)
        return found

    async def settled(self) -> dict[str, list[int]]:
        """Wait until nothing but time and the hostile job changes anything; returns what is stored."""
        before, after = dict[str, list[int]](), await self.stored()
        async with asyncio.timeout(60):
            while foreign(before, after):
                await asyncio.sleep(3 * FLOODED_TURN_S)  # reports are handled at intervals: one has to pass unchanged
                before, after = after, await self.stored()
        return after

    async def owners_wrote(self) -> None:
        """Check that what owners write as time goes on was written by them, and that no pod asked for another job."""
        for service in SERVICES:
            routes = Routes(service.name, service.inputs, service.observations)
            for frame in await read(self.client.bus, "STRETTO", [f"journal.{service.name}.*"]):
                for entry in routes.arrivals(frame, int(frame.subject.rpartition(".")[2])):
                    assert entry.kind != "damaged", (frame.subject, frame.data[:200])
                    asked = entry.meta.request_id.partition(".")[0]
                    assert entry.kind != "request" or (entry.key == VICTIM) == (asked == HONEST_LANE), entry
        kept = {
            kind: await read(self.client.bus, "KV_STATE", [f"$KV.STATE.{kind}.>"], deliver_policy="last_per_subject")
            for kind in BY_OWNERS[1:]
        }
        found = recovered(kept["snap"])
        assert (found.damages, found.lost) == ([], set())
        assert cursor_in(kept["cursor"])[2] == []
        for mark in kept["mark"]:
            Mark.decode(mark.subject, mark.data)  # raises Damaged: the seal names the subject
        assert {member.data for member in kept["member"]} <= {ALIVE, b""}

    async def decisions_repeat(self) -> int:
        """Decide about the victim again from the stream alone; returns how many decisions came out the same."""
        same = 0
        for service, more in SERVICES.items():
            own = service(service.settings_type(state_folder=self.folder, **more))
            again = await replay(BusStreams(self.client.bus), own, VICTIM)
            wrong = [one for one in again.decisions if one.verdict not in ("same", "not replayed")]
            assert wrong == [], (service.name, again.missing)
            same += again.count("same")
        return same


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with live_bus(tmp_path) as (server, client):
        yield Stage(server, client, tmp_path)


def every_message(pod: str) -> Iterator[Strike]:
    """Each subject that a pod may publish to, with each reply and header, and sound, incomplete and empty bodies."""
    for channel in channels_of_pods():
        subject = subject_for(channel, HOSTILE, pod)
        incomplete = json.dumps({"job": HOSTILE, "pod": pod, "request_id": "x.1"}).encode()
        for body in (sound(channel.message, HOSTILE, pod), incomplete, b""):
            for reply in ("", *replies(HOSTILE, VICTIM)):
                yield Strike(subject, reply, "", body)
            for name, value in headers(VICTIM):
                for reply in ("", f"fence.arbiter.{partition_of(VICTIM)}"):
                    yield Strike(subject, reply, lines_of({name: value}), body)


@contextlib.asynccontextmanager
async def hostile_pod(server: EmbeddedServer, pod: str) -> AsyncIterator[HostilePod]:
    assert server.keys is not None
    key = Key(server.keys.signing_file.read_text().strip())
    credentials = mint(key, server.keys.pods_account, HOSTILE, pod, time.time(), 600.0)
    connected = await HostilePod.connect(server.url, credentials, HOSTILE, pod)
    try:
        yield connected
    finally:
        await connected.close()


async def send(stage: Stage, messages: Iterator[Strike], pod: str = POD) -> int:
    """Send from a hostile pod; returns how many were sent."""
    sent = 0
    async with hostile_pod(stage.server, pod) as connected:
        for strike in messages:
            sent += await connected.send(strike)
            if sent % 100 == 0:
                await asyncio.sleep(0)
        await connected.flush()
    return sent


async def play(stage: Stage, sequences: Iterable[Sequence]) -> list[int]:
    """Play from a hostile pod; returns how many answers each sequence had."""
    async with hostile_pod(stage.server, POD) as connected:
        return [await connected.play(sequence) for sequence in sequences]


def changed(before: dict[str, list[int]], after: dict[str, list[int]]) -> list[str]:
    """Subjects that changed, but for those that time alone changes."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name) and name != BY_THE_CLOCK]
    return [name for name in names if first_token(name) not in BY_OWNERS]


def foreign(before: dict[str, list[int]], after: dict[str, list[int]]) -> list[str]:
    """Subjects that changed and do not belong to the hostile job; ``owners_wrote`` looks at what owners write."""
    return [name for name in changed(before, after) if HOSTILE not in name.split(" ", 1)[1].split(".")]


def first_token(name: str) -> str:
    """First token of the subject in ``<stream> <subject>``, without the prefix of the bucket."""
    return name.split(" ", 1)[1].removeprefix("$KV.STATE.").partition(".")[0]


async def test_no_message_of_a_pod_changes_anything_of_another_job(stage: Stage) -> None:
    """The victim pauses while the pod sends, so that whatever changes is the pod's doing; then it goes on."""
    async with stage.services():
        await stage.submit()
        await stage.train(3)
        before = await stage.settled()
        for pod in (POD, "ps-0"):
            assert await send(stage, every_message(pod)) > 3000
        dice = random.Random("each once")
        answered = min(await play(stage, [workers_invented(dice, WORKERS_INVENTED)]))
        assert answered > 0.9 * WORKERS_INVENTED, "they were handled; an answer may come late on a busy machine"
        others = (leases_released, leases_completed, shards_unleased, lanes_repeated, numbers_huge)
        assert min(await play(stage, [sequence(dice, 100) for sequence in others])) >= 100
        completed = f"STRETTO {partition_of(HOSTILE)}.evt.v1.dispatcher.shard-completed.{HOSTILE}"
        async with asyncio.timeout(60):  # facts of shards are told at a bounded rate, which leases and returns use up
            while completed not in await stage.stored():
                await play(stage, [leases_completed(dice, 100)])
        assert stage.ready
        after = await stage.settled()
        assert foreign(before, after) == []
        await stage.owners_wrote()
        for told in ("dispatcher.shard-requeued", "dispatcher.shard-completed", "profiler.profile-measured"):
            assert f"STRETTO {partition_of(HOSTILE)}.evt.v1.{told}.{HOSTILE}" in after, "it had a state to hurt"
        await stage.train(2)
        assert stage.ready
    async with stage.services():  # all of them once more, from what is stored
        await stage.train(2)
        assert stage.ready
    assert await stage.decisions_repeat() >= 10


@pytest.mark.slow
@pytest.mark.night
async def test_twenty_hostile_programs_change_nothing_while_the_victim_trains(stage: Stage) -> None:
    """Each seed draws another program; the victim leases and reports meanwhile, and its decisions repeat."""
    async with stage.services():
        await stage.submit()
        answered = 0
        for seed in range(SEEDS):
            drawn = strikes(random.Random(f"unseen {seed}"), HOSTILE, POD, VICTIM)
            talk = islice(sequences(random.Random(f"unseen talk {seed}")), 3)
            attack = asyncio.gather(send(stage, islice(drawn, 400)), play(stage, talk))
            await stage.train(1)
            sent, answers = await attack
            assert sent > 300
            answered += sum(answers)
            assert stage.ready, seed
        assert answered > 20 * SEEDS, "the hostile job had a state to hurt"
        for runner in stage.runners:
            assert runner._bus is not None
            assert runner._bus.reconnects == 0
        await stage.owners_wrote()
    async with stage.services():
        await stage.train(1)
        assert stage.ready
    assert await stage.decisions_repeat() >= SEEDS


class House:
    """Actuator, checkpoints and dispatcher. The victim's pods are processes; hostile pods answer from this test."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.folder = stage, stage.folder / "state"
        self.events: list[Any] = []
        python, everything = stage.folder / "fake-python", stage.server.login().credentials
        idle = f"exec {sys.executable} -c 'import time; time.sleep(600)'"
        honest = f"STRETTO_NATS_CREDENTIALS={everything} exec {sys.executable} {FAKE_POD}"
        python.write_text(f'#!/bin/sh\n[ "$STRETTO_JOB" = {HOSTILE} ] && {idle}\n{honest}\n')
        python.chmod(0o755)
        self._services: dict[type[Service[Any, Any, Any]], dict[str, Any]] = {
            Actuator: {"pod_python": str(python), "poll_s": 0.2, "stop_grace_s": 2.0},
            Checkpoints: {"take_timeout_s": 3.0, "store_timeout_s": 3.0},
            Dispatcher: {},
        }

    @contextlib.asynccontextmanager
    async def services(self) -> AsyncIterator[None]:
        following = asyncio.create_task(self._follow())
        try:
            async with contextlib.AsyncExitStack() as stack:
                for service, more in self._services.items():
                    await stack.enter_async_context(running(service, self.stage.server, self.folder, **more))
                yield
        finally:
            following.cancel()
            await end_pods(self.folder)

    async def _follow(self) -> None:
        async for event in self.stage.client.events(patterns=(f"evt.v1.*.*.{VICTIM}",)):
            self.events.append(event.message)

    async def submit(self, job: str, **more: Any) -> None:
        document = {"name": job, "model": {"entry": "m:M"}, "dataset": {"samples": 10**6}, **more}
        await self.stage.client.publish(JobSubmitted(job=job, spec=spec.JobSpec.parse(document)))
        await self.decide(job, 1, ps=2)

    async def decide(self, job: str, version: int, ps: int) -> None:
        decided = replace(example_of(PlanDecided), job=job, version=version, previous=None)
        plan = Plan(**SMALL | {"ps": ps}, worker_memory_bytes=GIB // 4, ps_memory_bytes=GIB // 4)
        await self.stage.client.publish(replace(decided, plan=plan))

    async def until(self, kind: type[Any], count: int) -> None:
        """Wait until the victim has had so many events of this kind."""
        async with asyncio.timeout(60):
            while sum(isinstance(event, kind) for event in self.events) < count:
                await asyncio.sleep(0.05)


def asked(liars: list[HostilePod]) -> Counter[str]:
    return sum((Counter(liar.questions) for liar in liars), Counter[str]())


async def test_lies_and_silence_of_hostile_pods_cost_another_job_neither_pods_nor_checkpoints(stage: Stage) -> None:
    """The victim starts, is checkpointed and moves its parameters while the services wait for liars."""
    house = House(stage)
    async with house.services(), contextlib.AsyncExitStack() as stack:
        liars = [await stack.enter_async_context(hostile_pod(stage.server, pod)) for pod in ("ps-0", "ps-1", POD)]
        for number, liar in enumerate(liars):
            await liar.answer(random.Random(f"lies {number}"), VICTIM)
        await house.submit(HOSTILE, checkpoint={"every_s": 1})
        await house.submit(VICTIM, checkpoint={"every_s": 600})  # none that the move interrupts
        await house.until(PlanApplied, 1)
        await house.until(CheckpointFlushed, 1)
        async with asyncio.timeout(60):
            while not asked(liars) >= ASKED:
                await asyncio.sleep(0.05)
        await house.decide(VICTIM, 2, ps=3)
        await house.until(MigrationFinished, 1)
        await house.until(PlanApplied, 2)
        await stage.client.call(SaveCheckpoint(job=VICTIM, request_id="by-hand.1"))
        await house.until(CheckpointFlushed, 2)
    harmed = (PodExited, CheckpointFailed, CheckpointRestored, JobFailed)
    assert [event for event in house.events if isinstance(event, harmed)] == []

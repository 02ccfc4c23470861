"""Nothing that a pod can send changes another job's decisions, books or availability.

Six real services on a real server with keys decide about a victim, whose pods this test plays. A pod of another job in
the same partition then sends every message that the registry lets pods publish, with each reply subject and each header
that anybody gives a meaning, and after that what twenty seeds draw.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from runtime_live import running
from stretto_arbiter.service import Arbiter
from stretto_bus import Bus, BusFault, Client
from stretto_bus.connection import lines_of
from stretto_bus.login import RenewableLogin
from stretto_bus.ordered_consumer import read
from stretto_dispatcher.service import Dispatcher
from stretto_drills.chaos.hostile import Strike, headers, job_beside, replies, strikes, subject_for
from stretto_fitter.service import Fitter
from stretto_messages.actuator import PlanApplied, PodStarted
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import example_of
from stretto_messages.dispatcher import NextShard
from stretto_messages.pods import PsReported, WorkerReported
from stretto_messages.values import Plan
from stretto_oom.service import Oom
from stretto_planner.service import Planner
from stretto_profiler.service import Profiler
from stretto_runtime import EmbeddedServer, Runner, Service, provision
from stretto_runtime.access.identity import Key, mint
from stretto_runtime.access.permissions import channels_of_pods
from stretto_runtime.owner.recovery import recovered
from stretto_runtime.owner.reports import TURN_S
from stretto_runtime.replay import replay
from stretto_wire import spec
from stretto_wire.inboxes import inbox_of_pod
from stretto_wire.registry import partition_of
from stretto_wire.submission import JobSubmitted

GIB = 2**30
VICTIM = "victim"
HOSTILE, POD = job_beside(VICTIM), "worker-0"
CLUSTER = {"cpu_cores": 16.0, "memory_bytes": 64 * GIB}
SERVICES: dict[type[Service[Any, Any, Any]], dict[str, Any]] = {
    Profiler: {"window_s": 0.5}, Fitter: {}, Planner: CLUSTER, Arbiter: CLUSTER, Dispatcher: {}, Oom: {},
}  # fmt: skip
STREAMS = ("STRETTO", "TELEMETRY", "KV_STATE", "DLQ", "AUDIT")
SHARED = ("journal", "fence", "cursor", "mark", "owner", "member", "snap")
"""First tokens of subjects of a partition or a replica, and of snapshots: they change as time goes on."""
BY_THE_CLOCK = f"STRETTO {partition_of(VICTIM)}.evt.v1.dispatcher.job-progressed.{VICTIM}"
"""The victim's only event that time brings about; its decisions are repeated at the end like all others."""
SEEDS = 20


class Stage:
    """The services, and the victim's pods, which this test plays."""

    def __init__(self, server: EmbeddedServer, client: Client, folder: Path) -> None:
        self.server, self.client, self.folder = server, client, folder
        self.runners: list[Runner] = []
        self.turns = 0
        self.plan: Plan | None = None

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
        """Submit the victim, and play the actuator for its first plan."""
        parsed = spec.JobSpec.parse({"name": VICTIM, "model": {"entry": "m:M"}, "dataset": {"samples": 10**9}})
        await self.client.publish(JobSubmitted(job=VICTIM, spec=parsed))
        async with asyncio.timeout(30):
            async for event in self.client.events(patterns=(f"evt.v1.arbiter.plan-decided.{VICTIM}",)):
                assert isinstance(event.message, PlanDecided)
                self.plan = event.message.plan
                break
        assert self.plan is not None
        for role, count in (("ps", self.plan.ps), ("worker", self.plan.workers)):
            for number in range(count):
                started = replace(example_of(PodStarted), job=VICTIM, pod=f"{role}-{number}", role=role, plan_version=1)
                await self.client.publish(started)
        await self.client.publish(PlanApplied(job=VICTIM, version=1, plan=self.plan, took_s=1.0))

    async def turn(self) -> None:
        """Let each pod of the victim report once, and a worker lease a shard; waits for the answer."""
        assert self.plan is not None
        self.turns += 1
        now, steps, batch = time.time(), 10 * self.turns, 512
        for number in range(self.plan.workers):
            done = {"steps": 10, "steps_total": steps, "samples_total": steps * batch, "step_time_s": 0.01}
            report = replace(example_of(WorkerReported), job=VICTIM, pod=f"worker-{number}", plan_version=1, **done)
            await self.client.publish(replace(report, ended_at_s=now, window_s=0.2, longest_gap_s=0.02))
        for number in range(self.plan.ps):
            report = replace(example_of(PsReported), job=VICTIM, pod=f"ps-{number}", ended_at_s=now, window_s=0.2)
            await self.client.publish(report)
        lease = NextShard(job=VICTIM, request_id=f"w.{self.turns}", pod="worker-0")
        assert (await self.client.call(lease, 10.0)).answer == "shard"

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
        """Wait until only time changes anything, and no snapshot is damaged; returns what is stored."""
        before, after = dict[str, list[int]](), await self.stored()
        async with asyncio.timeout(60):
            while changed(before, after):
                await asyncio.sleep(3 * TURN_S)  # reports are handled at intervals: this one has to pass unchanged
                before, after = after, await self.stored()
        snaps = await read(self.client.bus, "KV_STATE", ["$KV.STATE.snap.>"], deliver_policy="last_per_subject")
        found = recovered(snaps)
        assert (found.damages, found.lost) == ([], set())
        return after

    async def decisions_repeat(self) -> int:
        """Decide about the victim again from the stream alone; returns how many decisions came out the same."""
        same = 0
        for service, more in SERVICES.items():
            own = service(service.settings_type(state_folder=self.folder, **more))
            again = await replay(self.client.bus, own, VICTIM)
            wrong = [one for one in again.decisions if one.verdict not in ("same", "not replayed")]
            assert wrong == [], (service.name, again.missing)
            same += again.count("same")
        return same


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    server = EmbeddedServer(tmp_path / "nats")
    await server.start()
    client = await Client.connect(server.url, server.login())
    await provision(client.bus)
    yield Stage(server, client, tmp_path)
    await client.close()
    server.kill()


def every_message() -> Iterator[Strike]:
    """Each subject that a pod may publish to, with each reply and each header, sound and empty bodies."""
    own = [subject_for(channel, HOSTILE, POD) for channel in channels_of_pods()]
    for subject in own:
        body = json.dumps({"job": HOSTILE, "pod": POD, "request_id": "x.1"}).encode()
        for reply in ("", *replies(HOSTILE, VICTIM)):
            yield Strike(subject, reply, "", body)
        for name, value in headers(VICTIM):
            for reply in ("", f"fence.arbiter.{partition_of(VICTIM)}"):
                yield Strike(subject, reply, lines_of({name: value}), body)


async def send(stage: Stage, messages: Iterator[Strike]) -> int:
    """Send from the hostile pod, connected anew whenever the server hangs up; returns how many were sent."""
    assert stage.server.keys is not None
    key = Key(stage.server.keys.signing_file.read_text().strip())
    credentials = mint(key, stage.server.keys.pods_account, HOSTILE, POD, time.time(), 600.0)
    bus = await Bus.connect(stage.server.url, RenewableLogin(credentials), POD, inbox_of_pod(HOSTILE, POD))
    sent = 0
    try:
        for strike in messages:
            for _ in range(500):
                try:
                    await bus.send(strike.subject, strike.body, strike.head, strike.reply)
                    sent += 1
                    break
                except BusFault:
                    await asyncio.sleep(0.02)
            if sent % 100 == 0:
                await asyncio.sleep(0)
        with contextlib.suppress(BusFault):  # the server may have hung up after an oversized one
            await bus.flush()
    finally:
        await bus.close()
    return sent


def changed(before: dict[str, list[int]], after: dict[str, list[int]]) -> list[str]:
    """Subjects that changed, but for those that time alone changes."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name) and name != BY_THE_CLOCK]
    return [name for name in names if first_token(name) not in SHARED]


def foreign(before: dict[str, list[int]], after: dict[str, list[int]]) -> list[str]:
    """Subjects that changed and do not belong to the hostile job; ``settled`` has read the snapshots."""
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
        assert await send(stage, every_message()) > 1000
        assert stage.ready
        after = await stage.settled()
        assert foreign(before, after) == []
        await stage.train(2)
        assert stage.ready
    async with stage.services():  # all of them once more, from what is stored
        await stage.train(2)
        assert stage.ready
    assert await stage.decisions_repeat() >= 10


@pytest.mark.slow
async def test_twenty_hostile_programs_change_nothing_while_the_victim_trains(stage: Stage) -> None:
    """Each seed draws another program; the victim leases and reports meanwhile, and its decisions repeat."""
    async with stage.services():
        await stage.submit()
        for seed in range(SEEDS):
            drawn = strikes(random.Random(f"unseen {seed}"), HOSTILE, POD, VICTIM)
            attack = asyncio.create_task(send(stage, islice(drawn, 400)))
            await stage.train(1)
            assert await attack > 300
            assert stage.ready, seed
        for runner in stage.runners:
            assert runner._bus is not None
            assert runner._bus.reconnects == 0
    async with stage.services():
        await stage.train(1)
        assert stage.ready
    assert await stage.decisions_repeat() >= SEEDS

"""Decisions among 1,000 live jobs, with background solves that keep a processor busy, and without any.

Every job publishes its progress every two seconds. Half of them have ten candidates under every plan that they get, as
a planner would compute them, so that each round has to choose; decisions are applied at once. The background algorithm
is a plug-in that holds its interpreter for seconds, and any gap starts a solve. Users request plans for the other half.
The figure is the time between two stamps of the server, of the request and of its answer, which also waits behind
rounds.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import uvloop
from stretto_bus import Client
from stretto_bus.reading.ordered_consumer import scan
from stretto_messages.actuator import PlanApplied
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import Message
from stretto_messages.gateway import PlanRequested
from stretto_messages.planner import CandidatesComputed, PlanProposed
from stretto_messages.values import Candidate, Interval, Plan
from stretto_wire.contract.registry import STREAM

from tests.bench.control.deciding import Used, serving
from tests.bench.control.fleet import Job, Replica, cpu_s, fleet, sent, store
from tests.bench.log.bus import fresh_bus
from tests.bench.rows import Row, row_at_most

JOBS, CANDIDATES = 1_000, 10
BAR_MS = 250.0
PROGRESS_S, REQUEST_S, MEASURED_S, BEAT_S = 2.0, 0.05, 30.0, 0.01
PLUG_IN = """
import time
from pathlib import Path
from stretto_core.arbiter.selection.exact import exact

def thorough(problem):
    with Path(__file__).with_name("asked").open("a") as asked:
        asked.write(f"{len(problem.contenders)}\\n")
    until_s = time.monotonic() + 5.0
    while time.monotonic() < until_s:
        pass
    return exact(problem)
"""
ROOM = {
    "STRETTO_ARBITER_CPU_CORES": str(3 * JOBS),
    "STRETTO_ARBITER_MEMORY_BYTES": str(2**50),
    "STRETTO_ARBITER_OBJECTIVE": "gain",
    "STRETTO_ARBITER_SETTLE_S": "2",
    "STRETTO_ARBITER_RETURN_AGAIN_S": "0",
    "STRETTO_ARBITER_BACKGROUND_GAP": "0",
}


class Asked(NamedTuple):
    """A measurement. ``solved``: jobs of each background solve. ``busy``: cores used by each process and the solver."""

    latencies_s: list[float]
    solved: list[int]
    busy: dict[str, float]


def run() -> list[Row]:
    """Return one row, with the run without background solves as the baseline."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        without = loop.run(_measured({"STRETTO_ARBITER_BACKGROUND_ALGORITHM": ""}))
        beside = loop.run(_measured({"STRETTO_ARBITER_BACKGROUND_ALGORITHM": "thorough"}))
    if not beside.solved:
        raise RuntimeError("no round was solved in the background: there is nothing to measure")
    busy = " ".join(f"{name} {share:.0%}" for name, share in beside.busy.items())
    note = (
        f"p50 {1000 * statistics.median(beside.latencies_s):.1f} ms of {len(beside.latencies_s)}, without "
        f"{1000 * statistics.median(without.latencies_s):.1f}; {len(beside.solved)} background solves of "
        f"{min(beside.solved)}-{max(beside.solved)} jobs; of a core: {busy}; load {os.getloadavg()[0]:.1f}"
    )
    name = f"request to decision, p99, {JOBS:,} live jobs, background solves of seconds beside"
    return [row_at_most(name, _p99_ms(beside), "ms", BAR_MS, note, _p99_ms(without))]


def _p99_ms(asked: Asked) -> float:
    return 1000 * sorted(asked.latencies_s)[int(0.99 * len(asked.latencies_s))]


async def _measured(settings: Mapping[str, str]) -> Asked:
    async with fresh_bus() as (client, server, folder):
        plug_in = _installed(folder / "plug-in")
        variables = {**ROOM, **settings, "PYTHONPATH": str(plug_in)}
        async with serving("arbiter", server, folder, variables) as pid:
            simulation = Simulation(client)
            await simulation.start(Replica("arbiter", pid, folder))
            acting = asyncio.create_task(simulation.act())
            try:
                first = await client.last_seq()
                pids = {"arbiter": pid, "server": server.pid or 0, "simulation": os.getpid()}
                clocks = {name: partial(cpu_s, own) for name, own in pids.items()}
                used = Used({**clocks, "solver": partial(_solving_s, pid)})
                await simulation.live()
                busy = used.shares()
            finally:
                acting.cancel()
            asked = plug_in / "asked"
            solved = [int(line) for line in asked.read_text().split()] if asked.exists() else []
            return Asked(await _answered(client, first), solved, busy)


def _installed(folder: Path) -> Path:
    """Write the plug-in into a folder; processes with the folder on their path find it."""
    registered = folder / "thorough-0.1.dist-info"
    registered.mkdir(parents=True)
    (folder / "thorough.py").write_text(PLUG_IN)
    (registered / "METADATA").write_text("Metadata-Version: 2.1\nName: thorough\nVersion: 0.1\n")
    (registered / "entry_points.txt").write_text("[stretto.select]\nthorough = thorough:thorough\n")
    return folder


def _solving_s(pid: int) -> float:
    """Return the CPU seconds of the arbiter's solver processes, ended ones included."""
    ended = psutil.Process(pid).cpu_times()
    return ended.children_user + ended.children_system + sum(cpu_s(each.pid) for each in psutil.Process(pid).children())


class Simulation:
    """The ledgers, actuator, planner and users of all jobs."""

    def __init__(self, client: Client) -> None:
        self._client = client
        jobs = fleet(JOBS, 1, 1)
        self._jobs = {job.name: job for job in jobs}
        self._choosing, self._asking = jobs[: JOBS // 2], jobs[JOBS // 2 :]
        self._draw = random.Random(3)

    async def start(self, arbiter: Replica) -> None:
        """Put every job under its first plan."""
        jobs = list(self._jobs.values())
        proposed = {"kind": "initial", "cost_per_hour": 0.1, "reasons": ("the first",)}
        await store(self._client, [job.submitted(10**9) for job in jobs])
        await store(self._client, [PlanProposed(job=job.name, plan=job.plan, **proposed) for job in jobs])
        await arbiter.until(2 * JOBS)
        await store(self._client, [message for job in jobs for message in self._applied(job, job.plan, 1)])
        await arbiter.until(3 * JOBS)
        await store(self._client, [self._candidates(job) for job in self._choosing])

    async def live(self) -> None:
        """Publish the progress events and candidates that are due."""
        end, next_request, asked = time.time() + MEASURED_S, time.time(), 0
        while (now := time.time()) < end:
            for job in self._jobs.values():
                if now - job.progressed_s >= PROGRESS_S:
                    await self._send(job.progressed(now))
            if now >= next_request:
                next_request += REQUEST_S
                job = self._asking[asked % len(self._asking)]
                cores = 1.0 - 0.1 * (1 + asked // len(self._asking))
                wanted = replace(job.plan, worker_cpu_cores=cores)
                await self._send(PlanRequested(job=job.name, plan=wanted, by="ada"))
                asked += 1
            await asyncio.sleep(BEAT_S)

    async def act(self) -> None:
        """Apply every decided plan, and compute the candidates under it."""
        async for event in self._client.events(patterns=["evt.v1.arbiter.plan-decided.*"]):
            decided = event.message
            if isinstance(decided, PlanDecided) and decided.version > 1:
                job = self._jobs[decided.job]
                messages = self._applied(job, decided.plan, decided.version)
                await store(self._client, [*messages, self._candidates(job)] if decided.kind == "improve" else messages)

    def _applied(self, job: Job, plan: Plan, version: int) -> list[Message]:
        told = job.under(plan, version, time.time())
        return [message for message in told if isinstance(message, PlanApplied)]

    def _candidates(self, job: Job) -> CandidatesComputed:
        def one(number: int) -> Candidate:
            plan = replace(job.plan, workers=self._draw.randint(2, 30), ps=self._draw.randint(1, 6))
            rate = 1000 * plan.workers ** self._draw.uniform(0.5, 0.9)
            around = Interval(low=0.9 * rate, high=1.1 * rate)
            more = {"cost_per_hour": 0.05 * plan.workers, "overhead_s": 5.0, "gain": rate - 1000}
            return Candidate(id=f"c{number}", plan=plan, throughput=rate, throughput_interval=around, **more)

        now = {"plan_version": job.version, "plan": job.plan, "throughput": 1000.0}
        front = tuple(one(number) for number in range(CANDIDATES))
        return CandidatesComputed(job=job.name, algorithm="exact", plans_considered=99, candidates=front, **now)

    async def _send(self, message: Message) -> None:
        """Publish a message without waiting for its acknowledgement."""
        await self._client.bus.send(*sent(message, time.time()))


async def _answered(client: Client, first: int) -> list[float]:
    """Return the seconds from each request to the decision whose id has the request's sequence."""
    asked: dict[int, float] = {}
    latencies_s: list[float] = []
    patterns = [f"*.evt.v1.*.{name}.*" for name in ("plan-requested", "plan-decided", "plan-refused")]
    async for stored in scan(client.bus, STREAM, patterns, first + 1, headers_only=True):
        if stored.subject.split(".")[4] == "plan-requested":
            asked[stored.seq] = stored.time_s
        else:
            cause = int(stored.headers["ce-id"].split(":")[1].partition(".")[0])
            if cause in asked:
                latencies_s.append(stored.time_s - asked.pop(cause))
    return latencies_s

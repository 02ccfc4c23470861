"""The profiler's intake: 2,000 jobs of 50 pods, at the rate of one replica, and at 3,300 messages a second.

Each pod reports every 30 s, so a job's five-second window has eight reports and one message in eight closes a window.
*Rate*: a backlog is stored at that pace while no replica runs; the rate is that of the replica's own count of handled
inputs, from a tenth to the end of the backlog, so its start does not count. The baseline is nats-py's bare pull-and-ack
loop over the same messages, before and after, on the same server. *Sustained*: the replica runs while the messages
come; memory is its highest resident size after the jobs are known, and its lag is measured at the end.
``INTAKE_MINUTES`` sets the duration (default 1; the promise is for 5).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from stretto_bus import Client
from stretto_installation.server import EmbeddedServer
from stretto_wire.contract.registry import TELEMETRY

from tests.bench.control.fleet import Job, Replica, cpu_s, fleet, sent, store
from tests.bench.log.bus import fresh_bus
from tests.bench.log.runtime import bare_rate
from tests.bench.rows import Row, row, row_at_most

JOBS, WORKERS, SERVERS, EVERY_S = 2_000, 40, 10, 30.0
RATE = JOBS * (WORKERS + SERVERS) / EVERY_S
BACKLOG_S, ROUNDS = 10.0, 3
BEAT_S = 0.02
MINUTES = "INTAKE_MINUTES"
MEMORY_BAR_MIB, RATIO_BAR = 300.0, 0.5


class Round(NamedTuple):
    """The rate: messages a second, and CPU microseconds of the replica for one."""

    rate: float
    bare: float
    cpu_us: float


class Sustained(NamedTuple):
    """The sustained run: messages a second, resident MiB (highest, before), lag in s, CPU microseconds a message."""

    rate: float
    resident_mib: float
    resident_before_mib: float
    behind_s: float
    cpu_us: float


def run() -> list[Row]:
    """Return rows for the rate against the bare loop, the sustained rate and its memory."""
    rounds, sustained = asyncio.run(_measure(60 * float(os.environ.get(MINUTES, "1"))))
    ratios = [each.rate / each.bare for each in rounds]
    ratio = statistics.median(ratios)
    spread = " ".join(f"{each:.2f}" for each in ratios)
    cpu_us = statistics.median(each.cpu_us for each in rounds)
    minutes = f"{float(os.environ.get(MINUTES, '1')):g} min at {sustained.rate:.0f}/s"
    return [
        row(
            f"profiler intake, {JOBS} jobs of {WORKERS + SERVERS} pods",
            statistics.median(each.rate for each in rounds),
            "messages/s",
            f">= {RATIO_BAR} x bare loop",
            ratio >= RATIO_BAR,
            f"median of {ROUNDS} rounds ({spread}); {cpu_us:.0f} us CPU a message; load {os.getloadavg()[0]:.1f}",
            statistics.median(each.bare for each in rounds),
            ratio,
        ),
        row(
            "profiler intake, sustained",
            sustained.rate,
            "messages/s",
            f">= {RATE:.0f} messages/s, at most 1 s behind",
            sustained.rate >= 0.99 * RATE and sustained.behind_s <= 1,
            f"{minutes}; {sustained.behind_s:.2f} s behind; {sustained.cpu_us:.0f} us CPU a message",
        ),
        row_at_most(
            "profiler intake, resident",
            sustained.resident_mib,
            "MiB",
            MEMORY_BAR_MIB,
            f"highest in {minutes}; {sustained.resident_before_mib:.0f} MiB before",
        ),
    ]


@asynccontextmanager
async def profiler(server: EmbeddedServer, folder: Path) -> AsyncIterator[Replica]:
    """Start one replica, and stop it in good order."""
    environment = {**os.environ, "STRETTO_NATS_URL": server.url, "STRETTO_STATE_FOLDER": str(folder)}
    command = [sys.executable, "-m", "stretto_profiler"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.DEVNULL)
    try:
        yield Replica("profiler", process.pid, folder)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.wait(), 30)


async def _measure(sustained_s: float) -> tuple[list[Round], Sustained]:
    async with fresh_bus() as (client, server, folder):
        jobs = fleet(JOBS, WORKERS, SERVERS)
        await _introduce(client, server, folder, jobs)
        feed = Feed(client, jobs)
        rounds = [await _round(client, server, folder, feed) for _ in range(ROUNDS)]
        return rounds, await _sustained(server, folder, feed, sustained_s)


async def _introduce(client: Client, server: EmbeddedServer, folder: Path, jobs: list[Job]) -> None:
    """Publish every job and its pods, as gateway and actuator do, and wait until a profiler has saved them."""
    now, told = time.time(), 0
    async with profiler(server, folder) as replica:
        for job in jobs:
            messages = [job.submitted(10**12), *job.under(job.plan, 1, now)]
            told += len(messages)
            await store(client, messages)
        await replica.until(told)


class Feed:
    """Yield the reports of all pods in turn, so that those of a job are spread over the time."""

    def __init__(self, client: Client, jobs: list[Job]) -> None:
        self._client = client
        self._turns = [(job, job.pods[index]) for index in range(WORKERS + SERVERS) for job in jobs]
        self._turn = 0

    async def run(self, seconds: float) -> int:
        """Report at the pods' pace, from the end of the last run on; return the number of reports."""
        started, told = time.perf_counter(), 0
        while (passed_s := time.perf_counter() - started) < seconds:
            due = min(int(passed_s * RATE) - told, 1000)
            now, answers = time.time(), []
            for _ in range(due):
                job, pod = self._turns[self._turn % len(self._turns)]
                self._turn += 1
                answers.append(await self._client.bus.post(*sent(job.report(pod, now), now)))
            told += due
            await asyncio.gather(*answers)
            await asyncio.sleep(BEAT_S)
        return told


async def _round(client: Client, server: EmbeddedServer, folder: Path, feed: Feed) -> Round:
    first = int((await client.bus.ask(f"STREAM.INFO.{TELEMETRY}"))["state"]["last_seq"]) + 1
    count = await feed.run(BACKLOG_S)
    before = await bare_rate(server.url, "*.tel.v1.*.*.*", count, first, TELEMETRY)
    async with profiler(server, folder) as replica:
        await replica.until(count // 10)
        begin, begun_s, begun = time.perf_counter(), cpu_s(replica.pid), await replica.handled()
        await replica.until(count)
        took_s, spent_s = time.perf_counter() - begin, cpu_s(replica.pid) - begun_s
    after = await bare_rate(server.url, "*.tel.v1.*.*.*", count, first, TELEMETRY)
    return Round((count - begun) / took_s, (before + after) / 2, 1e6 * spent_s / (count - begun))


async def _sustained(server: EmbeddedServer, folder: Path, feed: Feed, seconds: float) -> Sustained:
    async with profiler(server, folder) as replica:
        warm = await feed.run(5.0)
        await replica.until(warm)
        resident = [replica.resident_mib()]
        watching = asyncio.create_task(_watch(replica, resident))
        begin, begun_s = time.perf_counter(), cpu_s(replica.pid)
        count = await feed.run(seconds)
        fed_s = time.perf_counter() - begin
        await replica.until(warm + count)
        took_s, spent_s = time.perf_counter() - begin, cpu_s(replica.pid) - begun_s
        watching.cancel()
    behind_s = took_s - fed_s
    return Sustained(count / fed_s, max(resident), resident[0], behind_s, 1e6 * spent_s / count)


async def _watch(replica: Replica, resident: list[float]) -> None:
    while True:
        resident.append(replica.resident_mib())
        await asyncio.sleep(0.5)

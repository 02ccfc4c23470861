"""10,000 pods beside the facts of 50 jobs: what they add to the log of facts, and to the latency of a fact.

The pods send twice as many reports as the profiler asks all pods for, over a few connections and under a subject
each. A real profiler takes the reports in. A fact goes to a replica of the runtime's counting service; its latency is
the time from publishing to the arrival of the service's own event about it. Rounds without and with telemetry
alternate on one server, and the baseline is that of the rounds without. ``PODS_SECONDS`` sets the time of each round
(default 30, which is two profiles of each job).
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stretto_bus import Client
from stretto_bus.reading.ordered_consumer import read
from stretto_installation.server import EmbeddedServer
from stretto_installation.settings import FACTS_BYTES
from stretto_messages.gateway import JobCancelled
from stretto_profiler.settings import ProfilerSettings
from stretto_wire.contract.registry import PROFILES_KEPT_S, STREAM, TELEMETRY

from tests.bench.control.fleet import Job, Pod, fleet, sent, store
from tests.bench.control.intake import BEAT_S, profiler
from tests.bench.log.bus import fresh_bus
from tests.bench.log.runtime import REPLICA
from tests.bench.rows import Row, row

POD_JOBS, WORKERS, SERVERS = 200, 40, 10
PODS = POD_JOBS * (WORKERS + SERVERS)
REPORTS_PER_S = 1000.0
INTERVAL_S = PODS / REPORTS_PER_S
CONNECTIONS = 4
FACT_JOBS, FACTS_PER_S = 50, 50.0
ROUNDS = 2
SECONDS = "PODS_SECONDS"
LATENCY_RATIO_BAR = 2.0
"""Taste: a fact may take twice as long beside 10,000 pods."""
FULLNESS_BAR = 0.7
"""From there on the alert StrettoStreamFilling asks for room."""
PROFILES = "*.evt.v1.profiler.*.*"


@dataclass
class Round:
    """Latencies of the facts, and the bytes and messages by which the two streams grew."""

    latencies_s: list[float] = field(default_factory=list[float])
    facts_bytes: int = 0
    profile_bytes: int = 0
    telemetry_bytes: int = 0
    reports: int = 0

    @property
    def p99_ms(self) -> float:
        """The latency that a hundredth of the facts exceed."""
        ordered = sorted(self.latencies_s)
        return 1e3 * ordered[math.ceil(0.99 * len(ordered)) - 1]


def run() -> list[Row]:
    """Return rows for the growth of the log of facts, for telemetry, and for the latency of a fact."""
    seconds = float(os.environ.get(SECONDS, "30"))
    quiet, loud = asyncio.run(_measure(seconds))
    spent_s = seconds * ROUNDS
    profiles = sum(each.profile_bytes for each in loud) / spent_s
    others = (
        sum(noisy.facts_bytes - still.facts_bytes for still, noisy in zip(quiet, loud, strict=True)) / spent_s
        - profiles
    )
    fullness = (profiles * PROFILES_KEPT_S + others * ProfilerSettings().journal_ttl_s) / FACTS_BYTES
    telemetry, reports = sum(each.telemetry_bytes for each in loud), sum(each.reports for each in loud)
    before, after = (Round(list(itertools.chain(*(each.latencies_s for each in some)))) for some in (quiet, loud))
    spread = " ".join(f"{each.p99_ms:.1f}" for each in loud)
    ratio = after.p99_ms / before.p99_ms
    load = f"{ROUNDS} rounds of {seconds:g} s each; load {os.getloadavg()[0]:.1f}"
    return [
        row(
            f"log of facts, full of what {PODS} pods bring",
            fullness,
            "of 8 GiB",
            f"<= {FULLNESS_BAR:g}",
            fullness <= FULLNESS_BAR,
            f"{profiles / 1024:.0f} KiB/s of profiles, kept {PROFILES_KEPT_S / 3600:g} h, {others / 1024:.1f} KiB/s of "
            f"journals, kept a day; {telemetry / spent_s / 1024:.0f} KiB/s of telemetry beside it; {load}",
        ),
        row(
            f"reports of {PODS} pods, each every {INTERVAL_S:g} s",
            reports / spent_s,
            "reports/s",
            f">= 0.99 x {REPORTS_PER_S:.0f} reports/s",
            reports / spent_s >= 0.99 * REPORTS_PER_S,
            f"{telemetry / reports:.0f} bytes stored for one",
        ),
        row(
            f"a fact beside {PODS} pods, p99 from publishing to handled",
            after.p99_ms,
            "ms",
            f"<= {LATENCY_RATIO_BAR:g} x without pods",
            ratio <= LATENCY_RATIO_BAR,
            f"{len(after.latencies_s)} facts of {FACT_JOBS} jobs; rounds {spread}",
            before.p99_ms,
            ratio,
        ),
    ]


async def _measure(seconds: float) -> tuple[list[Round], list[Round]]:
    async with fresh_bus() as (client, server, folder):
        jobs = fleet(POD_JOBS, WORKERS, SERVERS)
        async with profiler(server, folder) as taking, _counting(server, folder):
            now, told = time.time(), 0
            for job in jobs:
                messages = [job.submitted(10**12), *job.under(job.plan, 1, now)]
                told += len(messages)
                await store(client, messages)
            await taking.until(told)
            pods = [await Client.connect(server.url) for _ in range(CONNECTIONS)]
            await _round(client, [], [], 2.0)  # the counting service takes its partitions
            quiet, loud = list[Round](), list[Round]()
            for _ in range(ROUNDS):
                quiet.append(await _round(client, [], [], seconds))
                loud.append(await _round(client, pods, jobs, seconds))
            for pod in pods:
                await pod.close()
            return quiet, loud


@asynccontextmanager
async def _counting(server: EmbeddedServer, folder: Path) -> AsyncIterator[None]:
    own = {"STRETTO_NATS_URL": server.url, "STRETTO_STATE_FOLDER": str(folder)}
    process = await asyncio.create_subprocess_exec(sys.executable, str(REPLICA), env={**os.environ, **own})
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def _round(client: Client, pods: list[Client], jobs: list[Job], seconds: float) -> Round:
    """Publish facts for some seconds, beside the reports of all pods if there are connections for them."""
    found = Round()
    before = {name: await _bytes(client, name) for name in (STREAM, TELEMETRY)}
    first = (await client.bus.ask(f"STREAM.INFO.{STREAM}"))["state"]["last_seq"] + 1
    turns = [(job, job.pods[index]) for index in range(WORKERS + SERVERS) for job in jobs]
    reporting = asyncio.create_task(_report(pods, turns, seconds)) if pods else None
    found.latencies_s = await _facts(client, seconds)
    found.reports = await reporting if reporting is not None else 0
    found.facts_bytes = await _bytes(client, STREAM) - before[STREAM]
    profiles = await read(client.bus, STREAM, [PROFILES], first)
    found.profile_bytes = sum(
        len(each.data) + sum(map(len, [*each.headers, *each.headers.values()])) for each in profiles
    )
    found.telemetry_bytes = await _bytes(client, TELEMETRY) - before[TELEMETRY]
    if refused := await client.dead_letters():
        raise RuntimeError(f"{len(refused)} reports or facts were refused: {refused[0].headers['error']}")
    return found


async def _bytes(client: Client, stream: str) -> int:
    return int((await client.bus.ask(f"STREAM.INFO.{stream}"))["state"]["bytes"])


async def _report(pods: list[Client], turns: list[tuple[Job, Pod]], seconds: float) -> int:
    """Send the reports of all pods in turn, each over one of the connections; return the number that are stored."""
    started, told, now = time.perf_counter(), 0, time.time()
    for index, (_, pod) in enumerate(turns):  # as if each had reported one interval before its turn
        pod.told_s = now + index / REPORTS_PER_S - INTERVAL_S
    coming = itertools.cycle(turns)
    while (passed_s := time.perf_counter() - started) < seconds:
        now, answers = time.time(), []
        for _ in range(min(int(passed_s * REPORTS_PER_S) - told, 1000)):
            job, pod = next(coming)
            answers.append(await pods[told % len(pods)].bus.post(*sent(job.report(pod, now), now)))
            told += 1
        await asyncio.gather(*answers)
        await asyncio.sleep(BEAT_S)
    return told


async def _facts(client: Client, seconds: float) -> list[float]:
    """Publish facts one by one at their pace; return the time of each until the service's event about it arrives."""
    sent_s, found = dict[str, deque[float]](), list[float]()
    last = (await client.bus.ask(f"STREAM.INFO.{STREAM}"))["state"]["last_seq"]

    async def follow() -> None:
        async for event in client.events(patterns=["evt.v1.dispatcher.*.*"], from_seq=last + 1):
            if waiting := sent_s.get(event.message.job):
                found.append(time.perf_counter() - waiting.popleft())

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.5)
    begun, count = time.perf_counter(), int(seconds * FACTS_PER_S)
    for number in range(count):
        await asyncio.sleep(begun + number / FACTS_PER_S - time.perf_counter())
        job = f"fact-{number % FACT_JOBS}"
        sent_s.setdefault(job, deque()).append(time.perf_counter())
        await client.publish(JobCancelled(job=job, reason="1"))
    async with asyncio.timeout(30):
        while len(found) < count:
            await asyncio.sleep(0.05)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return found

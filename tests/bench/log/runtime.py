"""Events a second through one replica of the runtime: a trivial machine, one output per event, a backlog of 200 jobs.

The replica is the counting service of the runtime's own tests in a process of its own, with default settings: fenced
outputs, snapshots, metrics, spans. Its rate is that of its outputs between the first and the last time at which the
server stored them, so starting and taking the partitions do not count. The baseline is a minimal consumer: nats-py's
pull consumer over the same backlog, fetching 256 at a time and acknowledging each, without work, in a separate process
under the same event loop. It publishes nothing, so a machine without outputs is measured, too. All run in turns on the
same server.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import nats
import uvloop
from nats.errors import TimeoutError as NoneLeft
from nats.js.api import ConsumerConfig, DeliverPolicy
from stretto_bus import Client
from stretto_bus.reading.ordered_consumer import scan
from stretto_installation.server import EmbeddedServer
from stretto_messages.gateway import JobCancelled
from stretto_wire.contract.registry import STATE, STREAM

from tests.bench.control.fleet import Replica, cpu_s, store
from tests.bench.log.bus import fresh_bus
from tests.bench.places import ROOT
from tests.bench.rows import Row, row

REPLICA = ROOT / "libs" / "runtime" / "tests" / "runtime_counting.py"
JOBS, EVENTS_OF_A_ROUND, ROUNDS = 200, 60_000, 3
BAR = 0.92
FETCHED = 256
GIVE_UP_S = 120.0


class Round(NamedTuple):
    """Rates per second, and CPU microseconds of the replica for one event, with and without outputs."""

    rate: float
    bare: float
    cpu_us: float
    silent: float
    silent_us: float


def run() -> list[Row]:
    """Return rows for the rate itself and for its ratio to the bare loop."""
    rounds = [asyncio.run(_round()) for _ in range(ROUNDS)]
    rate, bare, silent = (statistics.median(getattr(each, n) for each in rounds) for n in ("rate", "bare", "silent"))
    ratios = [each.rate / each.bare for each in rounds]
    ratio = statistics.median(ratios)
    spread = " ".join(f"{each:.2f}" for each in ratios)
    costs = f"{statistics.median(each.cpu_us for each in rounds):.0f} us CPU an event"
    load = f"load {os.getloadavg()[0]:.1f}"
    silent_ratio = statistics.median(each.silent / each.bare for each in rounds)
    silent_cost = f"{statistics.median(each.silent_us for each in rounds):.0f} us CPU an event"
    spread = f"median of {ROUNDS} rounds ({spread})"
    return [
        row(f"runtime, one replica, {JOBS} jobs", rate, "events/s", ">= 15000 events/s", rate >= 15_000,
            f"{costs}; {load}"),
        row("runtime beside bare pull-and-ack", rate, "events/s", f">= {BAR:g} x bare loop", ratio >= BAR, spread, bare,
            ratio),
        row("runtime, a machine without outputs, beside bare pull-and-ack", silent, "events/s", "", None, silent_cost,
            bare, silent_ratio),
    ]  # fmt: skip


@asynccontextmanager
async def backlog(count: int) -> AsyncIterator[tuple[Client, EmbeddedServer, Path]]:
    """Start a server with ``count`` events of the jobs in its stream."""
    async with fresh_bus() as (client, server, folder):
        added = [JobCancelled(job=f"job-{n % JOBS}", reason=str(n % 600)) for n in range(count)]
        await store(client, added)
        yield client, server, folder


async def _round() -> Round:
    """Measure one round, with the bare loop before and after: the machine's other load changes within seconds."""
    async with backlog(EVENTS_OF_A_ROUND) as (client, server, folder):
        before = await bare_rate(server.url, "*.evt.v1.gateway.job-cancelled.*", EVENTS_OF_A_ROUND)
        rate, cpu_us = await _replica_rate(client, server, folder)
        await client.bus.ask(f"STREAM.PURGE.{STATE}")  # the next begins anew
        silent, silent_us = await _silent_rate(server, folder)
        after = await bare_rate(server.url, "*.evt.v1.gateway.job-cancelled.*", EVENTS_OF_A_ROUND)
    return Round(rate, (before + after) / 2, cpu_us, silent, silent_us)


async def _silent_rate(server: EmbeddedServer, folder: Path) -> tuple[float, float]:
    """Measure like ``_replica_rate``, by the replica's own count: from a tenth of the events to the last."""
    environment = {
        **os.environ,
        "STRETTO_NATS_URL": server.url,
        "STRETTO_STATE_FOLDER": str(folder),
        "STRETTO_SILENT": "true",
    }
    process = await asyncio.create_subprocess_exec(sys.executable, str(REPLICA), env=environment)
    replica = Replica("dispatcher", process.pid, folder)
    try:
        await replica.until(EVENTS_OF_A_ROUND // 10)
        begin, begun_s, begun = time.perf_counter(), cpu_s(process.pid), await replica.handled()
        await replica.until(EVENTS_OF_A_ROUND)
        took_s, spent_s = time.perf_counter() - begin, cpu_s(process.pid) - begun_s
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 20)
    return (EVENTS_OF_A_ROUND - begun) / took_s, 1e6 * spent_s / (EVENTS_OF_A_ROUND - begun)


async def _replica_rate(client: Client, server: EmbeddedServer, folder: Path) -> tuple[float, float]:
    environment = {**os.environ, "STRETTO_NATS_URL": server.url, "STRETTO_STATE_FOLDER": str(folder)}
    process = await asyncio.create_subprocess_exec(sys.executable, str(REPLICA), env=environment)
    try:
        first_seq = await client.last_seq() + 1
        spent_s = await _until_stored(client, first_seq + EVENTS_OF_A_ROUND, process.pid)
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 20)
    times = [stored.time_s async for stored in scan(client.bus, STREAM, ["*.evt.v1.dispatcher.*.*"], headers_only=True)]
    if len(times) != EVENTS_OF_A_ROUND:
        raise RuntimeError(f"{len(times)} outputs of {EVENTS_OF_A_ROUND} events")
    return (len(times) - 1) / (times[-1] - times[0]), 1e6 * spent_s / len(times)


async def _until_stored(client: Client, seq: int, pid: int) -> float:
    """Wait for the outputs; return the replica's CPU time until then, without its start."""
    give_up_s = time.monotonic() + GIVE_UP_S
    begun_s, begin = 0.0, await client.last_seq()
    while (last := await client.last_seq()) < seq:
        if time.monotonic() > give_up_s:
            raise RuntimeError(
                f"the replica has stored {last - begin} messages in {GIVE_UP_S:.0f} s, not {seq - begin}"
            )
        if last <= begin + 40:  # its fences, and no output yet
            begun_s = cpu_s(pid)
        await asyncio.sleep(0.05)
    return cpu_s(pid) - begun_s


async def bare_rate(url: str, pattern: str, count: int, first: int = 1, stream: str = STREAM) -> float:
    """Return the bare loop's messages a second, over ``count`` stored ones of ``pattern`` from ``first`` on."""
    command = [sys.executable, "-m", "tests.bench.log.runtime", url, pattern, str(count), str(first), stream]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT)
    out, _ = await asyncio.wait_for(process.communicate(), GIVE_UP_S)
    return float(json.loads(out))


async def _bare(url: str, pattern: str, count: int, first: int, stream: str) -> float:
    connection = await nats.connect(url)
    subscription = await connection.jetstream().pull_subscribe(
        pattern,
        durable=f"bare-{os.getpid()}",
        stream=stream,
        config=ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first),
    )
    begin, taken = time.perf_counter(), 0
    while taken < count:
        try:
            fetched = await subscription.fetch(FETCHED, timeout=2)
        except NoneLeft:
            raise RuntimeError(f"{pattern} brought {taken} messages, not {count}") from None
        for message in fetched:
            await message.ack()
        taken += len(fetched)
    await connection.flush()
    rate = taken / (time.perf_counter() - begin)
    await connection.close()
    return rate


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        url, pattern, count, first, stream = sys.argv[1:]
        print(json.dumps(loop.run(_bare(url, pattern, int(count), int(first), stream))))

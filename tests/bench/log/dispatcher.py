"""Durable lease + complete pairs (``next``) of one dispatcher replica: 8 clients on one job.

One pair is one ``next-shard`` request that completes the last shard and leases another; it is on the stream before its
reply leaves. The baseline is the rate of one client that publishes to the same stream serially and waits for each
acknowledgement. Both are measured in turns, on the same server. On a machine with other load the CPU time of a pair is
the steadier figure: the note gives it for dispatcher, server and clients.
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
from typing import Any, NamedTuple

from stretto_bus import Client
from stretto_messages.dispatcher import MarkLedger, NextShard, ShardReport
from stretto_wire.contract.submission import JobSubmitted
from stretto_wire.jobspec.spec import JobSpec

from tests.bench.log.bus import fresh_bus
from tests.bench.places import ROOT
from tests.bench.rows import Row, row, row_at_most

CLIENTS, PROCESSES = 8, 2
ROUNDS, ROUND_S, WARM_S, SERIAL_S = 5, 4.0, 1.0, 1.5
JOB = "bench"


def run() -> list[Row]:
    """Return rows for throughput and latency, with default sync and ``sync_interval: always``."""
    return [*asyncio.run(_measure("")), *asyncio.run(_measure("always"))]


async def _measure(sync: str) -> list[Row]:
    async with dispatching(sync) as dispatcher:
        rounds = [await a_round(dispatcher, number) for number in range(ROUNDS)]
    return _rows(rounds, sync)


class Dispatching(NamedTuple):
    """A dispatcher with the job. ``paid``: its process and its server, whose CPU time is counted."""

    client: Client
    url: str
    paid: tuple[int, int]


@asynccontextmanager
async def dispatching(sync: str = "") -> AsyncIterator[Dispatching]:
    """Start one replica on a separate server."""
    async with fresh_bus(sync) as (client, server, folder):
        environment = {**os.environ, "STRETTO_NATS_URL": server.url, "STRETTO_STATE_FOLDER": str(folder)}
        command = [sys.executable, "-m", "stretto_dispatcher"]
        dispatcher = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.DEVNULL)
        try:
            await submit(client, JOB, 1)
            assert server.pid is not None
            yield Dispatching(client, server.url, (dispatcher.pid, server.pid))
        finally:
            dispatcher.terminate()
            await asyncio.wait_for(dispatcher.wait(), 20)


async def submit(client: Client, job: str, batches_per_shard: int) -> None:
    """Submit a job that no round exhausts; return when the dispatcher knows it."""
    dataset = {"samples": 10**12, "batch_size": 512, "batches_per_shard": batches_per_shard}
    spec = JobSpec.parse({"name": job, "model": {"entry": "none:None"}, "dataset": dataset})
    await client.publish(JobSubmitted(job=job, spec=spec))
    for number in range(600):
        mark = MarkLedger(job=job, request_id=f"ready.{number}")
        if (await client.call(mark, timeout_s=30)).answer == "ok":
            return
        await asyncio.sleep(0.05)
    raise RuntimeError("the dispatcher does not know the job after 30 s")


class Round(NamedTuple):
    """Measurements of one round: rates per second, latencies in seconds, CPU microseconds per pair."""

    pairs: float
    serial: float
    latencies: list[float]
    dispatcher_us: float
    server_us: float
    clients_us: float


async def a_round(dispatcher: Dispatching, number: int) -> Round:
    """Measure one round, with serial acknowledgements before and after it."""
    client, url, paid = dispatcher
    before = await _serial(client)
    begun = [_cpu_s(pid) for pid in paid]
    share = CLIENTS // PROCESSES
    started = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.log.dispatcher", url, str(number * 100 + index * share), str(share)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        for index in range(PROCESSES)
    ]
    for process in started:  # all clients at once: no window may fall into another process's start
        assert process.stdout is not None
        await process.stdout.readline()
    told = [json.loads(out) for out, _ in await asyncio.gather(*(process.communicate(b"go") for process in started))]
    spent = [_cpu_s(pid) - before_s for pid, before_s in zip(paid, begun, strict=True)]
    spent.append(sum(part["cpu_s"] for part in told))
    serial = (before + await _serial(client)) / 2
    latencies = [latency for part in told for latency in part["latencies_s"]]
    pairs = sum(part["pairs"] for part in told)
    return Round(len(latencies) / ROUND_S, serial, latencies, *(1e6 * each / pairs for each in spent))


def _cpu_s(pid: int) -> float:
    """Return the user and system seconds of a process so far (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _serial(client: Client) -> float:
    """Publish one message at a time, waiting for each acknowledgement; return the rate per second."""
    data, subject, count = b"x" * 200, f"evt.v1.actuator.pod-pending.{JOB}-serial", 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < SERIAL_S:
        await client.bus.store(subject, data)
        count += 1
    return count / (time.perf_counter() - begin)


def _rows(rounds: list[Round], sync: str) -> list[Row]:
    ratios = [each.pairs / each.serial for each in rounds]
    ratio = statistics.median(ratios)
    p99_ms = 1000 * statistics.median(_quantile(each.latencies, 0.99) for each in rounds)
    p50_ms = 1000 * statistics.median(_quantile(each.latencies, 0.5) for each in rounds)
    mode = f", sync {sync}" if sync else ""
    spread = " ".join(f"{each:.2f}" for each in ratios)
    costs = [
        f"{name} {statistics.median(getattr(each, name + '_us') for each in rounds):.0f}"
        for name in ("dispatcher", "server", "clients")
    ]
    least = 1.3 if sync else 0.65
    return [
        row(
            f"durable next, 8 clients, one job{mode}",
            statistics.median(each.pairs for each in rounds),
            "pairs/s",
            f">= {least} x serial publish-ack",
            ratio >= least,
            f"median of {ROUNDS} rounds ({spread}); us CPU/pair: {', '.join(costs)}; load {os.getloadavg()[0]:.1f}",
            statistics.median(each.serial for each in rounds),
            ratio,
        ),
        row_at_most(f"durable next, p99{mode}", p99_ms, "ms", None if sync else 20, f"p50 {p50_ms:.1f} ms"),
    ]


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def _drive(url: str, first: int, count: int) -> dict[str, Any]:
    """Run ``count`` clients with a connection each; return their measurements after the warm-up."""
    clients = [await Client.connect(url, name=f"worker-{first + index}") for index in range(count)]
    print("ready", flush=True)
    sys.stdin.read()
    start, begun_s = time.perf_counter() + WARM_S, time.process_time()
    parts = await asyncio.gather(*(_work(c, f"worker-{first + i}", start) for i, c in enumerate(clients)))
    cpu_s = time.process_time() - begun_s
    for client in clients:
        await client.close()
    latencies = [latency for _, part in parts for latency in part]
    return {"pairs": sum(pairs for pairs, _ in parts), "cpu_s": cpu_s, "latencies_s": latencies}


async def _work(client: Client, pod: str, start: float) -> tuple[int, list[float]]:
    """Return the number of all pairs, and the latencies of those after the warm-up."""
    number, done = 0, None
    latencies: list[float] = []
    while (begin := time.perf_counter()) < start + ROUND_S:
        number += 1
        request = NextShard(job=JOB, request_id=f"{pod}.{number}", pod=pod, complete=done)
        reply = await client.call(request, timeout_s=10)
        if reply.shard is None or reply.stale:
            raise RuntimeError(f"{pod} got {reply}")
        done = ShardReport(id=reply.shard.id, attempt=reply.shard.attempt)
        if begin >= start:
            latencies.append(time.perf_counter() - begin)
    return number, latencies


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_drive(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))

"""Durable lease + complete pairs (``next``) of one dispatcher replica: 8 clients on one job.

One pair is one ``next-shard`` request that completes the last shard and leases another; it is on the stream before
its reply leaves. The baseline is what one client gets by publishing to the same stream serially, each time waiting for
the acknowledgement. Both are measured in turns, on the same server.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stretto_runtime import Client, EmbeddedServer, provision
from stretto_wire import events, requests
from stretto_wire.registry import decode, encode, subject_of
from stretto_wire.spec import JobSpec

CLIENTS, PROCESSES = 8, 2
ROUNDS, ROUND_S, WARM_S, SERIAL_S = 3, 4.0, 1.0, 1.5
JOB = "bench"


def run() -> list[dict[str, Any]]:
    """Rows for throughput and latency, default sync and ``sync_interval: always``."""
    return [*asyncio.run(_measure("")), *asyncio.run(_measure("always"))]


async def _measure(sync: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="stretto-bench-") as name:
        folder = Path(name)
        server = EmbeddedServer(folder / "nats", secured=False, sync_interval=sync)
        await server.start()
        client = await Client.connect(server.url)
        await provision(client.bus)
        environment = {**os.environ, "STRETTO_NATS_URL": server.url, "STRETTO_STATE_FOLDER": str(folder)}
        command = [sys.executable, "-m", "stretto_dispatcher"]
        dispatcher = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.DEVNULL)
        try:
            await _submit(client)
            rounds = [await _round(client, server.url, number) for number in range(ROUNDS)]
        finally:
            dispatcher.terminate()
            await asyncio.wait_for(dispatcher.wait(), 20)
            await client.close()
            server.stop()
    return _rows(rounds, sync)


async def _submit(client: Client) -> None:
    """A job that no round exhausts; returns when the dispatcher knows it."""
    dataset = {"samples": 10**12, "batch_size": 512, "batches_per_shard": 1}
    spec = JobSpec.parse({"name": JOB, "model": {"entry": "none:None"}, "dataset": dataset})
    await client.publish(events.JobSubmitted(job=JOB, spec=spec))
    for number in range(600):
        mark = requests.MarkLedger(job=JOB, request_id=f"ready.{number}")
        if (await client.call(mark, timeout_s=30)).answer == "ok":
            return
        await asyncio.sleep(0.05)
    raise RuntimeError("the dispatcher does not know the job after 30 s")


async def _round(client: Client, url: str, number: int) -> tuple[float, float, list[float]]:
    """Pairs a second, serial acknowledgements a second (before and after), latencies in seconds."""
    before = await _serial(client)
    share = CLIENTS // PROCESSES
    started = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.dispatcher", url, str(number * 100 + index * share), str(share)),
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        for index in range(PROCESSES)
    ]
    told = [json.loads((await process.communicate())[0]) for process in started]
    serial = (before + await _serial(client)) / 2
    latencies = [latency for part in told for latency in part["latencies_s"]]
    return sum(part["pairs_per_s"] for part in told), serial, latencies


async def _serial(client: Client) -> float:
    """Publish and wait for the acknowledgement, one at a time: acknowledgements a second."""
    data, subject, count = b"x" * 200, f"tel.v1.worker.worker-0.{JOB}-serial", 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < SERIAL_S:
        await client.bus.store(subject, data)
        count += 1
    return count / (time.perf_counter() - begin)


def _rows(rounds: list[tuple[float, float, list[float]]], sync: str) -> list[dict[str, Any]]:
    pairs, serial, _ = zip(*rounds, strict=True)
    ratio = statistics.median(each / base for each, base in zip(pairs, serial, strict=True))
    p99_ms = 1000 * statistics.median(_quantile(latencies, 0.99) for _, _, latencies in rounds)
    p50_ms = 1000 * statistics.median(_quantile(latencies, 0.5) for _, _, latencies in rounds)
    mode = f", sync {sync}" if sync else ""
    spread = " ".join(f"{each / base:.2f}" for each, base in zip(pairs, serial, strict=True))
    barred = not sync
    throughput = {
        "name": f"durable next, 8 clients, one job{mode}",
        "value": statistics.median(pairs),
        "unit": "pairs/s",
        "baseline": statistics.median(serial),
        "ratio": ratio,
        "bar": ">= 0.5 x serial publish-ack" if barred else "",
        "ok": ratio >= 0.5 if barred else None,
        "note": f"median of {ROUNDS} rounds ({spread}); load {os.getloadavg()[0]:.1f}",
    }
    latency = {
        "name": f"durable next, p99{mode}",
        "value": p99_ms,
        "unit": "ms",
        "baseline": None,
        "ratio": None,
        "bar": "<= 20 ms" if barred else "",
        "ok": p99_ms <= 20 if barred else None,
        "note": f"p50 {p50_ms:.1f} ms",
    }
    return [throughput, latency]


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def _drive(url: str, first: int, count: int) -> dict[str, Any]:
    """``count`` clients with a connection each; what they measured after the warm-up."""
    clients = [await Client.connect(url, name=f"worker-{first + index}") for index in range(count)]
    start = time.perf_counter() + WARM_S
    parts = await asyncio.gather(*(_work(c, f"worker-{first + i}", start) for i, c in enumerate(clients)))
    for client in clients:
        await client.close()
    latencies = [latency for part in parts for latency in part]
    return {"pairs_per_s": len(latencies) / ROUND_S, "latencies_s": latencies}


async def _work(client: Client, pod: str, start: float) -> list[float]:
    subject, number, done = "", 0, None
    latencies: list[float] = []
    while (begin := time.perf_counter()) < start + ROUND_S:
        number += 1
        request = requests.NextShard(job=JOB, request_id=f"{pod}.{number}", pod=pod, complete=done)
        subject = subject or subject_of(request)
        headers = {"request-id": request.request_id}
        message = await client.bus.connection.request(subject, encode(request), 10, headers=headers)
        reply = decode(requests.NextShardReply, message.data)
        if reply.shard is None or reply.stale:
            raise RuntimeError(f"{pod} got {reply}")
        done = requests.ShardReport(id=reply.shard.id, attempt=reply.shard.attempt)
        if begin >= start:
            latencies.append(time.perf_counter() - begin)
    return latencies


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_drive(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))))

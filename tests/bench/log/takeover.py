"""Seconds from the end of an owner to its successors' first output, by partition: after a kill and a clean stop.

Three replicas of the counting service with default settings share sixteen partitions under some hundreds of events a
second. One is ended; the stream shows its successors' fences, and the first output stored behind each.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from stretto_bus import Client
from stretto_bus.reading.ordered_consumer import read
from stretto_installation.server import EmbeddedServer
from stretto_messages.gateway import JobCancelled
from stretto_runtime.owner.tenure.terms import fence_subject
from stretto_wire.contract.registry import PARTITIONS, STREAM, partition_of

from tests.bench.log.bus import fresh_bus
from tests.bench.places import ROOT
from tests.bench.rows import Row, row_at_most

REPLICA = ROOT / "libs" / "runtime" / "tests" / "runtime_counting.py"
REPLICAS, ROUNDS = 3, 4
JOBS = [f"job-{number}" for number in range(64)]
EVENT_EVERY_S = 0.2
"""interval of each job's events; every partition has some, and its backlog is handled at once after a takeover"""
GIVE_UP_S = 60.0
BARS_S = {signal.SIGKILL: 3.0, signal.SIGTERM: 0.5}
WATCHED_S = {signal.SIGKILL: 6.0, signal.SIGTERM: 2.0}


class Replica(NamedTuple):
    process: subprocess.Popen[bytes]
    folder: Path

    def partitions(self) -> list[int]:
        """Return the partitions that the replica serves; none while it starts."""
        try:
            where = json.loads((self.folder / "run" / "dispatcher.json").read_text())
            with urllib.request.urlopen(f"http://{where['host']}:{where['port']}/healthz", timeout=5) as answer:
                return json.load(answer)["partitions"]
        except (OSError, ValueError):
            return []


def run() -> list[Row]:
    """Return one row for each way to end."""
    took_s = asyncio.run(_measure())
    return [_row(how, took_s[how]) for how in BARS_S]


def _row(how: signal.Signals, took_s: list[float]) -> Row:
    worst, bar = max(took_s), BARS_S[how]
    note = f"worst of {len(took_s)} partitions in {ROUNDS} rounds; median {statistics.median(took_s):.2f} s; "
    name = f"take-over after {how.name}, first output of the heir"
    return row_at_most(name, worst, "s", bar, f"{note}load {os.getloadavg()[0]:.1f}")


async def _measure() -> dict[signal.Signals, list[float]]:
    took_s: dict[signal.Signals, list[float]] = defaultdict(list)
    async with fresh_bus() as (client, server, folder):
        replicas = [_start(server, folder / f"replica{number}") for number in range(REPLICAS)]
        feeding = asyncio.create_task(_feed(client))
        try:
            for number, how in enumerate([*BARS_S] * ROUNDS):
                await _shared(replicas)
                victim = replicas.pop(0)
                took_s[how] += await _end(client, victim, how)
                replicas.append(_start(server, folder / f"heir{number}"))
        finally:
            feeding.cancel()
            for replica in replicas:
                replica.process.kill()
                replica.process.wait()
    return took_s


def _start(server: EmbeddedServer, folder: Path) -> Replica:
    environment = {**os.environ, "STRETTO_NATS_URL": server.url, "STRETTO_STATE_FOLDER": str(folder)}
    process = subprocess.Popen([sys.executable, str(REPLICA)], env=environment, stderr=subprocess.DEVNULL)
    return Replica(process, folder)


async def _feed(client: Client) -> None:
    while True:
        for job in JOBS:
            await client.publish(JobCancelled(job=job, reason="1"))
            await asyncio.sleep(EVENT_EVERY_S / len(JOBS))


async def _shared(replicas: list[Replica]) -> None:
    """Wait until every partition has its owner and every replica its share."""
    give_up_s = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up_s:
        shares = await asyncio.gather(*(asyncio.to_thread(replica.partitions) for replica in replicas))
        if all(shares) and sorted(number for share in shares for number in share) == list(range(PARTITIONS)):
            return await asyncio.sleep(1)
        await asyncio.sleep(0.2)
    raise RuntimeError(f"the partitions were not shared within {GIVE_UP_S:.0f} s: {shares}")


async def _end(client: Client, victim: Replica, how: signal.Signals) -> list[float]:
    """Return, per partition of the ended replica, the seconds until its successor's output."""
    served = await asyncio.to_thread(victim.partitions)
    before = await client.last_seq()
    ended_s = time.time()
    victim.process.send_signal(how)
    await asyncio.sleep(WATCHED_S[how])
    await asyncio.to_thread(victim.process.wait)
    fences = await read(client.bus, STREAM, [fence_subject("dispatcher", number) for number in served], before)
    outputs = await read(client.bus, STREAM, ["*.evt.v1.dispatcher.*.*"], before)
    taken = {int(fence.subject.rpartition(".")[2]): fence.seq for fence in reversed(fences)}
    first_s: dict[int, float] = {}
    for output in outputs:
        number = partition_of(output.subject.rpartition(".")[2])
        if output.seq > taken.get(number, output.seq):
            first_s.setdefault(number, output.time_s - ended_s)
    if missing := [number for number in served if number not in first_s]:
        raise RuntimeError(f"partitions {missing} had no heir {WATCHED_S[how]} s after {how.name}")
    return [first_s[number] for number in served]

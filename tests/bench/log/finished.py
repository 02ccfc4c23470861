"""Memory of finished jobs: 100,000 jobs through one service that is submitted and cancelled each.

The service runs in a process of its own with default settings. Its resident memory is taken after the first jobs, which
warm up its caches, and after all of them, once the bucket holds both snapshots of each. Then a successor takes over all
of them. The events are young, so nothing ages out meanwhile: the growth is what a finished job costs for thirty days.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from stretto_bus import Client
from stretto_installation.server import EmbeddedServer
from stretto_messages.base import Message
from stretto_messages.gateway import JobCancelled
from stretto_wire.contract.registry import STATE

from tests.bench.control.fleet import GIVE_UP_S, MIB, Replica, fleet, store
from tests.bench.log.bus import fresh_bus
from tests.bench.rows import Row, row, row_at_most

SERVICE = "dispatcher"
JOBS, WARM_UP = 100_000, 10_000
AT_ONCE = 5_000
SNAPSHOTS_OF_A_JOB = 2
GROWTH_MAX_BYTES = 1500
"""resident bytes of one finished job: 150 MB for 100,000"""


def run() -> list[Row]:
    """Return the rows of the memory before and after, of one job, and of a successor."""
    return asyncio.run(_measured())


async def _measured() -> list[Row]:
    async with fresh_bus() as (client, server, folder):
        async with _serving(server, folder) as replica:
            await _finish(client, replica, 0, WARM_UP)
            before_mib = replica.resident_mib()
            await _finish(client, replica, WARM_UP, JOBS)
            after_mib = replica.resident_mib()
        begin = time.perf_counter()
        async with _serving(server, folder) as successor:
            await _finish(client, successor, JOBS, JOBS + 1, handled=1)
            took_s, successor_mib = time.perf_counter() - begin, successor.resident_mib()
    growth_bytes = (after_mib - before_mib) * MIB / (JOBS - WARM_UP)
    return [
        row(f"{SERVICE}, resident after {WARM_UP:,} finished jobs", before_mib, "MiB", "", None, ""),
        row(f"{SERVICE}, resident after {JOBS:,} finished jobs", after_mib, "MiB", "", None, "", before_mib),
        row_at_most("growth per finished job", growth_bytes, "B", GROWTH_MAX_BYTES, "resident memory"),
        row(f"{SERVICE}, resident after a takeover of all of them", successor_mib, "MiB", "", None,
            f"it served a new job {took_s:.1f} s after its start"),
    ]  # fmt: skip


@asynccontextmanager
async def _serving(server: EmbeddedServer, folder: Path) -> AsyncIterator[Replica]:
    environment = {**os.environ, "STRETTO_NATS_URL": server.url, "STRETTO_STATE_FOLDER": str(folder)}
    process: Process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"stretto_{SERVICE}", env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield Replica(SERVICE, process.pid, folder)
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 60)


async def _finish(client: Client, replica: Replica, first: int, end: int, handled: int = 0) -> None:
    """Submit and cancel the jobs from ``first`` to ``end``; return once both snapshots of each are stored."""
    jobs = fleet(end, 1, 1)[first:]
    for begin in range(0, len(jobs), AT_ONCE):
        part = jobs[begin : begin + AT_ONCE]
        messages: list[Message] = [job.submitted(1000) for job in part]
        messages += [JobCancelled(job=job.name, by="bench", reason="") for job in part]
        await store(client, messages)
        await replica.until(2 * (handled or first + begin + len(part)))
    give_up_s = time.monotonic() + GIVE_UP_S
    while (await _stored(client)) < SNAPSHOTS_OF_A_JOB * end:
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"the bucket holds {await _stored(client)} messages, not two of each of {end} jobs")
        await asyncio.sleep(0.2)


async def _stored(client: Client) -> int:
    return int((await client.bus.ask(f"STREAM.INFO.{STATE}"))["state"]["messages"])

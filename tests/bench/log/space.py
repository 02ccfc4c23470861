"""Room that an ended job takes: bytes of the log and of the bucket, and memory of the services, of 1,000 jobs.

Jobs are submitted, decided and cancelled; no actuator runs, so none has a pod. A short job that trains stores more:
pods, shards, checkpoints. Everything of them is young, so nothing has aged out.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import psutil
from stretto_bus import Client
from stretto_installation.settings import FACTS_BYTES
from stretto_messages.base import Message
from stretto_messages.gateway import JobCancelled
from stretto_wire.contract.registry import SERVICES, STATE, STREAM

from tests.bench.control.fleet import fleet, store
from tests.bench.log.bus import fresh_bus
from tests.bench.rows import Row, row_at_most

JOBS, WARM_UP, AT_ONCE = 1_000, 200, 100
RUNNING = tuple(service for service in SERVICES if service != "actuator")
MONTH_JOBS = 100_000
"""Jobs of a month that the log has room for."""
QUIET_S, LOOK_S = 5.0, 0.5


def run() -> list[Row]:
    """Return the rows of bytes and memory of one job."""
    return asyncio.run(_measured())


async def _measured() -> list[Row]:
    async with fresh_bus() as (client, server, folder), AsyncExitStack() as ending:
        environment = {**os.environ, "STRETTO_NATS_URL": server.url, "STRETTO_STATE_FOLDER": str(folder)}
        pids = {service: await ending.enter_async_context(_process(service, environment)) for service in RUNNING}
        await _end(client, 0, WARM_UP)
        before, resident = await _bytes(client), _resident_bytes(pids)
        await _end(client, WARM_UP, WARM_UP + JOBS)
        after = await _bytes(client)
        grown = {service: (now - resident[service]) / JOBS for service, now in _resident_bytes(pids).items()}
    log, state = ((after[stream] - before[stream]) / JOBS for stream in (STREAM, STATE))
    bound = FACTS_BYTES / MONTH_JOBS
    return [
        row_at_most("log, bytes of an ended job without pods", log, "B", bound, f"of {FACTS_BYTES / 2**30:.0f} GiB"),
        row_at_most("bucket, bytes of an ended job without pods", state, "B", None, ""),
        row_at_most("all services, resident bytes of an ended job", sum(grown.values()), "B", None, _largest(grown)),
    ]


@asynccontextmanager
async def _process(service: str, environment: dict[str, str]) -> AsyncIterator[int]:
    command = (sys.executable, "-m", f"stretto_{service}")
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield process.pid
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 60)


async def _end(client: Client, first: int, end: int) -> None:
    """Submit and cancel the jobs from ``first`` to ``end``; return once nothing is stored any more but leases."""
    jobs = fleet(end, 1, 1)[first:]
    for begin in range(0, len(jobs), AT_ONCE):
        part = jobs[begin : begin + AT_ONCE]
        await store(client, [job.submitted(1000) for job in part])
        await asyncio.sleep(1)
        ends: list[Message] = [JobCancelled(job=job.name, by="bench", reason="") for job in part]
        await store(client, ends)
    seen, quiet_s = -1, 0.0
    while quiet_s < QUIET_S:
        await asyncio.sleep(LOOK_S)
        now = (await _bytes(client))[STREAM]
        seen, quiet_s = now, quiet_s + LOOK_S if now == seen else 0.0


async def _bytes(client: Client) -> dict[str, int]:
    return {
        stream: int((await client.bus.ask(f"STREAM.INFO.{stream}"))["state"]["bytes"]) for stream in (STREAM, STATE)
    }


def _resident_bytes(pids: dict[str, int]) -> dict[str, int]:
    return {service: psutil.Process(pid).memory_info().rss for service, pid in pids.items()}


def _largest(grown: dict[str, float]) -> str:
    first = sorted(grown.items(), key=lambda each: -each[1])[:3]
    return ", ".join(f"{service} {size_bytes:,.0f}" for service, size_bytes in first)

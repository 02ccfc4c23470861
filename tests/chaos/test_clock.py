"""Wall clocks are stepped by an hour, forwards and backwards: of the server that leads the streams, of an owner."""

from __future__ import annotations

import asyncio
import sys

import clock
import pytest
from cluster import Cluster
from runtime_books import feed, joined, settle
from runtime_live import Replicas
from stretto_bus import Client

HOUR_S = 3600
READ = "import time\nwhile input() is not None: print(time.time(), time.monotonic())"
"""Tells both clocks for every line that it gets."""


async def test_only_the_wall_clock_of_one_process_is_stepped() -> None:
    if reason := clock.missing():
        pytest.skip(reason)
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, "-uc", READ, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    told: list[tuple[float, float]] = []
    for seconds in (0, HOUR_S, -HOUR_S):
        if seconds:
            clock.step(process.pid, seconds)
        process.stdin.write(b"\n")
        wall, monotonic = (await process.stdout.readline()).split()
        told.append((float(wall), float(monotonic)))
    process.kill()
    await process.wait()
    (wall, monotonic), *stepped = told
    for seconds, (later, since) in zip((HOUR_S, -HOUR_S), stepped, strict=True):
        assert since >= monotonic
        assert later - wall - (since - monotonic) == pytest.approx(seconds, abs=1)


@pytest.mark.night
async def test_clocks_that_are_stepped_lose_and_double_nothing(
    cluster: Cluster, client: Client, replicas: Replicas, rounds: int
) -> None:
    if reason := clock.missing():
        pytest.skip(reason)
    owners = [replicas.start(lease_s="1") for _ in range(2)]
    await joined(client, 2)
    feeding = asyncio.create_task(feed(client, 8 * rounds, seed=7))
    for _ in range(rounds):
        leader = await cluster.leader(client)
        assert leader.process is not None
        for process, seconds in [(leader.process, HOUR_S), (owners[0], HOUR_S), (leader.process, -HOUR_S)]:
            await asyncio.sleep(1.5)
            clock.step(process.pid, seconds)
        clock.step(owners[1].pid, -HOUR_S)
    accepted = await feeding
    assert len(accepted) > 50
    (await settle(client, 10)).check(accepted)
    assert all(owner.poll() is None for owner in owners)

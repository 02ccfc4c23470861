"""Replicas and the server are killed, frozen and stopped; every effect is counted at the stream."""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict

from runtime_books import JOBS, books, dead_owner, feed, joined, settle
from runtime_counting import Counting
from runtime_live import SHORT_LEASE_S, Replicas, Running, connect, eventually, reconfigured
from stretto_bus import Client
from stretto_bus.reading.ordered_consumer import read
from stretto_installation.server import EmbeddedServer
from stretto_messages.dispatcher import NextShard
from stretto_wire.contract.registry import DEAD_LETTERS, STATE, STATE_PREFIX, STREAM

WINDOW_S = 0.1
"""The shortest duplicate window that the server takes."""


async def shrink_duplicate_window(client: Client, seconds: float = WINDOW_S) -> None:
    """So that neither the scan nor the fence can hide behind the server's own memory of ids."""
    for stream in (STREAM, DEAD_LETTERS):
        await reconfigured(client, stream, duplicate_window=int(seconds * 1e9))


async def test_kills_zombies_and_leaves_lose_nothing_double_nothing_reorder_nothing(
    server: EmbeddedServer, client: Client, replicas: Replicas
) -> None:
    await shrink_duplicate_window(client, 0.5)
    first, second, third = (replicas.start(lease_s="1") for _ in range(3))
    await joined(client, 3)
    enough = asyncio.Event()
    feeding = asyncio.create_task(feed(client, 11, seed=1, enough=enough))
    await asyncio.sleep(1.0)
    first.kill()
    replicas.start(lease_s="1")
    await joined(client, 3)
    await asyncio.sleep(1.0)
    second.send_signal(signal.SIGSTOP)  # a zombie: it believes itself the owner when it wakes up
    await asyncio.sleep(3.0)
    second.send_signal(signal.SIGCONT)
    await asyncio.sleep(1.0)
    third.send_signal(signal.SIGTERM)
    await asyncio.to_thread(third.wait, 15)
    assert third.returncode == 0
    await asyncio.sleep(1.0)
    server.kill()
    await server.start()
    await asyncio.sleep(1.0)
    enough.set()
    fed = await feeding
    (await settle(client, len(JOBS))).check(fed)


async def test_a_death_in_the_middle_of_a_replay_doubles_nothing(
    client: Client, replicas: Replicas, running: Running
) -> None:
    """The second owner saves its progress between outputs that the first has published; the third must know them."""
    await shrink_duplicate_window(client)
    fed, _ = await dead_owner(client, replicas, 1.5, seed=4)
    slow = replicas.start(lease_s=str(SHORT_LEASE_S), snapshot_s="0.01", snapshot_inputs="1", delay_s="0.004")
    await eventually(lambda: saved(client))
    slow.kill()
    async with running(Counting, lease_s=SHORT_LEASE_S):
        fed |= await feed(client, 1, seed=5)
        (await settle(client)).check(fed)


async def saved(client: Client) -> bool:
    """Return True if any snapshot was written."""
    subject = f"{STATE_PREFIX}cursor.dispatcher.>"
    return bool(await read(client.bus, STATE, [subject], deliver_policy="last_per_subject"))


async def test_requests_are_answered_exactly_once_through_kills(
    server: EmbeddedServer, client: Client, replicas: Replicas
) -> None:
    first = replicas.start(lease_s="1")
    second = replicas.start(lease_s="1")
    await joined(client, 2)
    enough, answers = asyncio.Event(), defaultdict[str, list[int]](list)

    async def caller(number: int) -> None:
        job, serial = f"job-{number % 4}", 0
        caller_client = await connect(server)
        while not enough.is_set():
            serial += 1
            request = NextShard(job=job, request_id=f"worker-{number}.{serial}", pod=f"worker-{number}")
            answers[job].append(int((await caller_client.call(request)).wait_s))
        await caller_client.close()

    async def more() -> None:
        """Until each job has had some more answers."""
        before = {job: len(answers[job]) for job in ("job-0", "job-1", "job-2", "job-3")}
        await eventually(lambda: all(len(answers[job]) > count + 100 for job, count in before.items()))

    calling = [asyncio.create_task(caller(number)) for number in range(8)]
    await more()
    first.kill()
    await more()
    second.send_signal(signal.SIGSTOP)
    replicas.start(lease_s="1")
    await more()
    second.send_signal(signal.SIGCONT)
    await more()
    enough.set()
    await asyncio.gather(*calling)
    for job, numbers in answers.items():
        # the machine counts requests: each number answered once is each request handled once
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), job
    found = await books(client)
    assert not found.doubled
    for job, numbers in answers.items():
        assert [count for count, _ in found.counted[job]] == list(range(1, len(numbers) + 1))

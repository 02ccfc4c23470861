"""Replicas and the server are killed, frozen and stopped; every effect is counted at the stream.

Each input adds a number to its job; each output carries the job's running count and sum. A lost, doubled or reordered
input or output breaks the sequence of outputs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
from collections import defaultdict

from runtime_counting import add
from runtime_live import Replicas, connect
from stretto_runtime import BusFault, Client, EmbeddedServer
from stretto_runtime.bus import STATE, STATE_PREFIX
from stretto_runtime.log import read
from stretto_wire import requests

JOBS = [f"job-{number}" for number in range(40)]


async def books(client: Client) -> tuple[dict[str, list[int]], dict[str, list[tuple[int, int]]], int]:
    """Of the stream: the numbers added per job, the (count, sum) published per job, and how many ids came twice."""
    added: dict[str, list[int]] = defaultdict(list)
    counted: dict[str, list[tuple[int, int]]] = defaultdict(list)
    ids: set[str] = set()
    total = 0
    async for event in client.events(follow=False):
        total += 1
        ids.add(event.headers["ce-id"])
        if event.subject.startswith("evt.v1.gateway"):
            added[event.message.job].append(int(event.message.reason))
        else:
            counted[event.message.job].append((event.message.samples_done, event.message.samples_total))
    return added, counted, total - len(ids)


def expected(added: list[int]) -> list[tuple[int, int]]:
    return list(zip(range(1, len(added) + 1), itertools.accumulate(added), strict=True))


async def feed(client: Client, seconds: float, seed: int) -> int:
    """Publish additions at some hundreds a second; returns how many."""
    randomness = random.Random(seed)
    end = asyncio.get_running_loop().time() + seconds
    fed = 0
    while asyncio.get_running_loop().time() < end:
        await asyncio.gather(
            *(client.publish(add(randomness.choice(JOBS), randomness.randrange(600))) for _ in range(5))
        )
        fed += 5
        await asyncio.sleep(0.01)
    return fed


async def settle(client: Client, jobs: int, timeout_s: float = 40) -> None:
    """Until as many outputs as inputs are stored."""
    async with asyncio.timeout(timeout_s):
        while True:
            with contextlib.suppress(BusFault):  # the server may just be coming back
                added, counted, _ = await books(client)
                if sum(map(len, added.values())) <= sum(map(len, counted.values())) and len(counted) >= jobs:
                    return
            await asyncio.sleep(0.3)


async def joined(client: Client, members: int) -> None:
    """Until so many replicas have joined: on a busy machine a start takes seconds."""
    async with asyncio.timeout(30):
        while True:
            subject = f"{STATE_PREFIX}member.dispatcher.*"
            present = await read(client.bus, STATE, [subject], deliver_policy="last_per_subject")
            if sum(stored.data == b"1" for stored in present) >= members:
                return
            await asyncio.sleep(0.1)


async def shrink_duplicate_window(client: Client, seconds: float) -> None:
    """So that neither the scan nor the fence can hide behind the server's own memory of ids."""
    config = (await client.bus.ask("STREAM.INFO.STRETTO"))["config"]
    await client.bus.ask("STREAM.UPDATE.STRETTO", {**config, "duplicate_window": int(seconds * 1e9)})


async def test_kills_zombies_and_leaves_lose_nothing_double_nothing_reorder_nothing(
    server: EmbeddedServer, client: Client, replicas: Replicas
) -> None:
    await shrink_duplicate_window(client, 0.5)
    first, second, third = (replicas.start(lease_s="1") for _ in range(3))
    await joined(client, 3)
    feeding = asyncio.create_task(feed(client, 11, seed=1))
    await asyncio.sleep(1.5)
    first.kill()
    replicas.start(lease_s="1")
    await asyncio.sleep(2.0)
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
    fed = await feeding
    await settle(client, len(JOBS))
    added, counted, doubled = await books(client)
    assert doubled == 0
    assert sum(map(len, added.values())) == fed
    for job, numbers in added.items():
        assert counted[job] == expected(numbers), job


async def test_an_outage_longer_than_the_duplicate_window_doubles_nothing(
    server: EmbeddedServer, client: Client, replicas: Replicas
) -> None:
    """What Nats-Msg-Id alone gets wrong: the ids are forgotten, only the scan of own outputs knows them."""
    await shrink_duplicate_window(client, 0.1)
    replica = replicas.start(lease_s="1", snapshot_s="60", snapshot_inputs="1000000")
    await joined(client, 1)
    fed = await feed(client, 2, seed=2)
    await settle(client, 1)
    replica.kill()  # not one snapshot was written: everything is replayed, nothing may be published again
    await asyncio.sleep(1.5)
    replicas.start(lease_s="1")
    fed += await feed(client, 2, seed=3)
    await settle(client, 1)
    added, counted, doubled = await books(client)
    assert doubled == 0
    assert sum(map(len, added.values())) == fed
    for job, numbers in added.items():
        assert counted[job] == expected(numbers), job


async def test_a_death_in_the_middle_of_a_replay_doubles_nothing(
    server: EmbeddedServer, client: Client, replicas: Replicas
) -> None:
    """The second owner saves its progress between outputs that the first has published; the third must know them."""
    await shrink_duplicate_window(client, 0.1)
    first = replicas.start(lease_s="1", snapshot_s="60", snapshot_inputs="1000000")
    await joined(client, 1)
    fed = await feed(client, 1.5, seed=4)
    await settle(client, 1)
    first.kill()
    slow = replicas.start(lease_s="1", snapshot_s="0.01", snapshot_inputs="1", delay_s="0.004")
    async with asyncio.timeout(30):
        while not await saved(client):
            await asyncio.sleep(0.01)
    slow.kill()
    replicas.start(lease_s="1")
    fed += await feed(client, 1, seed=5)
    await settle(client, 1)
    added, counted, doubled = await books(client)
    assert doubled == 0
    assert sum(map(len, added.values())) == fed
    for job, numbers in added.items():
        assert counted[job] == expected(numbers), job


async def saved(client: Client) -> bool:
    """Whether any snapshot was written."""
    subject = f"{STATE_PREFIX}cursor.dispatcher.*"
    return bool(await read(client.bus, STATE, [subject], deliver_policy="last_per_subject"))


async def test_requests_are_answered_exactly_once_through_kills(
    server: EmbeddedServer, client: Client, replicas: Replicas
) -> None:
    first = replicas.start(lease_s="1")
    second = replicas.start(lease_s="1")
    await joined(client, 2)
    end = asyncio.get_running_loop().time() + 8
    answers: dict[str, list[int]] = defaultdict(list)

    async def caller(number: int) -> None:
        job = f"job-{number % 4}"
        caller_client = await connect(server, "pod")
        serial = 0
        while asyncio.get_running_loop().time() < end:
            serial += 1
            request = requests.NextShard(job=job, request_id=f"worker-{number}.{serial}", pod=f"worker-{number}")
            reply = await caller_client.call(request)
            answers[job].append(int(reply.wait_s))
        await caller_client.close()

    calling = [asyncio.create_task(caller(number)) for number in range(8)]
    await asyncio.sleep(2)
    first.kill()
    await asyncio.sleep(2)
    second.send_signal(signal.SIGSTOP)
    replicas.start(lease_s="1")
    await asyncio.sleep(2)
    second.send_signal(signal.SIGCONT)
    await asyncio.gather(*calling)
    for job, numbers in answers.items():
        # the machine counts requests: each number answered once is each request handled once
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), job
    _, counted, doubled = await books(client)
    assert doubled == 0
    for job, numbers in answers.items():
        assert [count for count, _ in counted[job]] == list(range(1, len(numbers) + 1))

"""One server of three has flipped bits in its files, or lacks their ends, while it runs or when it wakes: nothing
accepted is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster import Cluster, Node
from runtime_books import books, feed, joined, settle
from runtime_live import Replicas
from stretto_bus import BusFault, Client
from stretto_bus.reading.servers import lags_in
from stretto_wire.contract.registry import STATE, STREAM


def flip(file: Path, dice: random.Random) -> None:
    """Flip one bit of a file that is not empty, in place: a server may have the file open."""
    with file.open("r+b") as data:
        place = dice.randrange(file.stat().st_size)
        data.seek(place)
        (byte,) = data.read(1)
        data.seek(place)
        data.write(bytes([byte ^ 1 << dice.randrange(8)]))


def truncate(file: Path, dice: random.Random) -> None:
    """Cut the end of a file that is not empty off."""
    os.truncate(file, dice.randrange(file.stat().st_size))


def files_of(node: Node, pattern: str = "*") -> list[Path]:
    """Return the files of a server's store that are not empty."""
    found = list[Path]()
    for path in sorted(node.store.rglob(pattern)):
        with contextlib.suppress(FileNotFoundError):  # a server that runs removes files
            if path.is_file() and path.stat().st_size:
                found.append(path)
    return found


async def serves(node: Node) -> bool:
    """Wait until a server that was started takes connections; False if it has ended instead."""
    async with asyncio.timeout(60):
        while node.process is not None and node.process.poll() is None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(node.host, node.port)
                writer.close()
                return True
            await asyncio.sleep(0.1)
    return False


@pytest.mark.parametrize("damaged", ["*", pytest.param("*.blk", marks=pytest.mark.night)])
@pytest.mark.parametrize("cluster", ["always"], indirect=True, ids=["sync-always"])
async def test_a_server_wakes_with_a_flipped_bit_in_each_of_its_files(
    cluster: Cluster, client: Client, replicas: Replicas, damaged: str
) -> None:
    """The leader is killed under load and its files are damaged, all or the messages only; each server is asked then.

    A server that finds its own records damaged does not start: it gets an empty store, as the runbook says.
    """
    dice = random.Random(damaged)
    for _ in range(2):
        replicas.start(lease_s="1")
    await joined(client, 2)
    feeding = asyncio.create_task(feed(client, 6, seed=1))
    async with asyncio.timeout(60):
        while len((await books(client)).inputs) < 50:
            await asyncio.sleep(0.1)
    node = await cluster.leader(client)
    node.kill()
    files = files_of(node, damaged)
    assert len(files) > (10 if damaged == "*" else 2)
    for file in files:
        flip(file, dice)
    await wakes(cluster, client, node)
    await nothing_is_lost(cluster, client, replicas, await feeding)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("damage", [flip, truncate])
@pytest.mark.parametrize("cluster", ["always"], indirect=True, ids=["sync-always"])
@pytest.mark.night
async def test_files_of_a_server_are_damaged_while_it_runs(
    cluster: Cluster, client: Client, replicas: Replicas, damage: Callable[[Path, random.Random], None], seed: int
) -> None:
    """Half of the files of one server, any of the three, under load; it serves on, and is started again later."""
    dice = random.Random(seed)
    for _ in range(2):
        replicas.start(lease_s="1")
    await joined(client, 2)
    feeding = asyncio.create_task(feed(client, 8, seed=seed))
    async with asyncio.timeout(60):
        while len((await books(client)).inputs) < 50:
            await asyncio.sleep(0.1)
    node = dice.choice(cluster.nodes)
    for file in files_of(node):
        if dice.random() < 0.5:
            with contextlib.suppress(OSError, ValueError):  # the server has removed or emptied it meanwhile
                damage(file, dice)
    await asyncio.sleep(3)
    node.kill()
    await wakes(cluster, client, node)
    await nothing_is_lost(cluster, client, replicas, await feeding)


async def wakes(cluster: Cluster, client: Client, node: Node) -> None:
    """Start a server. Where its own records are damaged so that it does not start, or does not become whole, its lag is
    told, and it gets an empty store, as the runbook says."""
    node.start()
    if await serves(node):
        with contextlib.suppress(TimeoutError):
            await cluster.whole(client)
            return
    async with asyncio.timeout(60):
        while not await behind(client, node):
            await asyncio.sleep(0.5)
    node.kill()
    shutil.rmtree(node.store)
    node.start()


async def behind(client: Client, node: Node) -> bool:
    """Return whether the leader of log or bucket tells that a server lacks entries; False while nobody leads one."""
    try:
        infos = [await client.bus.ask(f"STREAM.INFO.{stream}") for stream in (STREAM, STATE)]
    except BusFault:
        return False
    return any(lag.server == node.name and lag.entries > 0 for info in infos for lag in lags_in(info))


async def nothing_is_lost(cluster: Cluster, client: Client, replicas: Replicas, accepted: set[str]) -> None:
    """Compare the books of every server with what was accepted."""
    assert len(accepted) > 50
    found = await settle(client, 10, replicas=replicas)
    found.check(accepted)
    await cluster.whole(client)
    for each in cluster.nodes:
        asked = await Client.connect(each.url, cluster.login())
        try:
            assert await books(asked) == found, each.name
        finally:
            await asked.close()

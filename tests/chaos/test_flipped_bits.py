"""One server of three wakes with flipped bits in its files: nothing accepted is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from pathlib import Path

import pytest
from cluster import Cluster, Node
from runtime_books import books, feed, joined, settle
from runtime_live import Replicas
from stretto_bus import Client


def flip(file: Path, dice: random.Random) -> None:
    """Flip one bit of a file that is not empty."""
    data = bytearray(file.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    file.write_bytes(data)


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
    files = sorted(path for path in node.store.rglob(damaged) if path.is_file() and path.stat().st_size)
    assert len(files) > (10 if damaged == "*" else 2)
    for file in files:
        flip(file, dice)
    node.start()
    if not await serves(node):
        shutil.rmtree(node.store)
        node.start()
    accepted = await feeding
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

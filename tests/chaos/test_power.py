"""Power loss of the server's machine: writes that its kernel had not put on the disk are lost.

The server stores on a file system of its own in a file (a loop device). Once it is killed, that file is copied as it
is: what the file system still had in memory is not in it. The copy is what the machine finds when it comes back.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cluster import Cluster, provisioned
from runtime_books import books, feed, joined, settle
from runtime_counting import Counting
from runtime_live import Replicas, connect, running, until_ready
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_installation.settings import StreamsSettings

DISK_BYTES = 64 << 20


class Disk:
    """Mounted at ``folder``. The kernel writes what nobody syncs after a minute, not after seconds."""

    def __init__(self, place: Path) -> None:
        self.folder, self._images = place / "disk", [place / "disk.0"]
        self.folder.mkdir(parents=True)
        with self._images[0].open("wb") as file:
            file.truncate(DISK_BYTES)
        run("mkfs.ext4", "-q", "-F", str(self._images[0]))
        self._mount()

    def lose_power(self) -> None:
        """A process that writes here has to be dead already."""
        before, after = self._images[-1], self.folder.with_name(f"disk.{len(self._images)}")
        run("cp", "--sparse=always", str(before), str(after))
        self._images.append(after)
        self.end()
        self._mount()

    def _mount(self) -> None:
        run("mount", "-o", "loop,commit=60", str(self._images[-1]), str(self.folder))

    def end(self) -> None:
        run("umount", "-l", str(self.folder))


def run(*command: str) -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # where a user's path need not lead
    subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path})


@contextmanager
def mounted(place: Path) -> Iterator[Disk]:
    """Make a disk, and unmount it in the end."""
    if os.geteuid() != 0:
        pytest.skip("a disk of its own (a loop device) needs root")
    try:
        made = Disk(place)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"a loop device cannot be mounted here: {getattr(error, 'stderr', '') or error}")
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with mounted(tmp_path) as made:
        yield made


@pytest.fixture
def powered(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, list[Disk]]]:
    """Three servers, each with a disk of its own; the parameter is their ``sync_interval``."""
    cluster = Cluster(tmp_path, request.param)
    with ExitStack() as mounts:
        disks = [mounts.enter_context(mounted(tmp_path / node.name)) for node in cluster.nodes]
        for node, made in zip(cluster.nodes, disks, strict=True):
            (made.folder / "store").mkdir()
            node.store.symlink_to(made.folder / "store")
        mounts.callback(cluster.end)
        cluster.start()
        yield cluster, disks


async def test_what_was_accepted_outlives_a_loss_of_power_where_every_write_is_synced(
    disk: Disk, tmp_path: Path, rounds: int
) -> None:
    server = EmbeddedServer(disk.folder / "nats", sync_interval="always")
    await server.start()
    client = await connect(server)
    try:
        await provision(client.bus, StreamsSettings(sync_interval="always"))
        async with running(Counting, server, tmp_path) as runner:
            accepted: set[str] = set()
            for number in range(rounds):
                accepted |= (before := await feed(client, 1, seed=10 + number))
                assert before
                server.kill()
                disk.lose_power()
                await server.start()
                await until_ready(runner)
                accepted |= await feed(client, 0.5, seed=1000 + number)
                (await settle(client)).check(accepted)
    finally:
        await client.close()
        server.kill()


async def test_without_that_what_was_accepted_may_be_lost(disk: Disk) -> None:
    """And so a loss of power is one here."""
    server = EmbeddedServer(disk.folder / "nats")
    await server.start()
    client = await connect(server)
    try:
        await provision(client.bus)
        accepted = await feed(client, 0.5, seed=3)
        await client.close()
        server.kill()
        disk.lose_power()
        await server.start()
        client = await connect(server)
        await provision(client.bus)
        assert accepted - (await books(client)).inputs
    finally:
        await client.close()
        server.kill()


@pytest.mark.parametrize("powered", ["always"], indirect=True, ids=["sync-always"])
@pytest.mark.night
async def test_what_was_accepted_outlives_a_loss_of_power_of_all_three_servers_at_once(
    powered: tuple[Cluster, list[Disk]], tmp_path: Path, rounds: int
) -> None:
    """Under load, so that logs of replicas are compacted meanwhile; replicas of the service live elsewhere."""
    cluster, disks = powered
    client = await provisioned(cluster)
    replicas = Replicas(cluster, tmp_path)
    try:
        for _ in range(2):
            replicas.start(lease_s="1")
        await joined(client, 2)
        accepted: set[str] = set()
        for number in range(rounds + 1):
            feeding = asyncio.create_task(feed(client, 5, seed=20 + number))
            await asyncio.sleep(3)
            cluster.end()
            for disk in disks:
                disk.lose_power()
            cluster.start()
            await cluster.whole(client)
            accepted |= await feeding
            assert len(accepted) > 50
            (await settle(client, 10, replicas=replicas)).check(accepted)
    finally:
        replicas.end()
        await client.close()


@pytest.mark.parametrize("powered", [""], indirect=True, ids=["own-interval"])
@pytest.mark.night
async def test_three_servers_that_do_not_sync_lose_what_was_accepted_when_all_lose_power(
    powered: tuple[Cluster, list[Disk]],
) -> None:
    """And so the loss of power of three at once is one here."""
    cluster, disks = powered
    client = await provisioned(cluster)
    try:
        accepted = await feed(client, 0.5, seed=3)
        cluster.end()
        for disk in disks:
            disk.lose_power()
        cluster.start()
        await client.close()
        client = await provisioned(cluster)
        assert accepted - (await books(client)).inputs
    finally:
        await client.close()

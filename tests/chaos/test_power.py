"""Power loss of the server's machine: writes that its kernel had not put on the disk are lost.

The server stores on a file system of its own in a file (a loop device). Once it is killed, that file is copied as it
is: what the file system still had in memory is not in it. The copy is what the machine finds when it comes back.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_books import books, feed, settle
from runtime_counting import Counting
from runtime_live import connect, running, until_ready
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_installation.settings import StreamsSettings

DISK_BYTES = 64 << 20


class Disk:
    """Mounted at ``folder``. The kernel writes what nobody syncs after a minute, not after seconds."""

    def __init__(self, place: Path) -> None:
        self.folder, self._images = place / "disk", [place / "disk.0"]
        self.folder.mkdir()
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid() != 0:
        pytest.skip("a disk of its own (a loop device) needs root")
    try:
        made = Disk(tmp_path)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        pytest.skip(f"a loop device cannot be mounted here: {getattr(error, 'stderr', '') or error}")
    yield made
    made.end()


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

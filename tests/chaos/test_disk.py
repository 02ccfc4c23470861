"""A full disk of the server: services report it, accept nothing that is not stored, and continue once there is room."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cluster import Cluster
from runtime_books import feed, joined, settle
from runtime_counting import Counting
from runtime_live import Replicas, connect, eventually, running, until_ready
from stretto_bus import BusFault, CallRefused, CallTimeout, Client
from stretto_bus.tasks import end
from stretto_installation.access.keys import SUPERVISOR
from stretto_installation.one_machine import bus_health
from stretto_installation.one_machine.bus_health import BusHealth, noted
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_messages.dispatcher import NextShard


@pytest.fixture
def disks() -> Iterator[Callable[[Path, int], None]]:
    """Return a function that mounts a disk of a size in MiB at a folder."""
    if os.geteuid() != 0:
        pytest.skip("a disk of its own (tmpfs) needs root")
    mounted: list[Path] = []

    def mount(folder: Path, mebibytes: int) -> None:
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
        mounted.append(folder)

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path, disks: Callable[[Path, int], None]) -> Path:
    disks(tmp_path / "disk", 24)
    return tmp_path / "disk"


@pytest.fixture
async def cluster(tmp_path: Path, disks: Callable[[Path, int], None]) -> AsyncIterator[Cluster]:
    started = Cluster(tmp_path)
    for node in started.nodes:
        disks(node.store, 48)
    started.start()
    yield started
    started.end()


def fill(folder: Path) -> Path:
    """Take what room there is. Call it again while it shall stay full: the server gives room back on its own."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


async def ask(client: Client, enough: asyncio.Event) -> None:
    """Have the service write, also while the full stream takes no input that it could answer."""
    for serial in itertools.count():
        if enough.is_set():
            return
        request = NextShard(job="asked", request_id=f"asked.{serial}", pod="worker-1")
        with contextlib.suppress(CallTimeout, CallRefused, BusFault):
            await client.call(request, timeout_s=1)
        await asyncio.sleep(0.1)


@asynccontextmanager
async def healed(server: EmbeddedServer, folder: Path) -> AsyncIterator[None]:
    """Let the supervisor's part look after a server."""
    assert server.keys is not None
    loop, restarting = asyncio.get_running_loop(), list[asyncio.Future[None]]()

    def restart() -> None:
        """Restart it in a thread that goes on: a server ends with the thread that started it."""
        restarting.append(loop.run_in_executor(starter, again))

    def again() -> None:
        server.stop()
        server.start_process()

    with ThreadPoolExecutor(1) as starter:
        health = BusHealth(folder, server.folder, lambda: server.pid, restart)
        looking = asyncio.create_task(health.run(server.url, server.keys.login(SUPERVISOR), print))
        yield
        await asyncio.gather(*restarting)
        await end(looking)
        await asyncio.to_thread(server.stop)


async def test_a_full_disk_loses_nothing_that_was_accepted(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is restarted by itself, at first with what was its reserve, and the service goes on by itself."""
    for name, mebibytes in (("ROOM_BYTES", 2), ("PLENTY_BYTES", 8)):  # of a disk of 24
        monkeypatch.setattr(bus_health, name, mebibytes << 20)
    monkeypatch.setattr(bus_health, "RESERVE_FILES", 32)
    (small_disk / "run").mkdir()
    server = EmbeddedServer(small_disk / "nats")
    await server.start()
    client = await connect(server)
    try:
        await provision(client.bus)
        async with healed(server, small_disk), running(Counting, server, tmp_path) as runner:
            await eventually((small_disk / "reserve").exists)
            accepted = await feed(client, 1, seed=4)
            filler = fill(small_disk)
            serves_again = asyncio.Event()
            feeding = asyncio.create_task(feed(client, 180, seed=5, enough=serves_again))
            asking = asyncio.create_task(ask(client, serves_again))
            await eventually(lambda: fill(small_disk) and not runner.report()["ready"])
            await eventually(lambda: "is the server's disk full" in str(runner.report()["faults"]))
            await eventually(lambda: fill(small_disk) and "disk is full" in noted(small_disk).why)
            await until_ready(runner)
            await eventually(lambda: "nearly full" in noted(small_disk).why)
            filler.unlink()
            await eventually(lambda: not noted(small_disk).why and (small_disk / "reserve").exists())
            serves_again.set()
            accepted |= await feeding
            await asking
            accepted |= await feed(client, 0.5, seed=6)
            (await settle(client)).check(accepted)
    finally:
        await client.close()
        server.kill()


@pytest.mark.night
async def test_a_full_disk_of_one_server_of_three_stops_nothing(
    cluster: Cluster, client: Client, replicas: Replicas, rounds: int
) -> None:
    """The leader's: the others go on without it, and it with them once there is room and it is started again."""
    for _ in range(2):
        replicas.start(lease_s="1")
    await joined(client, 2)
    accepted = await feed(client, 2, seed=8)
    for number in range(rounds):
        full = await cluster.leader(client)
        filler = fill(full.store)
        feeding = asyncio.create_task(feed(client, 2, seed=100 + number))
        log = full.folder / "nats.log"
        await eventually(lambda log=log, disk=full.store: fill(disk) and "no space left on device" in log.read_text())
        accepted |= await feeding
        accepted |= (meanwhile := await feed(client, 1, seed=200 + number))
        assert meanwhile
        (await settle(client, 10, replicas=replicas)).check(accepted)
        filler.unlink()
        await asyncio.to_thread(full.kill, signal.SIGTERM)
        full.start()
        await cluster.whole(client)
    accepted |= await feed(client, 1, seed=9)
    (await settle(client, 10, replicas=replicas)).check(accepted)

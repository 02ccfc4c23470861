"""The server's disk is full: services say so, nothing is accepted that is not kept, a restart with room goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from runtime_books import feed, settle
from runtime_counting import Counting
from runtime_live import connect, eventually, running, until_ready
from stretto_runtime import EmbeddedServer, provision


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("a disk of its own (tmpfs) needs root")
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


async def test_a_full_disk_loses_nothing_that_was_accepted(small_disk: Path, tmp_path: Path) -> None:
    server = EmbeddedServer(small_disk / "nats")
    await server.start()
    client = await connect(server)
    try:
        await provision(client.bus)
        async with running(Counting, server, tmp_path) as runner:
            accepted = await feed(client, 1, seed=4)
            filler = fill(small_disk)
            feeding = asyncio.create_task(feed(client, 8, seed=5))
            await eventually(lambda: not runner.report()["ready"])
            await eventually(lambda: "is the server's disk full" in str(runner.report()["faults"]))
            filler.unlink()
            # nats-server does not try a file again that it could not write: it wants a restart
            await asyncio.to_thread(server.stop)
            await server.start()
            await until_ready(runner)
            accepted |= await feeding
            accepted |= await feed(client, 0.5, seed=6)
            (await settle(client)).check(accepted)
    finally:
        await client.close()
        server.kill()

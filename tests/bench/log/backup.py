"""Seconds to back up 1 GB of streams while jobs go on, the longest pause of a publisher meanwhile, and to restore it.

The log is filled with events that do not compress. A publisher then stores one event after another, as a gateway does;
the longest time between two acknowledgements is the pause that anybody feels. Without a backup it is the baseline.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from pathlib import Path

from stretto_bus import Client
from stretto_bus.bus import Bus
from stretto_installation.backup import restore, take
from stretto_installation.provision import streams
from stretto_installation.server import EmbeddedServer
from stretto_wire.contract.registry import STATE_PREFIX

from tests.bench.log.bus import fresh_bus
from tests.bench.rows import Row, row_at_most

STORED_BYTES = 1_000_000_000
EVENT_BYTES = 2_000
DOCUMENTS, DOCUMENT_BYTES = 1_000, 20_000
AHEAD = 2_000
QUIET_S = 10.0
BAR_S, PAUSE_BAR_S = 60.0, 1.0


def run() -> list[Row]:
    """Return the time of a backup, the longest pause beside it, and the time of a restoration."""
    return asyncio.run(_measure())


async def _measure() -> list[Row]:
    async with fresh_bus() as (client, server, folder):
        await _fill(client.bus)
        beside = await Client.connect(server.url)
        quiet_s = await _longest_pause(beside.bus, asyncio.create_task(asyncio.sleep(QUIET_S)))
        names = [config["name"] for config in streams()]
        begin = time.perf_counter()
        taking = asyncio.create_task(asyncio.to_thread(_take, server.url, folder / "backup", names))
        pause_s = await _longest_pause(beside.bus, taking)
        took_s = time.perf_counter() - begin
        await beside.close()
        restored_s = await _restored(folder / "backup")
        size_bytes = sum(file.stat().st_size for file in (folder / "backup").iterdir())
    note = f"{STORED_BYTES / 1e9:g} GB in {STORED_BYTES // EVENT_BYTES:,} events; load {os.getloadavg()[0]:.1f}"
    return [
        row_at_most("backup of the streams", took_s, "s", BAR_S, f"{size_bytes / 1e9:.2f} GB written; {note}"),
        row_at_most(
            "longest pause of a publisher beside it", pause_s, "s", PAUSE_BAR_S, "without it: baseline", quiet_s
        ),
        row_at_most("restoration of the streams", restored_s, "s", None, note),
    ]


async def _fill(bus: Bus) -> None:
    chance = random.Random(1)
    for first in range(0, STORED_BYTES // EVENT_BYTES, AHEAD):
        posted = [
            await bus.post(f"evt.v1.gateway.job-cancelled.job-{number % 100}", chance.randbytes(EVENT_BYTES), None, 60)
            for number in range(first, first + AHEAD)
        ]
        await asyncio.gather(*posted)
    for number in range(DOCUMENTS):
        await bus.store(f"{STATE_PREFIX}kept.gateway.job-{number}", chance.randbytes(DOCUMENT_BYTES))


async def _longest_pause(bus: Bus, until: asyncio.Task[None]) -> float:
    """Return the longest time between two acknowledgements until the task ends."""
    longest_s, last_s = 0.0, time.perf_counter()
    while not until.done():
        await bus.store("evt.v1.gateway.job-cancelled.job-0", b"beside")
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    await until
    return longest_s


def _take(url: str, folder: Path, names: list[str]) -> None:
    """Take the backup in a thread with a loop of its own, as the command does in a process of its own."""

    async def take_here() -> None:
        client = await Client.connect(url)
        await take(client.bus, folder, names, time.time())
        await client.close()

    asyncio.run(take_here())


async def _restored(backup: Path) -> float:
    """Return the seconds of a restoration into an empty server."""
    with tempfile.TemporaryDirectory(prefix="stretto-bench-") as name:
        server = EmbeddedServer(Path(name) / "nats", secured=False)
        await server.start()
        client = await Client.connect(server.url)
        try:
            begin = time.perf_counter()
            await restore(client.bus, backup, streams(), time.time())
            return time.perf_counter() - begin
        finally:
            await client.close()
            server.kill()

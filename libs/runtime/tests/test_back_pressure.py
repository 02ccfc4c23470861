"""More comes in than is worked off: memory stays bounded, metrics name it, nothing that was accepted is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from runtime_books import books
from runtime_counting import Counting, add
from runtime_live import Replicas, eventually, settings_of
from stretto_bus import Client
from stretto_bus.reading.ordered_consumer import QUEUE_MESSAGES, OrderedConsumer
from stretto_installation.server import EmbeddedServer
from stretto_messages.gateway import JobCancelled
from stretto_runtime import Meta, Runner
from stretto_wire.codec import encode
from stretto_wire.contract.registry import STREAM, subject_of

MIB = 1 << 20


async def flood(client: Client, number: int, padding: int = 0) -> set[str]:
    """Additions as fast as the server takes them, ``padding`` bytes more in each; the ids of what it accepted."""
    accepted: set[str] = set()
    for start in range(0, number, 500):
        ids = [f"flood:{n}" for n in range(start, min(number, start + 500))]
        message = JobCancelled(job="job-a", reason="0" * padding + "1")
        posted = [
            await client.bus.post(subject_of(message), encode(message), {"Nats-Msg-Id": name, "ce-id": name})
            for name in ids
        ]
        await asyncio.gather(*posted)
        accepted.update(ids)
    return accepted


async def test_a_slow_reader_holds_a_bounded_number_and_misses_nothing(client: Client) -> None:
    consumer = await OrderedConsumer.open(client.bus, STREAM, ["*.evt.v1.gateway.*.*"])
    accepted = await flood(client, 3 * QUEUE_MESSAGES)
    await eventually(lambda: consumer.pauses == 1)
    assert len(consumer._queue) <= QUEUE_MESSAGES + 1  # and a request for flow control
    read = [stored for _ in range(16) for stored in await consumer.take()]
    async with asyncio.timeout(60):
        while len(read) < len(accepted):
            read += await consumer.batch()
    assert [stored.headers["Nats-Msg-Id"] for stored in read] == [f"flood:{n}" for n in range(len(accepted))]
    await consumer.close()


@pytest.mark.night
async def test_a_flood_behind_a_slow_machine_stays_in_the_stream(
    server: EmbeddedServer, client: Client, replicas: Replicas
) -> None:
    replica = replicas.start(delay_s="0.0003")
    await client.publish(add("job-a", 1), "first")
    await eventually_counted(client, 1)
    before = resident(replica.pid)
    accepted = await flood(client, 8_000, 1900)
    peak = before

    while (found := await counted(client)) < 1 + len(accepted):
        peak = max(peak, resident(replica.pid))
        await asyncio.sleep(0.2)
    assert found == 1 + len(accepted)
    assert peak - before < 32 * MIB


async def test_metrics_name_what_waits(server: EmbeddedServer, client: Client, tmp_path: Path) -> None:
    accepted = await flood(client, 6000)
    seen: list[float] = []

    class Watched(Counting):
        def to_event(self, message: Any, meta: Meta) -> Any:
            seen.append(metric(runner, "stretto_input_backlog") if len(seen) % 500 == 0 else 0.0)
            return super().to_event(message, meta)

    runner = Runner(Watched(settings_of(Watched, server, tmp_path)))
    task = asyncio.create_task(runner.run())
    await eventually(lambda: metric(runner, "stretto_outputs_total") == len(accepted))
    assert max(seen) > 1000
    assert metric(runner, "stretto_input_backlog") == 0
    runner.stop()
    await task


def metric(runner: Runner, name: str) -> float:
    line = next(line for line in runner.metrics.text().decode().splitlines() if line.startswith(name + "{"))
    return float(line.rpartition(" ")[2])


def resident(pid: int) -> int:
    """Bytes of memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


async def counted(client: Client) -> int:
    return sum(map(len, (await books(client)).counted.values()))


async def eventually_counted(client: Client, number: int) -> None:
    async with asyncio.timeout(60):
        while await counted(client) < number:
            await asyncio.sleep(0.1)

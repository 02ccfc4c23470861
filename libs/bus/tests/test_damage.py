"""Damage of a stream's files: everything else is read, and what cannot be read is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from flipped_bits import blocks, cut, flip
from runtime_counting import add
from runtime_live import connect
from stretto_bus import ordered_consumer
from stretto_bus.damage import Damage, find_damage
from stretto_bus.faults import BusFault
from stretto_bus.ordered_consumer import OrderedConsumer, scan
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_wire.contract.registry import STATE, STATE_PREFIX, STREAM, partition_of

COUNT = 30
SUBJECT = f"{partition_of('b')}.evt.v1.gateway.job-cancelled.b"


async def damaged(folder: Path, stream: str, change: Callable[[Path], None]) -> EmbeddedServer:
    """Start a server after a ``change`` of the only file of messages of ``stream``. Job b has the middle message."""
    server = EmbeddedServer(folder, secured=False)
    await server.start()
    client = await connect(server)
    await provision(client.bus)
    for number in range(COUNT):
        job = "b" if number == COUNT // 2 else f"a{number}"
        await client.publish(add(job, number))
        await client.bus.store(f"{STATE_PREFIX}snap.planner.3.{job}.a", b"x" * 99)
        await client.bus.store(f"{STATE_PREFIX}owner.planner.3", str(number).encode())
    await client.close()
    server.stop()
    (file,) = blocks(folder, stream)
    change(file)
    await server.start()
    return server


@pytest.mark.parametrize(
    ("stream", "change", "found", "said"),
    [
        (STREAM, lambda file: None, None, ""),
        (
            STREAM,
            lambda file: flip(file, b".job-cancelled.b"),
            Damage(STREAM, ((16, 16),), {SUBJECT: 1}),
            f"1 message of the stream STRETTO cannot be read; sequence 16; subject {SUBJECT} (job b)",
        ),
        (STREAM, lambda file: cut(file, 20), Damage(STREAM, ((30, 30),), {}), "sequence 30"),
        (
            STATE,
            lambda file: flip(file, b"snap.planner.3.b.a"),
            Damage(STATE, ((31, 31),), {f"{STATE_PREFIX}snap.planner.3.b.a": 1}),
            f"subject {STATE_PREFIX}snap.planner.3.b.a (job b)",
        ),
        (STATE, lambda file: None, None, ""),
    ],
    ids=["sound", "flipped bit", "cut end", "flipped bit in the bucket", "sound bucket"],
)
async def test_damage_is_named_by_stream_sequence_subject_and_job(
    tmp_path: Path, stream: str, change: Callable[[Path], None], found: Damage | None, said: str
) -> None:
    server = await damaged(tmp_path, stream, change)
    client = await connect(server)
    try:
        seen = await find_damage(client.bus, stream)
        assert (seen and (seen.spans, seen.subjects)) == (found and (found.spans, found.subjects))
        assert said in str(seen)
        assert seen is None or "job b" not in seen.place, "for those who may not know of jobs"
    finally:
        await client.close()
        server.stop()


async def test_a_reader_gets_everything_else_and_does_not_wait_for_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_consumer, "QUIET_S", 0.1)
    server = await damaged(tmp_path, STREAM, lambda file: flip(file, b".job-cancelled.b"))
    client = await connect(server)
    try:
        read = [stored.seq async for stored in scan(client.bus, STREAM, [">"])]
        assert read == [seq for seq in range(1, COUNT + 1) if seq != 16]
        assert [stored async for stored in scan(client.bus, STREAM, [SUBJECT])] == []
        with pytest.raises(BusFault, match="message 16 of STRETTO, or one before it, cannot be read"):
            _ = [stored async for stored in scan(client.bus, STREAM, [SUBJECT], until=16)]
        consumer = await OrderedConsumer.open(client.bus, STREAM, [SUBJECT])
        async with asyncio.timeout(60):
            assert await consumer.batch() == []
            later = await client.publish(add("b", 1))
            assert [stored.seq for stored in await consumer.batch()] == [later]
        await consumer.close()
    finally:
        await client.close()
        server.stop()

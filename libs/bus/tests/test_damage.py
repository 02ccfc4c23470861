"""Damage of a stream's files: everything else is read, and what cannot be read is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from flipped_bits import blocks, cut, flip
from hypothesis import given
from hypothesis import strategies as st
from runtime_counting import add
from runtime_live import connect
from stretto_bus.faults import Unreadable
from stretto_bus.reading import damage, ordered_consumer
from stretto_bus.reading.damage import Count, Damage, find_damage, without
from stretto_bus.reading.ordered_consumer import OrderedConsumer, scan
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
        assert seen is None or (seen.of_job("b"), seen.of_job("a")) == (len(seen.subjects), 0)
        assert seen is None or "job b" not in seen.place, "for those who may not know of jobs"
    finally:
        await client.close()
        server.stop()


async def test_damage_beyond_the_subjects_that_are_named_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(damage, "SUBJECTS_MOST", 3)
    jobs = [f"a{number}" for number in (4, 7, 19, 20, 29)]

    def change(file: Path) -> None:
        for job in jobs:
            flip(file, f".job-cancelled.{job}".encode())

    server = await damaged(tmp_path, STREAM, change)
    client = await connect(server)
    try:
        seen = await find_damage(client.bus, STREAM)
        assert seen is not None
        assert (len(seen.subjects), seen.others, seen.messages) == (3, (2, 2), 5)
        assert seen.spans == ((5, 5), (8, 8), (20, 21), (30, 30))
        assert str(seen).endswith(" and 2 more")
    finally:
        await client.close()
        server.stop()


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([-1, 1, 3]), st.sampled_from([0, 2, 4, 9]), st.booleans())),
)
def test_expiry_neither_looks_like_damage_nor_hides_it(messages: list[tuple[bool, int, int, bool]]) -> None:
    """Model: a subject is counted at 0, read at 1 to 3 and counted at 4; what came until then is read to its end.

    Each message is sound or not, stored and expiring at some time, and those stored before 0 come before or after the
    time 2 of their expiry.
    """
    alive = [(sound, stored_s, gone_s, early) for sound, stored_s, gone_s, early in messages if gone_s > stored_s]
    before = sum(stored_s <= 0 < gone_s for _, stored_s, gone_s, _ in alive)
    after = sum(gone_s > 4 for _, _, gone_s, _ in alive)
    read_s = [max(stored_s, 1 if early else 3) for _, stored_s, _, early in alive]
    came = [each for each, at_s in zip(alive, read_s, strict=True) if each[0] and each[2] > at_s]
    count = Count(before, after, len(came), sum(stored_s > 0 for _, stored_s, _, _ in came))
    lost = sum(not sound and gone_s > 4 for sound, _, gone_s, _ in alive)
    assert count.missing <= lost <= count.missing_at_most
    if all(gone_s > 4 for _, _, gone_s, _ in alive):
        assert count.missing == lost == count.missing_at_most


@given(st.sets(st.integers(1, 30)), st.sets(st.integers(1, 30)))
def test_spans_without_others_are_those_of_the_sequences(some: set[int], others: set[int]) -> None:
    def spans(numbers: set[int]) -> list[tuple[int, int]]:
        begins = sorted(number for number in numbers if number - 1 not in numbers)
        return [(begin, next(n for n in range(begin, 99) if n + 1 not in numbers)) for begin in begins]

    assert without(spans(some), spans(others)) == spans(some - others)


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
        with pytest.raises(Unreadable, match="message 16 of STRETTO, or one before it, cannot be read"):
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

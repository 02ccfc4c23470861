"""Outputs as atomic batches, where the stream's configuration asks for them."""

from __future__ import annotations

import asyncio

import pytest
from stretto_runtime import Client, provision
from stretto_runtime.bus import EVENTS
from stretto_runtime.faults import Fenced
from stretto_runtime.log import Fence, read
from stretto_runtime.writer import BATCH_MESSAGES, SYNCED_BATCH_FROM, Writer, learn_streams

SUBJECT = "evt.v1.dispatcher.job-progressed.a"
NUMBER = 2 * BATCH_MESSAGES + 3


async def test_a_synced_disk_gets_batches_in_order_and_a_fenced_one_stores_nothing(client: Client) -> None:
    bus = client.bus
    await provision(bus, sync_interval="always")
    await learn_streams(bus)
    assert bus.batch_from == SYNCED_BATCH_FROM
    writer = Writer(bus, Fence("fence.dispatcher.3", await bus.store("fence.dispatcher.3", b"")), asyncio.Event())
    for number in range(NUMBER):
        writer.send(f"dispatcher:{number}:0", SUBJECT, b"%d" % number)
    frame = await writer.store("journal.dispatcher.3", b"[]", {"Nats-Msg-Id": "frame"})
    await writer.drain()
    stored = await read(bus, EVENTS, [f"*.{SUBJECT}", "journal.dispatcher.3"])
    assert [one.data for one in stored] == [*(b"%d" % number for number in range(NUMBER)), b"[]"]
    assert frame == stored[-1].seq == writer.last_seq
    assert any("Nats-Batch-Id" in one.headers for one in stored)

    await bus.store("fence.dispatcher.3", b"")
    waiting = asyncio.create_task(writer.store("journal.dispatcher.3", b"[]", {}))
    for number in range(SYNCED_BATCH_FROM):
        writer.send(f"late:{number}", SUBJECT, b"late")
    with pytest.raises(Fenced):
        await writer.drain()
    with pytest.raises(Fenced):
        await waiting
    assert len(await read(bus, EVENTS, [f"*.{SUBJECT}", "journal.dispatcher.3"])) == NUMBER + 1


async def test_who_waits_gets_its_own_sequence_though_the_chunk_is_not_in_a_row(client: Client) -> None:
    bus = client.bus
    await provision(bus, sync_interval="always")
    await learn_streams(bus)
    writer = Writer(bus, Fence("fence.dispatcher.3", await bus.store("fence.dispatcher.3", b"")), asyncio.Event())
    writer.send("dispatcher:1:0", SUBJECT, b"")
    await writer.drain()
    waiting = asyncio.create_task(writer.store("journal.dispatcher.3", b"[]", {}))
    await asyncio.sleep(0)
    writer.send("dispatcher:1:0", SUBJECT, b"")  # it is there: its sequence is the old one
    await writer.drain()
    (frame,) = await read(bus, EVENTS, ["journal.dispatcher.3"])
    assert await waiting == frame.seq == writer.last_seq

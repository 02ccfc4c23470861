"""Outputs on their way: counted, bounded, and atomic batches where the stream's configuration pulls for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from runtime_live import connect
from stretto_bus import BusFault, Client
from stretto_bus.bus import Bus, Msg
from stretto_bus.faults import Fenced
from stretto_bus.reading.ordered_consumer import read
from stretto_bus.writer import (
    BATCH_MESSAGES,
    CLUSTER_BATCH_FROM,
    OLDEST_SERVER,
    SYNCED_BATCH_FROM,
    Fence,
    OutgoingMessage,
    Writer,
    learn_streams,
    store_together,
)
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_installation.settings import StreamsSettings
from stretto_wire.contract.registry import STREAM

SUBJECT = "evt.v1.dispatcher.job-progressed.a"
NUMBER = 2 * BATCH_MESSAGES + 3


async def test_a_synced_disk_gets_batches_in_order_and_a_fenced_one_stores_nothing(client: Client) -> None:
    bus = client.bus
    await provision(bus, StreamsSettings(sync_interval="always"))
    await learn_streams(bus)
    assert bus.batch_from == SYNCED_BATCH_FROM
    writer = Writer(bus, Fence("fence.dispatcher.3", await bus.store("fence.dispatcher.3", b"")), asyncio.Event())
    for number in range(NUMBER):
        writer.send(f"dispatcher:{number}:0", SUBJECT, b"%d" % number)
    frame = store_frame(writer)
    await writer.drain()
    stored = await read(bus, STREAM, [f"*.{SUBJECT}", "journal.dispatcher.3"])
    assert [one.data for one in stored] == [b"[]", *(b"%d" % number for number in range(NUMBER))]  # it waits for none
    assert ((await frame)["seq"], writer.last_seq) == (stored[0].seq, stored[-1].seq)
    assert any("Nats-Batch-Id" in one.headers for one in stored)

    await bus.store("fence.dispatcher.3", b"")
    waiting = store_frame(writer)
    for number in range(SYNCED_BATCH_FROM):
        writer.send(f"late:{number}", SUBJECT, b"late")
    with pytest.raises(Fenced):
        await writer.drain()
    with pytest.raises(Fenced):
        await waiting
    assert len(await read(bus, STREAM, [f"*.{SUBJECT}", "journal.dispatcher.3"])) == NUMBER + 1


async def test_each_gets_its_own_sequence_though_the_chunk_is_not_in_a_row(client: Client) -> None:
    bus = client.bus
    fence = Fence("fence.dispatcher.3", await bus.store("fence.dispatcher.3", b""))
    there = OutgoingMessage(SUBJECT, b"", "Nats-Msg-Id: dispatcher:1:0\r\n")  # asked again, its sequence is the old one
    (first,) = await store_together(bus, fence, [there], SYNCED_BATCH_FROM)
    told = await store_together(bus, fence, [there, OutgoingMessage("journal.dispatcher.3", b"[]")], SYNCED_BATCH_FROM)
    (frame,) = await read(bus, STREAM, ["journal.dispatcher.3"])
    assert told == [first, frame.seq]


async def test_where_a_cluster_takes_one_at_a_time_a_frame_goes_with_the_outputs_that_wait(client: Client) -> None:
    bus = client.bus
    bus.batch_from = CLUSTER_BATCH_FROM
    writer = Writer(bus, Fence("fence.dispatcher.3", await bus.store("fence.dispatcher.3", b"")), asyncio.Event())
    writer.send("dispatcher:1:0", SUBJECT, b"")
    waiting = store_frame(writer)
    writer.send("dispatcher:1:1", SUBJECT, b"")
    await writer.drain()
    (frame,) = await read(bus, STREAM, ["journal.dispatcher.3"])
    assert (await waiting)["seq"] == frame.seq == writer.last_seq - 1
    assert frame.headers["Nats-Batch-Sequence"] == "2"


async def test_what_a_former_leader_refuses_is_not_sent_again_for_the_new_one_stores_it(client: Client) -> None:
    refusals: list[asyncio.Task[None]] = []

    def refuse(message: Msg) -> None:
        refusal = b'{"error": {"code": 400, "err_code": 10164}}'
        refusals.append(asyncio.create_task(client.bus.send(message.reply, refusal)))

    former_leader = await client.bus.subscribe("elsewhere", refuse)  # no stream has this subject
    for threshold in (1, 2):
        with pytest.raises(BusFault) as fault:
            await store_together(
                client.bus, Fence("fence.dispatcher.3", 1), [OutgoingMessage("elsewhere", b"")], threshold
            )
        assert fault.value.code == 10164
    await former_leader.unsubscribe()
    assert len(refusals) == 2


async def test_a_server_that_lacks_repairs_is_refused_with_the_version_to_run(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    major, minor, patch = OLDEST_SERVER
    monkeypatch.setattr(Bus, "server_version", OLDEST_SERVER)
    await learn_streams(client.bus)
    monkeypatch.setattr(Bus, "server_version", (major, minor, patch - 1))
    with pytest.raises(BusFault, match=rf"the server is NATS {major}\.{minor}\.{patch - 1}, .*: run 2\.14\.6 or later"):
        await learn_streams(client.bus)


def store_frame(writer: Writer) -> asyncio.Future[dict[str, Any]]:
    answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    writer.store("journal.dispatcher.3", b"[]", "", answer)
    return answer


async def test_an_output_that_may_not_be_published_ends_the_writer_and_is_counted_once(
    client: Client, server: EmbeddedServer
) -> None:
    other = await connect(server, "profiler")
    writer = Writer(other.bus, Fence("fence.dispatcher.3", 0), asyncio.Event())
    writer.send("dispatcher:1:0", SUBJECT, b"")
    with pytest.raises(BusFault, match="may not publish"):
        await writer.drain()
    with pytest.raises(BusFault, match="may not publish"):
        writer.send("dispatcher:1:1", SUBJECT, b"")
    await other.close()  # tells all that wait for an answer
    assert writer.idle


async def test_a_writer_with_too_much_on_its_way_goes_on_at_half_of_it(client: Client) -> None:
    bus = client.bus
    writer = Writer(bus, Fence("fence.dispatcher.3", await bus.store("fence.dispatcher.3", b"")), asyncio.Event())
    left = []
    for number in range(3 * Writer.IN_FLIGHT):
        if writer.full:
            await writer.room()
            left.append(writer._in_flight)
        writer.send(f"dispatcher:{number}:0", SUBJECT, b"%d" % number)
    await writer.drain()
    assert len(left) >= 2
    assert all(count <= Writer.IN_FLIGHT // 2 for count in left)
    assert len(await read(bus, STREAM, [f"*.{SUBJECT}"])) == 3 * Writer.IN_FLIGHT

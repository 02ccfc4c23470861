"""Cheaper internals of nats-py, which Stretto replaces, against the originals."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as Original
from nats.errors import StaleConnectionError
from runtime_live import connect, eventually
from stretto_bus import Client, majority
from stretto_bus.connection import CROWDED_BYTES, Connection
from stretto_bus.faults import BusFault, NobodyListens
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_wire.contract.registry import STREAM

names = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True)
values = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs", "Cc")), max_size=30)


@given(st.dictionaries(names, values, max_size=8))
def test_headers_parse_as_in_the_original(headers: dict[str, str]) -> None:
    raw = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode() + b"\r\n"
    assert Connection._parse_header_lines(raw) == Original._parse_header_lines(raw)


async def test_what_is_sent_arrives_and_a_line_break_cannot_forge_a_header(client: Client) -> None:
    got: asyncio.Queue[Any] = asyncio.Queue()
    await client.bus.subscribe("probe.>", got.put_nowait)
    connection = client.bus.connection
    await connection.publish("probe.plain", b"1")
    await connection.publish("probe.headers", b"2", reply="probe.back", headers={"a": "ä b", "empty": ""})
    await connection.publish("probe.forged", b"3", headers={"a": "x\r\nevil: 1", "b": "y"})
    plain, headed, forged = [await asyncio.wait_for(got.get(), 60) for _ in range(3)]
    assert (plain.subject, plain.data, plain.headers) == ("probe.plain", b"1", None)
    assert (headed.data, headed.reply, headed.headers) == (b"2", "probe.back", {"a": "ä b", "empty": ""})
    assert forged.headers == {"a": "x evil: 1", "b": "y"}


async def test_a_request_is_answered_or_hears_that_nobody_listens_or_gives_up(client: Client) -> None:
    bus = client.bus
    loop = asyncio.get_running_loop()
    await bus.subscribe("probe.echo", lambda msg: loop.create_task(bus.send(msg.reply, msg.data, {"error": "none"})))
    await bus.subscribe("probe.deaf", lambda msg: None)
    answers = await asyncio.gather(*(bus.request("probe.echo", b"%d" % n) for n in range(20)))
    assert [(answer.data, answer.headers) for answer in answers] == [(b"%d" % n, {"error": "none"}) for n in range(20)]
    with pytest.raises(NobodyListens):
        await bus.request("probe.nobody", b"", timeout_s=60)
    with pytest.raises(BusFault, match="no answer in time"):
        await bus.request("probe.deaf", b"", timeout_s=0.1)


async def test_time_in_which_this_process_does_not_run_is_no_silence_of_the_server(client: Client) -> None:
    answer = await client.bus.post("evt.v1.probe.made.a", b"", timeout_s=1.0)
    asyncio.get_running_loop().call_soon(time.sleep, 1.5)  # as a process that gets no processor
    assert (await answer)["stream"] == STREAM


async def test_what_is_sent_in_one_turn_leaves_in_one_write_in_order(client: Client) -> None:
    got: asyncio.Queue[Any] = asyncio.Queue()
    await client.bus.subscribe("probe.order", got.put_nowait)
    await client.bus.flush()
    transport, writes = client.bus.connection._transport, list[int]()
    original = transport.writelines
    transport.writelines = lambda lines: (writes.append(len(lines)), original(lines))[1]  # type: ignore[method-assign]
    for number in range(50):
        await client.bus.send("probe.order", b"%d" % number)
    await client.bus.flush()
    assert [(await got.get()).data for _ in range(50)] == [b"%d" % number for number in range(50)]
    assert [count for count in writes if count] == [50]


async def test_a_handler_that_raises_does_not_end_the_connection(client: Client) -> None:
    got: asyncio.Queue[Any] = asyncio.Queue()

    def handler(msg: Any) -> None:
        if msg.data == b"bad":
            raise RuntimeError("a bug")
        got.put_nowait(msg.data)

    await client.bus.subscribe("probe.x", handler)
    await client.bus.connection.publish("probe.x", b"bad")
    await client.bus.connection.publish("probe.x", b"good")
    assert await asyncio.wait_for(got.get(), 60) == b"good"


async def test_a_flush_that_is_cancelled_does_not_deafen_the_connection(client: Client) -> None:
    """Found by simulation: a replica that lost a partition while it took it heard nothing more from the server."""
    for _ in range(3):
        flushing = asyncio.create_task(client.bus.flush())
        await asyncio.sleep(0)
        flushing.cancel()
        await asyncio.wait([flushing])
        await client.bus.ask(f"STREAM.INFO.{STREAM}", timeout_s=2.0)
    assert client.bus.reconnects == 0


def is_stopped(pid: int) -> bool:
    """Return whether every thread of a process has stopped (proc(5), the field after the name)."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)


async def test_who_waits_for_a_server_when_the_line_breaks_hears_it_at_once(
    client: Client, server: EmbeddedServer
) -> None:
    """Found by simulation (seed 1046): a replica that stopped waited ten seconds for an answer that went with the line,
    and nobody answered for its partitions meanwhile. A subject that it left came back with the next connection."""
    got: list[str] = []
    assert server.pid is not None
    subscription = await client.bus.subscribe("probe.left", lambda msg: got.append(msg.subject))
    await client.bus.flush()
    os.kill(server.pid, signal.SIGSTOP)
    await eventually(lambda: is_stopped(server.pid))  # a thread of it that still runs would answer
    leaving = asyncio.create_task(client.bus.connection.leave(subscription))
    flushing = asyncio.create_task(client.bus.flush(600))
    await asyncio.sleep(0.05)
    assert [leaving.done(), flushing.done()] == [False, False]
    await client.bus.connection._process_op_err(StaleConnectionError())
    with pytest.raises(BusFault):
        await asyncio.wait_for(flushing, 60)
    await asyncio.wait_for(leaving, 60)
    os.kill(server.pid, signal.SIGCONT)
    await eventually(lambda: client.bus.reconnects == 1)
    await client.bus.send("probe.left", b"")
    await client.bus.flush()
    assert got == []


async def test_nothing_is_sent_between_a_break_and_its_being_told(client: Client, server: EmbeddedServer) -> None:
    """Messages in flight may be lost; later ones under the same fence would overtake them."""
    got: asyncio.Queue[Any] = asyncio.Queue()
    listener = await connect(server)
    await listener.bus.subscribe("probe.later", got.put_nowait)
    await listener.bus.flush()
    bus, connection = client.bus, client.bus.connection
    told, flush = asyncio.Event(), connection.flush
    bus.on_reconnect.append(told.set)
    refused: list[bool] = []

    async def reconnecting(timeout: int = 10) -> None:  # the server is there again; nobody was told yet
        assert not told.is_set()
        with pytest.raises(BusFault):
            await bus.send("probe.later", b"too early")
        refused.append(connection.is_connected)
        await flush(timeout)

    connection.flush = reconnecting  # type: ignore[method-assign]
    breaking = asyncio.create_task(connection._process_op_err(ConnectionResetError()))
    await bus.send("probe.later", b"not written yet")
    await breaking
    await asyncio.wait_for(told.wait(), 60)
    assert refused == [True]
    connection.flush = flush  # type: ignore[method-assign]
    await bus.send("probe.later", b"after")
    assert (await asyncio.wait_for(got.get(), 60)).data == b"after"
    await listener.close()


async def test_whatever_the_server_says_before_it_hangs_up_we_come_back(client: Client) -> None:
    connection = client.bus.connection
    connection._transport.write(b"NONSENSE\r\n")  # is answered with -ERR, and then the server closes
    await eventually(lambda: client.bus.reconnects == 1)
    assert await client.bus.store("fence.dispatcher.3", b"") > 0


async def test_what_waits_for_a_slow_server_is_bounded_and_arrives(client: Client, server: EmbeddedServer) -> None:
    listener = await connect(server)
    got: list[int] = []
    await listener.bus.subscribe("probe.large", lambda msg: got.append(len(msg.data)))
    await listener.bus.flush()
    connection, message = client.bus.connection, b"x" * (1 << 20)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)

    async def flood() -> None:
        for _ in range(40):
            await client.bus.send("probe.large", message)

    flooding = asyncio.create_task(flood())
    await eventually(lambda: connection._unsent() > 1 << 20)
    await asyncio.sleep(0.2)
    assert not flooding.done()
    assert connection._pending_data_size + connection._unsent() <= CROWDED_BYTES + 2 * len(message)
    os.kill(server.pid, signal.SIGCONT)
    await flooding
    await eventually(lambda: got == [len(message)] * 40)
    await listener.close()


async def test_a_dead_line_with_much_unsent_on_it_is_left_at_once(client: Client, server: EmbeddedServer) -> None:
    connection = client.bus.connection
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    sending = asyncio.create_task(send_much(client))
    await eventually(lambda: connection._unsent() > 1 << 20)
    await connection._process_op_err(StaleConnectionError())  # as after three pings without an answer
    await eventually(lambda: connection.interrupted, 1)
    with pytest.raises(BusFault):
        await sending
    os.kill(server.pid, signal.SIGCONT)
    await eventually(lambda: client.bus.reconnects == 1)


async def test_a_server_that_is_slow_to_encrypt_is_asked_again() -> None:
    asked = 0
    twice = asyncio.Event()

    async def greet_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            twice.set()
        writer.write(b'INFO {"server_id": "a", "tls_required": true}\r\n')
        await reader.read()
        writer.close()

    async with await asyncio.start_server(greet_only, "127.0.0.1", 0) as server:
        connection = Connection()
        connecting = asyncio.create_task(
            connection.connect(
                f"tls://127.0.0.1:{server.sockets[0].getsockname()[1]}",
                connect_timeout=0.1,  # type: ignore[arg-type] - seconds; a fraction is as good as an integer
                reconnect_time_wait=0.01,  # type: ignore[arg-type]
                max_reconnect_attempts=-1,
                error_cb=_nobody_cares,
            )
        )
        async with asyncio.timeout(60):
            await twice.wait()
        connecting.cancel()


async def _nobody_cares(error: Exception) -> None:
    pass


async def send_much(client: Client) -> None:
    while True:
        await client.bus.send("probe.large", b"x" * (1 << 20))


class AsGiven(random.Random):
    """Chance that leaves an order as it is."""

    def sample(self, population: Any, k: int, **_: Any) -> list[Any]:
        return [*population]


@pytest.fixture
async def forsaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Client, EmbeddedServer]]:
    """A client of a server without streams that knows another, which has them."""
    monkeypatch.setattr(majority, "LEAVE_AFTER_S", 0.5)
    monkeypatch.setattr("stretto_bus.bus.chance", AsGiven)
    empty, whole = (EmbeddedServer(tmp_path / name, secured=False) for name in ("empty", "whole"))
    clients: list[Client] = []
    try:
        for server in (empty, whole):
            await server.start()
        clients.append(await Client.connect(whole.url))
        await provision(clients[0].bus)
        clients.append(await Client.connect(f"{empty.url},{whole.url}"))
        yield clients[1], whole
    finally:
        for client in clients:
            await client.close()
        for server in (empty, whole):
            server.kill()


async def test_a_server_whose_jetstream_does_nothing_is_left_for_another(
    forsaken: tuple[Client, EmbeddedServer],
) -> None:
    client, whole = forsaken
    assert await client.bus.store_surely("fence.dispatcher.3", b"", {"Nats-Msg-Id": "a"}, 10) > 0
    assert client.bus.reconnects == 1
    assert str(whole.port) in str(client.bus.connection.connected_url)


async def test_who_asks_little_does_not_leave_a_server_for_what_it_did_not_do_at_one_moment(
    forsaken: tuple[Client, EmbeddedServer],
) -> None:
    client, _ = forsaken

    async def in_vain() -> None:
        for subject in ("fence.dispatcher.3", "fence.dispatcher.4"):
            with pytest.raises(BusFault):
                await client.bus.store(subject, b"")

    await in_vain()
    await asyncio.sleep(1.2)  # idle for longer than it takes
    await in_vain()
    await asyncio.sleep(0.8)
    assert client.bus.reconnects == 0

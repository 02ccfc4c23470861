"""Tools outside: events live and kept, from a sequence or a time, and nothing else of the installation."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.errors import NoRespondersError
from nats.js.api import ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError
from runtime_live import eventually
from stretto_bus import BusFault, Client
from stretto_bus.login import Login
from stretto_installation.access.claims import user_claims
from stretto_installation.access.keys import KEEPER, Keys
from stretto_installation.access.permissions import Rights, external_rights
from stretto_installation.provision import make
from stretto_installation.server import EmbeddedServer
from stretto_installation.settings import StreamsSettings
from stretto_runtime.access.identity import USER_KEY, Key, credentials

INBOX = b"_INBOX.external"


def settings_of(server: EmbeddedServer) -> StreamsSettings:
    """Settings with which events are kept for every tool of the server."""
    assert server.keys is not None
    return StreamsSettings(external_credentials=server.keys.keeper_folder, external_max_bytes=1 << 28)


@pytest.fixture
async def published(server: EmbeddedServer, client: Client) -> list[int]:
    """Events among what those outside do not see; and their sequences."""
    await make(server.url, server.login(), settings_of(server))
    found: list[int] = []
    for number in range(20):
        subject = f"evt.v1.planner.plan-proposed.job-{number % 5}"
        found.append(await client.bus.store(subject, json.dumps(number).encode()))
        await client.bus.store(f"tel.v1.ps.ps-0.job-{number % 5}", b"telemetry")
        await client.bus.store("journal.planner.3", b"what a pod asked")
    return found


@pytest.fixture
async def outside(server: EmbeddedServer) -> AsyncIterator[Any]:
    connection = await nats.connect(
        server.url, user_credentials=str(server.login("external").credentials), inbox_prefix=INBOX
    )
    yield connection
    await connection.close()


async def read(subscription: Any, count: int) -> list[Any]:
    messages: list[Any] = []
    async with asyncio.timeout(60):
        while len(messages) < count:
            messages += await subscription.fetch(count - len(messages), timeout=60)
    return messages


async def test_a_durable_reader_goes_on_where_it_was(
    published: list[int], outside: Any, server: EmbeddedServer, client: Client
) -> None:
    stream = outside.jetstream()
    first = await read(await stream.pull_subscribe("evt.v1.>", durable="tool", stream="EVENTS"), 12)
    assert [message.metadata.sequence.stream for message in first] == published[:12]
    assert [message.subject for message in first] == [f"evt.v1.planner.plan-proposed.job-{n % 5}" for n in range(12)]
    for message in first:
        await message.ack_sync()
    await client.bus.store("evt.v1.planner.plan-proposed.job-9", b"20")
    again = await nats.connect(
        server.url, user_credentials=str(server.login("external").credentials), inbox_prefix=INBOX
    )
    rest = await read(await again.jetstream().pull_subscribe("evt.v1.>", durable="tool", stream="EVENTS"), 9)
    assert [int(message.data) for message in rest] == list(range(12, 21))
    await again.close()


async def test_replay_from_a_sequence_and_from_a_time(published: list[int], outside: Any, client: Client) -> None:
    stream = outside.jetstream()
    from_seq = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=published[7])
    found = await read(await stream.pull_subscribe("evt.v1.>", stream="EVENTS", config=from_seq), 13)
    assert [int(message.data) for message in found] == list(range(7, 20))

    stored = await client.bus.ask("STREAM.MSG.GET.STRETTO", {"seq": published[13]})
    when = stored["message"]["time"]
    from_time = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_TIME, opt_start_time=when)
    found = await read(await stream.pull_subscribe("evt.v1.>", stream="EVENTS", config=from_time), 7)
    assert [int(message.data) for message in found] == list(range(13, 20))
    assert found[0].metadata.timestamp - datetime.fromisoformat(when[:26] + "+00:00") < timedelta(milliseconds=1)
    assert found[0].metadata.timestamp.tzinfo is UTC

    of_a_job = await read(await stream.pull_subscribe("evt.v1.*.*.job-3", stream="EVENTS"), 4)
    assert [int(message.data) for message in of_a_job] == [3, 8, 13, 18]


async def test_events_are_heard_as_they_come(published: list[int], server: EmbeddedServer, client: Client) -> None:
    listener = await Client.connect(server.url, server.login("external"))
    heard: list[str] = []
    await listener.bus.subscribe("evt.v1.>", lambda message: heard.append(message.subject))
    await listener.bus.flush()
    await client.bus.store("evt.v1.planner.plan-proposed.live", b"{}")
    await eventually(lambda: heard)
    assert heard == ["evt.v1.planner.plan-proposed.live"]
    await listener.close()


async def test_the_stream_outside_has_events_only_and_nobody_writes_to_it(
    published: list[int], outside: Any, server: EmbeddedServer
) -> None:
    await read(await outside.jetstream().pull_subscribe("evt.v1.>", stream="EVENTS"), len(published))
    found = await outside.jetstream().stream_info("EVENTS")
    assert found.state.messages == len(published)
    config = found.config
    assert (config.max_bytes, config.deny_delete, config.deny_purge) == (1 << 28, True, True)
    assert not config.subjects
    assert server.keys is not None
    file = server.keys.keeper_folder / "external.creds"
    keeper = await Client.connect(server.url, Login(KEEPER, credentials=file))
    with pytest.raises(BusFault, match="may not publish"):
        await keeper.bus.ask("STREAM.CREATE.MINE", {"name": "MINE", "subjects": ["mine"]})
    await keeper.close()


def of_everything(server: EmbeddedServer, tool: str) -> Path:
    """Make credentials in the account of a tool that may do everything there."""
    assert server.keys is not None
    account = Key((server.keys.folder / f"root/external-{tool}.seed").read_text().strip())
    key = Key.new(USER_KEY)
    everything = user_claims(Rights((">",), (">",)))
    file = server.folder / f"everything-{tool}.creds"
    file.write_text(credentials(account.sign(key.public, "everything", everything, 0.0), key))
    return file


async def test_the_account_outside_reads_nothing_of_the_other_but_events(
    published: list[int], server: EmbeddedServer
) -> None:
    """Whatever rights its users were given: what is imported is all that there is."""
    connection = await nats.connect(server.url, user_credentials=str(of_everything(server, "external")))
    config = {"name": "c", "ack_policy": "none", "deliver_subject": "deliver.external.external.c"}
    consume = "JS.STRETTO.CONSUMER.CREATE.STRETTO.c"
    for subject, more in (
        (consume, {}),
        (f"{consume}.>", {"filter_subject": ">"}),
        (f"{consume}.*.tel.v1.>", {"filter_subject": "*.tel.v1.>"}),
        (f"{consume}.journal.>", {"filter_subject": "journal.>"}),
        ("JS.STRETTO.STREAM.INFO.STRETTO", {}),
        ("JS.STRETTO.STREAM.DELETE.STRETTO", {}),
        ("JS.STRETTO.CONSUMER.CREATE.KV_STATE.c", {}),
    ):
        body = json.dumps({"stream_name": "STRETTO", "config": {**config, **more}}).encode()
        with pytest.raises(NoRespondersError):
            await connection.request(subject, body, timeout=60)
    for more in ({"filter_subject": "*.tel.v1.>"}, {"filter_subjects": ["*.tel.v1.>", "journal.>"]}, {}):
        body = json.dumps({"stream_name": "STRETTO", "config": {**config, **more}}).encode()
        answer = json.loads((await connection.request(f"{consume}.*.evt.v1.>", body, timeout=60)).data)
        assert "error" in answer, more
    with pytest.raises(APIError, match="maximum number of streams reached"):
        await connection.jetstream().add_stream(name="MORE", subjects=["more"])
    await connection.close()


@pytest.fixture
async def two_tools(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server with the tools crm and dashboard, and 20 events in the stream of each."""
    Keys(tmp_path / "nats/keys", time.time(), ["crm", "dashboard"])
    server = EmbeddedServer(tmp_path / "nats")
    await server.start()
    await make(server.url, server.login(), settings_of(server))
    operator = await Client.connect(server.url, server.login())
    for number in range(20):
        await operator.bus.store(f"evt.v1.planner.plan-proposed.job-{number % 5}", b"%d" % number)
    await operator.close()
    yield server
    server.kill()


async def as_tool(server: EmbeddedServer, tool: str, file: Path | None = None) -> Any:
    """Connect as the tool, or with other credentials of its account."""
    file = file or server.login(tool).credentials
    return await nats.connect(
        server.url, user_credentials=str(file), inbox_prefix=f"_INBOX.{tool}".encode(), allow_reconnect=False
    )


@pytest.mark.parametrize("everything", [False, True], ids=["with-its-rights", "with-every-right-in-its-account"])
async def test_one_tool_cannot_touch_the_consumers_of_another(two_tools: EmbeddedServer, everything: bool) -> None:
    """Method: crm holds five unacknowledged messages of a durable consumer. dashboard sends everything that it may
    publish, with crm's names and crm's reply subjects. Then crm's consumer is as it was, and crm goes on."""
    crm = await as_tool(two_tools, "crm")
    held = await crm.jetstream().pull_subscribe("evt.v1.>", durable="cursor", stream="EVENTS")
    messages = await read(held, 5)
    before = await held.consumer_info()
    file = of_everything(two_tools, "dashboard") if everything else None
    dashboard = await as_tool(two_tools, "dashboard", file)
    await read(await dashboard.jetstream().pull_subscribe("evt.v1.>", stream="EVENTS"), 20)
    seen = json.loads((await dashboard.request("$JS.API.CONSUMER.NAMES.EVENTS", b"", timeout=60)).data)
    assert "cursor" not in seen["consumers"]
    config = {"stream_name": "EVENTS", "config": {"durable_name": "cursor", "ack_policy": "explicit"}}
    bodies = {"CREATE": config, "MSG.NEXT": {"batch": 20, "no_wait": True}}
    tried: list[str] = []
    for pattern in external_rights("dashboard").publish:
        body = next((body for verb, body in bodies.items() if f".{verb}." in pattern), {})
        subjects = [pattern.replace(">", "cursor")]
        if pattern.startswith(("$JS.ACK.", "$JS.FC.")):
            subjects = [m.reply.replace("$JS.ACK.", pattern.partition("EVENTS")[0]) for m in messages]
        for subject in subjects:
            await dashboard.publish(subject, json.dumps(body).encode(), reply="_INBOX.dashboard.x")
            tried.append(subject)
    await dashboard.flush()
    assert {"$JS.API.CONSUMER.DELETE.EVENTS.cursor", *(message.reply for message in messages)} <= {*tried}
    after = await held.consumer_info()
    for one in (before, after):
        one.ts = None
    assert after == before
    for message in messages:
        await message.ack_sync()
    assert [int(message.data) for message in await read(held, 15)] == list(range(5, 20))
    await crm.close()
    await dashboard.close()


async def test_a_tool_has_its_limits_and_does_not_use_up_those_of_another(two_tools: EmbeddedServer) -> None:
    """Method: crm takes all that it gets; one more is refused, and dashboard still gets its own."""
    connections = [await as_tool(two_tools, "crm") for _ in range(8)]
    with pytest.raises(nats.errors.Error, match="maximum account active connections"):
        await as_tool(two_tools, "crm")
    crm = connections[0].jetstream()
    for number in range(16):
        await crm.pull_subscribe("evt.v1.>", durable=f"c-{number}", stream="EVENTS")
    with pytest.raises(APIError, match="maximum consumers limit reached"):
        await crm.pull_subscribe("evt.v1.>", durable="c-16", stream="EVENTS")
    assert (await crm.stream_info("EVENTS")).config.max_bytes == 1 << 28
    dashboard = await as_tool(two_tools, "dashboard")
    await read(await dashboard.jetstream().pull_subscribe("evt.v1.>", durable="c-16", stream="EVENTS"), 20)
    for connection in (*connections, dashboard):
        await connection.close()

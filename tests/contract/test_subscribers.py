"""The published subscribers run: each reads events with external credentials, from any position."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from stretto_bus import Client
from stretto_installation.provision import make
from stretto_installation.server import EmbeddedServer
from stretto_installation.settings import StreamsSettings

from tests.contract.subscriber import PROTO, SubscriberUnavailable, install
from tests.live_bus import progressed

PYTHON = [sys.executable, str(PROTO / "subscribers" / "python" / "subscriber.py")]
LIMIT_S = 60.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """With streams, the one for those outside among them."""
    server = EmbeddedServer(tmp_path)
    await server.start()
    settings = StreamsSettings(external_credentials=server.keys.keeper_folder if server.keys is not None else None)
    await make(server.url, server.login(), settings)
    yield server
    server.stop()


@pytest.fixture
async def client(server: EmbeddedServer) -> AsyncIterator[Client]:
    client = await Client.connect(server.url, server.login())
    yield client
    await client.close()


async def publish(client: Client, numbers: range) -> list[int]:
    """Progress of a job, among telemetry that nobody outside sees; returns the sequences."""
    found: list[int] = []
    for number in numbers:
        message = progressed("ctr", number, 1000)  # fmt: skip
        found.append(await client.publish(message, f"dispatcher:{number}:0"))
        await client.bus.store("tel.v1.ps.ps-0.ctr", b"telemetry")
    return found


async def run(server: EmbeddedServer, *command: str) -> list[dict[str, Any]]:
    """The lines of JSON that a subscriber prints until it ends."""
    connect = ["--server", server.url, "--credentials", str(server.login("external").credentials)]
    process = await asyncio.create_subprocess_exec(
        *command[:2], *connect, *command[2:], stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-2000:]
    return [json.loads(line) for line in out.decode().splitlines()]


def node() -> list[str]:
    try:
        return ["node", str(install() / "subscriber.mjs"), "--proto", str(PROTO), "--print", "--idle-s", "1"]
    except SubscriberUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(params=["python", "node"])
def subscriber(request: pytest.FixtureRequest) -> list[str]:
    """How to run it so that it ends when all is read."""
    return node() if request.param == "node" else [*PYTHON, "--until-quiet", "1"]


async def test_it_reads_from_the_first_from_a_sequence_and_from_a_time(
    server: EmbeddedServer, client: Client, subscriber: list[str]
) -> None:
    sent = await publish(client, range(5))
    time_between = datetime.now(UTC)
    while time.time() <= time_between.timestamp() + 0.05:
        await asyncio.sleep(0.01)
    sent += await publish(client, range(5, 8))

    async def sequences(*options: str) -> list[int]:
        lines = await run(server, *subscriber, *options)
        events = [line for line in lines if "sequence" in line]
        assert all(line["subject"] == "evt.v1.dispatcher.job-progressed.ctr" for line in events)
        assert all(line["id"] == f"dispatcher:{line['data']['samples_done']}:0" for line in events)
        return [line["sequence"] for line in events]

    assert await sequences() == sent
    assert await sequences("--from-sequence", str(sent[3])) == sent[3:]
    assert await sequences("--since", time_between.isoformat().replace("+00:00", "Z")) == sent[5:]


@pytest.mark.parametrize("since", ["2026-11-22", "2026-11-22T10:00:00", "2026-13-22T10:00:00Z", "Nov 22 2026"])
async def test_a_time_that_the_server_would_not_read_is_told_with_one_that_it_does(
    server: EmbeddedServer, since: str
) -> None:
    command, text = node(), "not a time with a zone as in 2026-11-22T10:00:00Z"
    with pytest.raises(AssertionError, match=f"--since {since}: {text}"):
        await run(server, *command, "--since", since)


async def test_with_a_name_it_goes_on_where_it_was(
    server: EmbeddedServer, client: Client, subscriber: list[str]
) -> None:
    for numbers in (range(3), range(3, 7)):
        sent = await publish(client, numbers)
        lines = await run(server, *subscriber, "--durable", "my-tool")
        assert [line["sequence"] for line in lines if "sequence" in line] == sent


async def test_the_command_line_of_nats_that_is_told_runs(server: EmbeddedServer, client: Client) -> None:
    if shutil.which("nats") is None:
        pytest.skip("the command nats (github.com/nats-io/natscli) is not on the PATH")
    sent = await publish(client, range(4))
    text = (PROTO / "subscribers" / "README.md").read_text()
    (line,) = re.findall(r"^nats (.* --start-sequence) \d+$", text, re.MULTILINE)
    told = line.replace("nats://127.0.0.1:4222", server.url).replace("'", "")
    told = told.replace("external/bus.creds", str(server.login("external").credentials))
    process = await asyncio.create_subprocess_exec(
        "nats", *told.split(), str(sent[1]), "--count", "3", stdout=asyncio.subprocess.PIPE, env={**os.environ}
    )
    async with asyncio.timeout(LIMIT_S):
        out, _ = await process.communicate()
    assert out.decode().count("evt.v1.dispatcher.job-progressed.ctr") == 3

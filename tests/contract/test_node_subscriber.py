"""A subscriber in another language receives every event and validates it against proto/."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import stretto_wire as wire
from stretto_bus import Client
from stretto_installation.provision import provision
from stretto_installation.server import EmbeddedServer
from stretto_messages.base import example_of
from stretto_messages.dispatcher import JobProgressed
from stretto_messages.profiler import StragglerDetected
from stretto_messages.scenario import NOW_S
from stretto_wire.contract.cloudevents import headers_of

from tests.contract.subscriber import SubscriberUnavailable, install, validate_run

EVENTS = [channel for channel in wire.CHANNELS if channel.kind == "evt"]


@pytest.fixture(scope="module", autouse=True)
def subscriber() -> None:
    try:
        install()
    except SubscriberUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(tmp_path)
    await server.start()
    yield server
    server.stop()


@pytest.fixture
def bus(server: EmbeddedServer) -> tuple[str, Path]:
    assert server.keys is not None
    return server.url, server.keys.credentials("operator")


@pytest.fixture
async def client(server: EmbeddedServer) -> AsyncIterator[Client]:
    """Writes as the system does, into the streams that it provisions."""
    client = await Client.connect(server.url, server.login(), name="contract")
    await provision(client.bus)
    yield client
    await client.close()


async def test_every_event_is_received_and_valid(bus: tuple[str, Path], client: Client) -> None:
    for number, channel in enumerate(EVENTS):
        await client.publish(example_of(channel.message))
        await _store(client, f"tel.v1.ps.ps-0.job-{number}", b"no event", {})
    summary = validate_run(*bus, idle_s=0.5)
    assert summary["invalid"] == []
    assert summary["types"] == {channel.type_name: 1 for channel in EVENTS}
    assert summary["events"] == len(EVENTS)


async def _store(client: Client, subject: str, data: bytes, headers: dict[str, str]) -> None:
    await client.bus.store_surely(subject, data, {"Nats-Msg-Id": f"{subject}:{data!r}", **headers}, 10)


async def test_reading_ends_at_a_sequence(bus: tuple[str, Path], client: Client) -> None:
    for number in range(5):
        await client.publish(example_of(JobProgressed), f"dispatcher:{number}:0")
    summary = validate_run(*bus, until_sequence=3, idle_s=30)
    assert (summary["events"], summary["last_sequence"]) == (3, 3)


async def test_what_is_invalid_is_reported_with_its_reason(bus: tuple[str, Path], client: Client) -> None:
    message = example_of(StragglerDetected)
    subject = wire.subject_of(message)
    body = json.loads(wire.encode(message))
    headers = headers_of(message, "profiler:1:0", NOW_S)
    await _store(client, subject, json.dumps(body).encode(), headers)
    bad = [
        (headers, {**body, "slowdown": 0.5}, "/slowdown must be >= 1"),
        (headers, {**body, "pod": "server-1"}, "/pod must match pattern"),
        (headers, {key: body[key] for key in body if key != "pod"}, "must have required property 'pod'"),
        (headers, {**body, "job": "another"}, "job another is not the job of the subject"),
        ({**headers, "ce-type": "stretto.profiler.hot-ps-detected.v1"}, body, "is not the type of the subject"),
        ({**headers, "ce-subject": "another"}, body, "ce-subject is not the job"),
        ({**headers, "ce-time": "yesterday"}, body, "/ce-time must match format"),
        ({**headers, "traceparent": "00-1-1-1"}, body, "/traceparent must match pattern"),
        ({"Nats-Msg-Id": "x"}, body, "must have required property 'ce-specversion'"),
    ]
    for number, (changed, wrong, _) in enumerate(bad):
        unique = {**changed, "Nats-Msg-Id": f"profiler:bad:{number}"}
        unique.update({"ce-id": unique["Nats-Msg-Id"]} if "ce-id" in changed else {})
        await _store(client, subject, json.dumps(wrong).encode(), unique)
    await _store(client, subject, b"{not json", {**headers, "Nats-Msg-Id": "y", "ce-id": "y"})
    await _store(client, subject, wire.encode(message), {**headers, "Nats-Msg-Id": "z"})
    reasons = [*(reason for *_, reason in bad), "the body is not JSON", "ce-id is not the Nats-Msg-Id"]

    summary = validate_run(*bus, idle_s=0.5)
    assert summary["events"] == len(reasons) + 1
    assert summary["invalid_total"] == len(reasons)
    for number, (found, reason) in enumerate(zip(summary["invalid"], reasons, strict=True)):
        assert reason in found["reason"]
        assert found["sequence"] == number + 2
        assert found["subject"].endswith(subject)


def test_a_server_without_the_stream_is_an_error(bus: tuple[str, Path]) -> None:
    with pytest.raises(RuntimeError, match="cannot read STRETTO"):
        validate_run(*bus, idle_s=0.5)

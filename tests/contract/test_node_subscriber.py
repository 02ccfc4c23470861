"""A reader in another language receives every event and finds it to be what proto/ says."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
import stretto_wire as wire
from nats.js import JetStreamContext
from nats.js.api import StreamConfig, SubjectTransform
from stretto_wire.cloudevents import headers_of
from stretto_wire.examples import EXAMPLES, NOW_S

from tests.contract.subscriber import SubscriberUnavailable, install, validate_run

EVENTS = [channel for channel in wire.CHANNELS if channel.kind == "evt"]
CONFIG = """
host: 127.0.0.1
port: -1
ports_file_dir: "%s"
jetstream { store_dir: "%s/store" }
authorization { user: reader, password: "p@ss/word" }
"""


@pytest.fixture(scope="module", autouse=True)
def subscriber() -> None:
    try:
        install()
    except SubscriberUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def nats_url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "server.conf").write_text(CONFIG % (tmp_path, tmp_path))
    program = Path(sys.executable).parent / "nats-server"
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen([program, "-c", tmp_path / "server.conf"], stdout=log, stderr=log)
    try:
        yield _address(tmp_path).replace("nats://", "nats://reader:p%40ss%2Fword@")
    finally:
        server.terminate()
        server.wait(10)


def _address(folder: Path) -> str:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for ports in folder.glob("*.ports"):
            if text := ports.read_text():
                return json.loads(text)["nats"][0]
        time.sleep(0.02)
    raise AssertionError((folder / "log").read_text())


@pytest.fixture
async def stream(nats_url: str) -> AsyncIterator[JetStreamContext]:
    """The stream as the system has it: subjects of every kind, with the partition in front."""
    host = nats_url.split("@")[1]
    client = await nats.connect(f"nats://{host}", user="reader", password="p@ss/word")
    context = client.jetstream()
    transform = SubjectTransform(src=wire.PATTERN_OF_STREAM, dest=wire.STORED_AS)
    await context.add_stream(
        StreamConfig(name=wire.STREAM, subjects=[*wire.SUBJECTS_OF_STREAM], subject_transform=transform)
    )
    yield context
    await client.close()


async def _publish(stream: JetStreamContext, message: wire.Message, number: int) -> None:
    headers = headers_of(message, f"{wire.channel_of(message).service}:{number}:0", NOW_S)
    await stream.publish(wire.subject_of(message), wire.encode(message), headers=headers)


async def test_every_event_is_received_and_valid(nats_url: str, stream: JetStreamContext) -> None:
    for number, channel in enumerate(EVENTS):
        await _publish(stream, EXAMPLES[channel.message], number)
        await stream.publish(f"tel.v1.ps.ps-0.job-{number}", b"no event")
    summary = validate_run(nats_url, idle_s=0.5)
    assert summary["invalid"] == []
    assert summary["types"] == {channel.type_name: 1 for channel in EVENTS}
    assert summary["events"] == len(EVENTS)


async def test_reading_ends_at_a_sequence(nats_url: str, stream: JetStreamContext) -> None:
    for number in range(5):
        await _publish(stream, EXAMPLES[wire.JobProgressed], number)
    summary = validate_run(nats_url, until_sequence=3, idle_s=30)
    assert (summary["events"], summary["last_sequence"]) == (3, 3)


async def test_what_is_invalid_is_reported_with_its_reason(nats_url: str, stream: JetStreamContext) -> None:
    message = EXAMPLES[wire.StragglerDetected]
    subject = wire.subject_of(message)
    body = json.loads(wire.encode(message))
    headers = headers_of(message, "profiler:1:0", NOW_S)
    await stream.publish(subject, json.dumps(body).encode(), headers=headers)
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
        await stream.publish(subject, json.dumps(wrong).encode(), headers=unique)
    await stream.publish(subject, b"{not json", headers={**headers, "Nats-Msg-Id": "y", "ce-id": "y"})
    await stream.publish(subject, wire.encode(message), headers={**headers, "Nats-Msg-Id": "z"})
    reasons = [*(reason for *_, reason in bad), "the body is not JSON", "ce-id is not the Nats-Msg-Id"]

    summary = validate_run(nats_url, idle_s=0.5)
    assert summary["events"] == len(reasons) + 1
    assert summary["invalid_total"] == len(reasons)
    for number, (found, reason) in enumerate(zip(summary["invalid"], reasons, strict=True)):
        assert reason in found["reason"]
        assert found["sequence"] == number + 2
        assert found["subject"].endswith(subject)


def test_a_server_without_the_stream_is_an_error(nats_url: str) -> None:
    with pytest.raises(RuntimeError, match="cannot read STRETTO"):
        validate_run(nats_url, idle_s=0.5)

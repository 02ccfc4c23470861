"""Bad requests (malformed, too large, unknown job, replaced pod) get a reason and harm nobody else.

A real server and a real dispatcher; bodies are generated.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stretto_wire as wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stretto_dispatcher.service import Dispatcher
from stretto_dispatcher.settings import DispatcherSettings
from stretto_messages.actuator import PodExited
from stretto_messages.base import MAX_MESSAGE_BYTES, example_of
from stretto_messages.dispatcher import NextShard, NextShardReply, ReleaseShard, ShardHeartbeat
from stretto_messages.refusals import ERROR_HEADER, Refused

from tests.contract.driven_service import DrivenService, is_of_the_wire

JOB = "bad-input"
RPCS = [channel for channel in wire.CHANNELS if channel.kind == "rpc" and channel.service == "dispatcher"]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.text(max_size=30),
    st.just("x" * 3000),
    st.lists(st.integers(), max_size=2),
)
BOUNDED = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Ledger(DrivenService):
    """A dispatcher with one job."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Dispatcher, DispatcherSettings)
        self._serial = 0
        self.do(self._submit())

    async def _submit(self) -> None:
        document = {"name": JOB, "model": {"entry": "a:B"}, "dataset": {"samples": 10**9}}
        await self.client.publish(wire.JobSubmitted(job=JOB, spec=wire.JobSpec.parse(document)))
        while (await self.next("worker-0")).answer == "unknown":
            await asyncio.sleep(0.05)

    async def next(self, pod: str, job: str = JOB) -> NextShardReply:
        self._serial += 1
        request = NextShard(job=job, pod=pod, request_id=f"{pod}:{self._serial}")
        return await self.client.call(request, timeout_s=60)

    def ask(self, channel: wire.Channel, body: bytes) -> dict[str, Any]:
        """The reply to raw bytes: as it is, or the refusal, which has to be of the wire's shape."""
        subject = f"rpc.v1.dispatcher.{channel.name}.{JOB}"
        message = self.do(self.client.bus.connection.request(subject, body, timeout=60))
        if (message.headers or {}).get(ERROR_HEADER):
            return {"refused": wire.decode(Refused, message.data).error}
        assert channel.reply is not None
        return {"reply": wire.decode(channel.reply, message.data)}


@pytest.fixture(scope="module")
def driven(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    driven = Ledger(tmp_path_factory.mktemp("driven"))
    yield driven
    driven.end()


@BOUNDED
@given(channel=st.sampled_from(RPCS), body=st.binary(max_size=200))
def test_bytes_that_are_no_request_are_refused(driven: Ledger, channel: wire.Channel, body: bytes) -> None:
    refused = driven.ask(channel, body)["refused"]
    assert refused.code == "invalid"
    assert refused.field
    assert refused.remedy


@BOUNDED
@given(channel=st.sampled_from(RPCS), value=VALUES, data=st.data())
def test_a_bad_field_is_refused_by_name(driven: Ledger, channel: wire.Channel, value: Any, data: st.DataObject) -> None:
    whole = {**json.loads(wire.encode(example_of(channel.message))), "job": JOB}
    name = data.draw(st.sampled_from(sorted(whole)))
    body = json.dumps({**whole, name: value}).encode()
    answer = driven.ask(channel, body)
    if is_of_the_wire(f"rpc.v1.dispatcher.{channel.name}.{JOB}", body):  # if strange, then for the ledger to judge
        assert "reply" in answer or answer["refused"].remedy
    else:
        assert answer["refused"].code == "invalid"
        assert answer["refused"].field.split(".")[0] == name
        assert answer["refused"].remedy


def test_too_large_a_request_is_refused(driven: Ledger) -> None:
    body = json.dumps({"job": JOB, "pod": "worker-0", "request_id": "r", "pad": "x" * MAX_MESSAGE_BYTES}).encode()
    refused = driven.ask(RPCS[0], body)["refused"]
    assert "bytes" in refused.value
    assert str(MAX_MESSAGE_BYTES) in refused.remedy


def test_a_body_of_another_job_is_refused(driven: Ledger) -> None:
    body = json.dumps({"job": "other", "pod": "worker-0", "request_id": "r"}).encode()
    refused = driven.ask(RPCS[0], body)["refused"]
    assert (refused.field, refused.value) == ("job", "other")


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(job=st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?\Z").filter(lambda job: job != JOB))
def test_an_unknown_job_is_told_apart(driven: Ledger, job: str) -> None:
    assert driven.do(driven.next("worker-0", job=job)).answer == "unknown"


def test_a_pod_that_has_exited_changes_nothing_more(driven: Ledger) -> None:
    lease = driven.do(driven.next("worker-5")).shard
    assert lease is not None
    exited = PodExited(job=JOB, pod="worker-5", role="worker", reason="killed", exit_code=-9)
    driven.do(driven.client.publish(exited))
    mine = {"job": JOB, "pod": "worker-5", "shard": lease.id, "attempt": lease.attempt}
    beat = ShardHeartbeat(**mine, offset=1, samples_per_s=1.0)

    async def refused() -> str:
        while (reply := await driven.client.call(beat)).answer == "ok":
            await asyncio.sleep(0.05)
        return reply.answer

    assert driven.do(refused()) == "unknown"
    assert driven.do(driven.client.call(ReleaseShard(**mine, offset=100))).answer == "unknown"
    assert driven.do(driven.next("worker-5")).answer == "unknown"
    again = driven.do(driven.next("worker-6")).shard
    assert again is not None
    assert (again.id, again.attempt, again.offset) == (lease.id, lease.attempt + 1, 0)
    taken = {**mine, "pod": "worker-6"}
    assert driven.do(driven.client.call(ReleaseShard(**taken, offset=100))).answer == "stale"


def _exit(**changes: str | None) -> bytes:
    """PodExited with a field changed, or (None) left out."""
    body = {"job": JOB, "pod": "worker-1", "role": "worker", "reason": "failed", "exit_code": 1, **changes}
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"\xff\xfe", "(document)"),
        (_exit(role=None), "role"),
        (_exit(job="elsewhere"), "job"),
        (_exit(reason="tired"), "reason"),
        (b'{"pad": "' + b"x" * MAX_MESSAGE_BYTES + b'"}', "(document)"),
    ],
    ids=["no text", "field absent", "other job", "unknown value", "too large"],
)
def test_an_event_that_is_none_is_set_aside_with_the_reason(driven: Ledger, body: bytes, field: str) -> None:
    subject = f"evt.v1.actuator.pod-exited.{JOB}"

    letter = driven.do(driven.set_aside(driven.do(driven.store(subject, body, f"bad:{hash(body)}"))))
    assert letter.subject.endswith(subject)
    assert letter.data == body
    assert letter.headers["reason"] == "refused"
    assert letter.headers["service"] == "dispatcher"
    assert letter.headers["error"].startswith(f"{field} = ")
    assert letter.headers["field"] == field
    assert letter.headers["remedy"]


def test_after_all_that_it_serves_as_before(driven: Ledger) -> None:
    assert driven.do(driven.next("worker-9")).answer == "shard"
    assert driven.faults() == []

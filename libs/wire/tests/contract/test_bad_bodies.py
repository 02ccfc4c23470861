"""Whatever arrives, the wire answers with a message or with a WireError that names field, value and remedy."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, replace
from functools import cache
from typing import Any

import pytest
import stretto_wire as wire
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from stretto_messages.base import CLUSTER, MAX_MESSAGE_BYTES, example_of
from stretto_messages.pods import WorkerReported
from stretto_wire.contract.schemas import message_schema, schema_name
from stretto_wire.contract.submission import SPEC
from stretto_wire.jobspec.schema import job_schema

PODS = {"worker": "worker-0", "ps": "ps-0", "pod": "ps-0"}

JOB = "ctr-ranking-42"
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
BAD = st.one_of(
    NESTED,
    st.sampled_from(
        [float("nan"), float("inf"), -1, 10**30, 10**4000, 1e308, "x" * 5000, "", "a\r\nb", "é\u202e", [[]]]
    ),
)
CHANNELS = st.sampled_from(wire.CHANNELS)


@cache
def _validator(channel: wire.Channel) -> Draft202012Validator:
    return Draft202012Validator(message_schema(channel.message, schema_name(channel)))


def _subject(channel: wire.Channel) -> str:
    return wire.subject_of(example_of(channel.message), PODS[channel.service] if channel.kind == "pod" else None)


def _body(channel: wire.Channel) -> dict[str, Any]:
    return json.loads(wire.encode(example_of(channel.message)))


def _leaves(node: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    parts = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path] + [leaf for key, part in parts for leaf in _leaves(part, (*path, key))]


def _replaced(node: Any, path: tuple[str | int, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = _replaced(node[path[0]], path[1:], value)  # type: ignore[index]
    return copy


def _refusal(subject: str, data: bytes) -> wire.WireError | None:
    """None when it was accepted. Any other exception than WireError fails the test by itself."""
    try:
        wire.parse(subject, data)
    except wire.WireError as error:
        return _well_formed(error)
    return None


def _well_formed(error: wire.WireError) -> wire.WireError:
    assert error.field
    assert error.value
    assert error.remedy
    assert str(error).isprintable()  # it goes into a header of the dead letter
    assert len(str(error)) < 1500
    return error


@given(CHANNELS, st.binary(max_size=300))
def test_random_bytes_are_refused(channel: wire.Channel, data: bytes) -> None:
    assert _refusal(_subject(channel), data)


@given(CHANNELS, st.data())
def test_truncated_bodies_are_refused(channel: wire.Channel, data: st.DataObject) -> None:
    body = wire.encode(example_of(channel.message))
    length = data.draw(st.integers(0, len(body) - 1))
    error = _refusal(_subject(channel), body[:length])
    assert error is not None
    assert "valid JSON" in error.remedy


@pytest.mark.proof
@settings(max_examples=300)
@given(CHANNELS, BAD, st.data())
def test_a_replaced_part_is_accepted_or_refused_with_its_name(
    channel: wire.Channel, value: Any, data: st.DataObject
) -> None:
    body = _body(channel)
    path = data.draw(st.sampled_from(_leaves(body)))
    changed = json.dumps(_replaced(body, path, value)).encode()
    refusal = _refusal(_subject(channel), changed)
    if refusal is None:  # then readers with nothing but the schema accept what is made of it, too
        encoded = wire.encode(wire.parse(_subject(channel), changed))
        _validator(channel).validate(json.loads(encoded))
    elif path:
        assert refusal.field.split(".")[0] == str(path[0])


@settings(max_examples=200)
@given(CHANNELS, st.sampled_from(["NaN", "Infinity", "-Infinity"]), st.data())
def test_numbers_that_are_none_are_refused_where_they_stand(
    channel: wire.Channel, number: str, data: st.DataObject
) -> None:
    body = _body(channel)
    numbers = [path for path in _leaves(body) if path and _is_number(_at(body, path))]
    if not numbers:
        return
    path = data.draw(st.sampled_from(numbers))
    refusal = _refusal(_subject(channel), json.dumps(_replaced(body, path, float(number))).encode())
    assert refusal is not None
    assert refusal.field.startswith(".".join(str(part) for part in path))


def _at(node: Any, path: tuple[str | int, ...]) -> Any:
    return node if not path else _at(node[path[0]], path[1:])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@given(CHANNELS, st.from_regex(r"\A[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?\Z").filter(lambda job: job != JOB))
def test_a_body_of_another_job_is_refused(channel: wire.Channel, job: str) -> None:
    refusal = _refusal(_subject(channel), json.dumps({**_body(channel), "job": job}).encode())
    assert refusal is not None
    assert (refusal.field, refusal.value.strip('"')) == ("job", job)  # text that looks like a number may have quotes
    own = example_of(channel.message).job
    assert own in refusal.remedy or own == CLUSTER


@pytest.mark.parametrize("pod", ["worker-1", "ps-0", "data-0"])
def test_telemetry_of_another_pod_or_role_is_refused(pod: str) -> None:
    report = replace(example_of(WorkerReported), pod=pod)
    refusal = _refusal(f"tel.v1.worker.worker-0.{JOB}", wire.encode(report))
    assert refusal is not None
    assert refusal.field == "pod"
    if not pod.startswith("worker"):
        assert _refusal(f"tel.v1.worker.{pod}.{JOB}", wire.encode(report))


@given(CHANNELS, st.integers(1, 4000))
def test_oversized_bodies_are_refused_before_they_are_read(channel: wire.Channel, extra: int) -> None:
    body = wire.encode(example_of(channel.message))
    padded = body + b" " * (MAX_MESSAGE_BYTES - len(body) + extra)
    refusal = _refusal(_subject(channel), padded)
    assert refusal is not None
    assert refusal.value == f"{MAX_MESSAGE_BYTES + extra} bytes"
    assert _refusal(_subject(channel), padded[:MAX_MESSAGE_BYTES]) is None


def _required(channel: wire.Channel) -> list[str]:
    own = fields(channel.message)
    return [field.name for field in own if field.default is MISSING and field.default_factory is MISSING]


@given(CHANNELS.filter(lambda channel: bool(_required(channel))), st.data())
def test_a_missing_required_field_is_named(channel: wire.Channel, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(_required(channel)))
    body = {key: value for key, value in _body(channel).items() if key != name}
    refusal = _refusal(_subject(channel), json.dumps(body).encode())
    assert refusal is not None
    assert (refusal.field, refusal.value) == (name, "absent")


@given(
    st.text(max_size=60) | st.lists(st.sampled_from(["evt", "v1", "rpc", "tel", "3", "*", ">", "", JOB])).map(".".join)
)
def test_unknown_subjects_are_refused(subject: str) -> None:
    refusal = _refusal(subject, b"{}")
    assert refusal is not None
    assert refusal.field == "subject"


@settings(max_examples=200)
@given(
    NESTED | st.dictionaries(st.sampled_from([*wire.JobSpec.model_fields, "nme"]), NESTED | BAD, max_size=5), st.data()
)
def test_a_job_file_is_accepted_or_refused_with_its_field(document: Any, data: st.DataObject) -> None:
    whole = SPEC.model_dump(mode="json")
    if data.draw(st.booleans()):
        document = _replaced(whole, data.draw(st.sampled_from(_leaves(whole))), document)
    try:
        spec = wire.JobSpec.parse(document)
    except wire.WireError as error:
        _well_formed(error)
        return
    # what was accepted fits the schema that editors check it with, can be sent, and is read back as it was
    Draft202012Validator(job_schema()).validate(document)
    assert wire.JobSpec.parse(json.loads(spec.model_dump_json())) == spec

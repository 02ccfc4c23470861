"""Every message of the registry: it survives the wire, fits its schema and finds its subject again."""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass, replace
from typing import get_type_hints

import pytest
import stretto_wire as wire
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from stretto_messages.base import Message, example_of
from stretto_messages.checkpoints import CheckpointRestored
from stretto_messages.pods import PodPing
from stretto_messages.scenario import PLAN
from stretto_wire.contract.cloudevents import example_headers, headers_schema
from stretto_wire.contract.schemas import message_schema, schema_name
from stretto_wire.contract.submission import SPEC, JobSubmitted
from stretto_wire.jobspec.schema import job_schema

PODS = {"worker": "worker-0", "ps": "ps-0", "pod": "ps-0"}

TYPES = [(channel, kind) for channel in wire.CHANNELS for kind in (channel.message, channel.reply) if kind is not None]
CHANNELS = pytest.mark.parametrize("channel", wire.CHANNELS, ids=lambda channel: channel.message.__name__)


@pytest.mark.parametrize(("channel", "message_type"), TYPES, ids=[kind.__name__ for _, kind in TYPES])
class TestEveryMessage:
    def test_survives_the_wire(self, channel: wire.Channel, message_type: type[Message]) -> None:
        message = example_of(message_type)
        assert wire.decode(message_type, wire.encode(message)) == message

    def test_fits_its_schema(self, channel: wire.Channel, message_type: type[Message]) -> None:
        schema = message_schema(message_type, schema_name(channel, reply=message_type is channel.reply))
        Draft202012Validator.check_schema(schema)
        Draft202012Validator(schema).validate(json.loads(wire.encode(example_of(message_type))))

    def test_tolerates_fields_of_a_newer_writer_at_any_depth(
        self, channel: wire.Channel, message_type: type[Message]
    ) -> None:
        body = _with_unknown_fields(json.loads(wire.encode(example_of(message_type))), message_type)
        schema = message_schema(message_type, schema_name(channel))
        assert wire.decode(message_type, json.dumps(body).encode()) == example_of(message_type)
        Draft202012Validator(schema).validate(body)

    def test_says_what_it_is(self, channel: wire.Channel, message_type: type[Message]) -> None:
        assert len(message_type.__doc__ or "") > 10


def _with_unknown_fields(body: dict, message_type: type[Message]) -> dict:
    """Add a field to every object that is a model; in a dictionary of free names it would be an entry."""
    fields = get_type_hints(message_type)
    changed = {"from_tomorrow": {"nested": [1, None]}}
    for name, value in body.items():
        inner = _model_of(fields[name])
        if inner and isinstance(value, dict):
            value = _with_unknown_fields(value, inner)
        elif inner and isinstance(value, list):
            value = [_with_unknown_fields(item, inner) for item in value]
        changed[name] = value
    return changed


def _model_of(annotation):
    if isinstance(annotation, type) and (is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        return annotation
    found = [_model_of(part) for part in getattr(annotation, "__args__", ()) if part is not str]
    return next((model for model in found if model), None)


@CHANNELS
def test_subject_and_parse_are_inverse(channel: wire.Channel) -> None:
    message = example_of(channel.message)
    pod = PODS[channel.service] if channel.kind == "pod" else None
    subject = wire.subject_of(message, pod)
    assert wire.channel_at(subject) is channel
    assert wire.parse(subject, wire.encode(message)) == message
    assert all(
        wanted in ("*", token) for wanted, token in zip(channel.pattern.split("."), subject.split("."), strict=True)
    )


@pytest.mark.parametrize(
    "channel", [channel for channel in wire.CHANNELS if channel.kind != "pod"], ids=lambda channel: channel.name
)
def test_stored_subjects_are_understood(channel: wire.Channel) -> None:
    message = example_of(channel.message)
    subject = wire.subject_of(message)
    assert wire.parse(f"{wire.partition_of(message.job)}.{subject}", wire.encode(message)) == message
    if channel.kind == "rpc":
        head, job = subject.rsplit(".", 1)
        mapped = f"{head}.{wire.partition_of(job)}.{job}"
        assert wire.parse(mapped, wire.encode(message)) == message


def test_subjects_and_types_are_unique() -> None:
    assert len({channel.pattern for channel in wire.CHANNELS}) == len(wire.CHANNELS)
    assert len({channel.type_name for channel in wire.CHANNELS}) == len(wire.CHANNELS)
    assert len({kind for _, kind in TYPES}) == len(TYPES)


@CHANNELS
def test_event_headers_fit_their_schema(channel: wire.Channel) -> None:
    headers = example_headers(channel, example_of(channel.message))
    Draft202012Validator(headers_schema()).validate(headers)
    assert headers.get("Nats-Msg-Id", headers["ce-id"]) == headers["ce-id"]
    assert headers["ce-type"] == channel.type_name


def test_a_request_needs_a_pod_that_is_one_token() -> None:
    for pod in (None, "", "ps-0.>", "*", "ps-0\n", "server-1"):
        with pytest.raises(wire.WireError, match="such as ps-0"):
            wire.subject_of(PodPing(job="a"), pod)


def test_what_is_too_large_for_readers_is_not_sent() -> None:
    spec = SPEC.model_copy(update={"environment": {f"NAME_{n}": "x" * 4000 for n in range(70)}})
    message = replace(example_of(JobSubmitted), spec=spec)
    with pytest.raises(wire.WireError, match="at most 262144 bytes"):
        wire.encode(message)


def test_the_largest_checkpoint_restored_can_be_sent() -> None:
    """The ledger within it is the largest bounded text; escapes may double it and no more is to be promised."""
    ledger = "x" * 200_000
    assert len(wire.encode(replace(example_of(CheckpointRestored), ledger=ledger))) < 256 * 1024


class TestJobSpec:
    def test_the_example_fits_the_schema_for_users(self) -> None:
        Draft202012Validator.check_schema(job_schema())
        Draft202012Validator(job_schema()).validate(SPEC.model_dump(mode="json"))

    def test_only_three_fields_have_to_be_stated(self) -> None:
        document = {"name": "a", "model": {"entry": "m:x"}, "dataset": {"samples": 5}}
        Draft202012Validator(job_schema()).validate(document)
        assert wire.JobSpec.parse(document).samples_total == 5

    @pytest.mark.parametrize("program", [{}, {"level": 2}, {"level": 2, "resize": "restart"}, {"resize": "none"}])
    def test_a_program_takes_the_place_of_a_model(self, program: dict) -> None:
        document = {
            "name": "a",
            "program": {"command": ["a"], **program},
            "dataset": {"samples": 640, "batch_size": 64},
        }
        alone = {"resources": {"workers": {"count": {"max": 1}}}}
        Draft202012Validator(job_schema()).validate(document)
        wire.JobSpec.parse({**document, **alone})

    @pytest.mark.parametrize(("field", "value"), [("level", 3), ("resize", "never")])
    def test_what_is_refused_of_a_program_is_told_what_a_job_file_may_state(self, field: str, value: object) -> None:
        document = {"name": "a", "program": {"command": ["a"], field: value}}
        assert list(Draft202012Validator(job_schema()).iter_errors(document))
        with pytest.raises(wire.WireError, match=rf"program\.{field} = {value}: one of .*(2|restart)\b"):
            wire.JobSpec.parse(document)

    @pytest.mark.parametrize(
        ("size", "expected"),
        [("1Gi", 2**30), ("512Mi", 2**29), ("1.5G", 1_500_000_000), ("2GiB", 2**31), (2**30, 2**30)],
    )
    def test_sizes(self, size: object, expected: int) -> None:
        document = _job(resources={"ps": {"memory": {"min": size}}})
        Draft202012Validator(job_schema()).validate(document)
        assert wire.JobSpec.parse(document).resources.ps.memory.min == expected

    @pytest.mark.parametrize(
        ("part", "field"),
        [
            ({"lerning_rate": 1}, "lerning_rate"),
            ({"resources": {"worker": {}}}, "resources.worker"),
            ({"checkpoint": {"every": 5}}, "checkpoint.every"),
            ({"resources": {"initial": {**asdict(PLAN), "gpus": 1}}}, "resources.initial.gpus"),
        ],
    )
    def test_unknown_fields_are_refused(self, part: dict, field: str) -> None:
        assert list(Draft202012Validator(job_schema()).iter_errors(_job(**part)))
        with pytest.raises(wire.WireError) as caught:
            wire.JobSpec.parse(_job(**part))
        assert caught.value.field == field

    @pytest.mark.parametrize(
        ("part", "field"),
        [
            ({"name": "Not A Label"}, "name"),
            ({"priority": float("nan")}, "priority"),
            ({"priority": "high"}, "priority"),
            ({"evaluate": 10**5000}, "evaluate"),
            ({"resources": {"workers": {"count": {"min": 5, "max": 2}}}}, "resources.workers.count"),
            ({"resources": {"ps": {"memory": {"max": "plenty"}}}}, "resources.ps.memory.max"),
            ({"resources": {"ps": {"spill": "always"}}}, "resources.ps.spill"),
            ({"resources": {"ps": {"spill": "never", "spill_limit": "1Gi"}}}, "resources.ps"),
            ({"resources": {"fixed": True}}, "resources"),
            ({"environment": {"A B": "x"}}, "environment.A B"),
            ({"model": {"entry": "no colon"}}, "model.entry"),
            ({"dataset": {"samples": 0}}, "dataset.samples"),
        ],
    )
    def test_refusals_name_the_field(self, part: dict, field: str) -> None:
        with pytest.raises(wire.WireError) as caught:
            wire.JobSpec.parse(_job(**part))
        assert caught.value.field == field
        assert caught.value.remedy
        assert caught.value.value


def _job(**parts: object) -> dict:
    return {"name": "a", "model": {"entry": "m:x"}, "dataset": {"samples": 5}, **parts}

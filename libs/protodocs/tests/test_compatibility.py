"""Each kind of break of v1 is caught, by message, field and remedy; an added optional field is none."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from annotated_types import MaxLen
from hypothesis import given
from hypothesis import strategies as st
from stretto_messages.actuator import PodExited
from stretto_messages.base import Message
from stretto_protodocs.compatibility import Break, breaks
from stretto_protodocs.documents import baseline, files
from stretto_wire.contract.schemas import message_schema

BASELINE = baseline()
Schema = dict[str, Any]


def _found(message: str, change: Callable[[Schema], object]) -> list[Break]:
    """Return the report about ``change`` in the entry of a message."""
    promised, changed = _alone(message)
    change(changed["messages"][message])
    return breaks(promised, changed)


def _alone(message: str) -> tuple[Schema, Schema]:
    """A baseline of one message, and a copy of it to be changed."""
    promised = {"messages": {message: BASELINE["messages"][message]}}
    return promised, deepcopy(promised)


def _fields(entry: Schema, definition: str | None = None) -> Schema:
    schema = entry["schema"]
    return (schema["$defs"][definition] if definition else schema)["properties"]


EVENT, TELEMETRY, REQUEST, REPLY, JOB = (
    "evt.actuator.pod-exited",
    "tel.ps.reported",
    "rpc.dispatcher.release-shard",
    "rpc.dispatcher.release-shard.reply",
    "job",
)


def test_no_change_is_no_break() -> None:
    assert breaks(BASELINE, deepcopy(BASELINE)) == []


def test_a_removed_message_is_a_break() -> None:
    changed = {"messages": {key: value for key, value in BASELINE["messages"].items() if key != EVENT}}
    assert [str(each) for each in breaks(BASELINE, changed)] == [
        "evt.actuator.pod-exited: (message) was removed or renamed; "
        "restore it; keep v1 as it is and add a v2 channel beside it"
    ]


def test_a_new_message_is_none() -> None:
    assert breaks({"messages": {EVENT: BASELINE["messages"][EVENT]}}, BASELINE) == []


@pytest.mark.parametrize(
    ("message", "change", "field", "words"),
    [
        (EVENT, lambda m: m.update(subject="evt.v1.actuator.pod-gone.*"), "(subject)", "pod-gone"),
        (EVENT, lambda m: m.update(type="stretto.actuator.pod-gone.v1"), "(type)", "pod-gone"),
        (EVENT, lambda m: _fields(m).pop("detail"), "detail", "was removed"),
        (EVENT, lambda m: _fields(m)["pod"].update(type="integer"), "pod", "from string to integer"),
        (EVENT, lambda m: _fields(m)["reason"]["enum"].append("bored"), "reason", "new value bored"),
        (EVENT, lambda m: _fields(m)["reason"]["enum"].remove("oom-killed"), "reason", "lost the value oom-killed"),
        (EVENT, lambda m: m["schema"]["required"].remove("pod"), "pod", "may now be absent"),
        (EVENT, lambda m: m["schema"]["required"].append("detail"), "detail", "now required"),
        (EVENT, lambda m: _fields(m)["pod"].update(pattern="^.*$"), "pod", "changed its pattern"),
        (EVENT, lambda m: _fields(m)["detail"].update(default="none"), "detail", "changed its default"),
        (EVENT, lambda m: _fields(m)["exit_code"]["anyOf"].pop(), "exit_code", "no longer be of type null"),
        (EVENT, lambda m: _fields(m)["pod"].update(anyOf=[{"type": "null"}, {"type": "string"}]), "pod", "type null"),
        (TELEMETRY, lambda m: _unit(m, "update_time_s", "update_time_ms"), "update_time_s", "unit, to update_time_ms"),
        (TELEMETRY, lambda m: _fields(m)["updates"].update(type="number"), "updates", "may now be a fraction"),
        (TELEMETRY, lambda m: _fields(m)["window_s"].update(type="integer"), "window_s", "no longer be a fraction"),
        (TELEMETRY, lambda m: _fields(m)["buckets"].update(maximum=512), "buckets", "maximum from 1024 to 512"),
        (TELEMETRY, lambda m: _fields(m)["buckets"].update(maximum=2048), "buckets", "maximum from 1024 to 2048"),
        (TELEMETRY, lambda m: _fields(m)["buckets"].update(minimum=1), "buckets", "minimum from 0 to 1"),
        (TELEMETRY, lambda m: _required(m, "queue"), "queue", "new and required"),
        (REQUEST, lambda m: _required(m, "lease"), "lease", "new and required"),
        (REQUEST, lambda m: _fields(m)["pod"].update(maxLength=8), "pod", "maxLength from None to 8"),
        (REQUEST, lambda m: _fields(m).pop("failure"), "failure", "was removed"),
        (REPLY, lambda m: _fields(m)["answer"]["enum"].append("later"), "answer", "new value later"),
        (REPLY, lambda m: m["schema"]["required"].remove("answer"), "answer", "may now be absent"),
        (JOB, lambda m: _rules(m).remove("adam"), "model.optimizer", "lost"),
        (JOB, lambda m: _fields(m, "DatasetSpec").pop("seed"), "dataset.seed", "was removed"),
        (JOB, lambda m: _fields(m, "CheckpointSpec")["keep"].update(default=1), "checkpoint.keep", "from 2 to 1"),
        (JOB, lambda m: _fields(m, "RestartSpec")["shard_failures"].update(maximum=5), "restarts.shard_failures", "5"),
    ],
)  # fmt: skip
def test_each_kind_of_break_is_named(message: str, change: Callable[[Schema], object], field: str, words: str) -> None:
    found = [each for each in _found(message, change) if each.field == field]
    assert found, "not caught"
    assert found[0].message == message
    assert words in found[0].change
    assert found[0].remedy
    assert f"{message}: {field} " in str(found[0])


def _rules(entry: Schema) -> list[str]:
    """Return the names that an update rule may have; it may also be a mapping."""
    return _fields(entry, "ModelSpec")["optimizer"]["anyOf"][0]["enum"]


def _unit(entry: Schema, name: str, other: str) -> None:
    _fields(entry)[other] = _fields(entry).pop(name)


def _required(entry: Schema, name: str) -> None:
    _fields(entry)[name] = {"type": "string"}
    entry["schema"]["required"].append(name)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (REQUEST, lambda m: _fields(m)["attempt"].update(minimum=0)),  # the answering side is upgraded first
        (REPLY, lambda m: _fields(m)["answer"]["enum"].remove("unknown")),  # the caller is upgraded last
        (REPLY, lambda m: _required(m, "since_s")),
        (JOB, lambda m: _rules(m).append("ftrl")),
        (JOB, lambda m: _fields(m, "DatasetSpec").update(format={"type": "string", "default": "tsv"})),
        (EVENT, lambda m: _fields(m)["reason"].update(description="said better")),
        (EVENT, lambda m: m["schema"]["required"].sort()),
    ],
)
def test_what_no_reader_of_v1_notices_is_no_break(message: str, change: Callable[[Schema], object]) -> None:
    assert _found(message, change) == []


def _objects(node: Any) -> list[Schema]:
    """Every object schema that has named fields."""
    parts = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    inner = [each for part in parts for each in _objects(part)]
    return [node, *inner] if isinstance(node, dict) and isinstance(node.get("properties"), dict) else inner


MESSAGES = st.sampled_from(sorted(BASELINE["messages"]))


@given(MESSAGES, st.data())
def test_an_optional_field_may_be_added_anywhere(message: str, data: st.DataObject) -> None:
    promised, changed = _alone(message)
    objects = _objects(changed["messages"][message]["schema"])
    added = {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}
    data.draw(st.sampled_from(objects))["properties"]["from_tomorrow_s"] = added
    assert breaks(promised, changed) == []


@given(MESSAGES, st.data())
def test_no_field_of_any_message_can_be_removed(message: str, data: st.DataObject) -> None:
    promised, changed = _alone(message)
    candidates = [each for each in _objects(changed["messages"][message]["schema"]) if each["properties"]]
    properties = data.draw(st.sampled_from(candidates))["properties"]
    name = data.draw(st.sampled_from(sorted(properties)))
    del properties[name]
    found = breaks(promised, changed)
    assert found
    assert all(each.message == message for each in found)
    assert any(each.field.endswith(name) and "removed" in each.change for each in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grown(PodExited):
    """With an optional field, as a developer would add it."""

    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tightened(PodExited):
    """With a required field and a smaller text."""

    node: str
    detail: Annotated[str, MaxLen(100)] = ""


def test_models_are_compared_as_they_are_written() -> None:
    def changed(message_type: type[Message]) -> Callable[[Schema], object]:
        return lambda entry: entry.update(schema=message_schema(message_type, "evt.actuator.pod-exited.v1.json"))

    assert _found(EVENT, changed(Grown)) == []
    assert {each.field for each in _found(EVENT, changed(Tightened))} == {"node", "detail"}


def test_an_optional_field_of_a_nested_specification_is_no_break_of_the_event_with_it() -> None:
    """Its default object then has one more name: that alone changes nothing for readers."""

    def change(entry: Schema) -> None:
        _fields(entry, "CheckpointSpec")["codec"] = {"type": "string", "default": "zstd"}
        _fields(entry)["spec"] = {"$ref": "#/$defs/JobSpec"}
        _fields(entry, "JobSpec")["checkpoint"]["default"]["codec"] = "zstd"

    assert _found("evt.gateway.job-submitted", change) == []


def test_something_else_than_a_baseline_is_refused() -> None:
    with pytest.raises(ValueError, match="not a baseline"):
        breaks({}, BASELINE)


def test_the_baseline_is_among_the_documents() -> None:
    assert "compatibility/v1.json" in files()

"""The runtime provisions exactly the streams that the documents describe."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import stretto_wire as wire
import yaml
from stretto_installation.provision import REPORT_BYTES_MAX, streams
from stretto_messages.base import MAX_MESSAGE_BYTES, example_of
from stretto_messages.pods import PsReported, WorkerReported
from stretto_wire.codec import document_of
from stretto_wire.contract.cloudevents import headers_of

PROTO = Path(__file__).parents[2] / "proto"


def test_provisioned_streams_are_those_of_the_asyncapi_document() -> None:
    told = yaml.safe_load((PROTO / "asyncapi.yaml").read_text())["x-jetstream"]["streams"]
    made = {each["name"]: each for each in streams()}
    for name, stream in told.items():
        assert made[name]["subjects"] == stream["subjects"]
        assert made[name]["max_age"] == stream["kept_s"] * 10**9
    for name in (wire.STREAM, wire.TELEMETRY):
        transform = told[name]["subject_transform"]
        assert made[name]["subject_transform"] == {"src": transform["source"], "dest": transform["destination"]}
    assert made[wire.TELEMETRY]["max_msgs_per_subject"] == told[wire.TELEMETRY]["kept_per_subject"]


def test_every_message_that_may_be_sent_fits_into_the_stream() -> None:
    """Reports have bounded numbers and one name only: the largest that can be made fits with its headers."""
    facts = [each for each in streams() if each["name"] != wire.TELEMETRY]
    assert all(each.get("max_msg_size", 2**20) >= MAX_MESSAGE_BYTES for each in facts)
    for kind in (WorkerReported, PsReported):
        report = example_of(kind)
        longest = {each.name: "x" * 63 if each.name == "job" else 10**15 for each in fields(report)}
        shown = {name: 63 * "9" if name == "pod" else value for name, value in longest.items()}
        body = json.dumps(document_of(report) | {name: v for name, v in shown.items() if name != "times"})
        headers = headers_of(report, "x" * 200, 0.0, "worker", "00-" + "a" * 200)
        assert len(body) + sum(len(name) + len(value) + 4 for name, value in headers.items()) < REPORT_BYTES_MAX / 4

"""The runtime provisions exactly the streams that the documents describe."""

from __future__ import annotations

from pathlib import Path

import stretto_wire as wire
import yaml
from stretto_messages.base import MAX_MESSAGE_BYTES
from stretto_runtime.access.provision import streams

PROTO = Path(__file__).parents[2] / "proto"


def test_provisioned_streams_are_those_of_the_asyncapi_document() -> None:
    told = yaml.safe_load((PROTO / "asyncapi.yaml").read_text())["x-jetstream"]["streams"]
    made = {each["name"]: each for each in streams()}
    for name, stream in told.items():
        assert made[name]["subjects"] == stream["subjects"]
        assert made[name]["max_age"] == stream["kept_s"] * 10**9
    transform = told[wire.STREAM]["subject_transform"]
    assert made[wire.STREAM]["subject_transform"] == {"src": transform["source"], "dest": transform["destination"]}


def test_every_message_that_may_be_sent_fits_into_the_stream() -> None:
    assert all(each.get("max_msg_size", 2**20) >= MAX_MESSAGE_BYTES for each in streams())

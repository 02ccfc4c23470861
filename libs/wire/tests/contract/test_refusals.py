"""A refusal is read by callers in any language: its shape is part of the wire."""

from __future__ import annotations

import json

import pytest
import stretto_wire as wire
from jsonschema import Draft202012Validator
from stretto_messages.base import example_of
from stretto_messages.refusals import Refusal, Refused
from stretto_wire.contract.schemas import REFUSED, message_schema


def test_a_refusal_survives_the_wire_and_fits_its_schema() -> None:
    body = wire.encode(example_of(Refused))
    assert wire.decode(Refused, body) == example_of(Refused)
    Draft202012Validator(message_schema(Refused, REFUSED)).validate(json.loads(body))


def test_what_wire_errors_say_fits_a_refusal_whatever_arrived() -> None:
    subject = f"evt.v1.gateway.job-submitted.{'a' * 63}"
    for body in (b"\xff" * 4000, json.dumps({"job": "x" * 200_000, "k" * 5000: 1}).encode(), b"[" * 100_000):
        with pytest.raises(wire.WireError) as caught:
            wire.parse(subject, body)
        error = caught.value
        Refusal(code="invalid", message=str(error), field=error.field, value=error.value, remedy=error.remedy)

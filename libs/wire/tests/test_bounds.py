"""Bounds that one message states fit into the messages that follow from them."""

from stretto_messages.values import Plan
from stretto_wire.codec import decode, encode
from stretto_wire.spec import JobSpec


def test_the_largest_specification_leads_to_a_plan_that_the_wire_carries() -> None:
    count = {"count": {"min": 1, "max": 10_000}}
    spec = JobSpec.parse(
        {
            "name": "large",
            "model": {"entry": "a:B"},
            "dataset": {"samples": 1000},
            "resources": {"workers": count, "ps": count},
        }
    )
    assert decode(Plan, encode(spec.resources.most)).ps == 1000

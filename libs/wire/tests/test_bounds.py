"""Bounds that one message states fit into the messages that follow from them."""

from typing import Any

import pytest
from stretto_messages.values import Plan
from stretto_wire.codec import decode, encode
from stretto_wire.errors import WireError
from stretto_wire.jobspec.spec import JobSpec


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


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ({"prices": {"cpu_core_hour": 0, "memory_gib_hour": 0}}, "at least one a price"),
        ({"resources": {"workers": {"cpu_cores": {"min": 0.0005}}}}, "resources.workers.cpu_cores.min"),
        ({"resources": {"ps": {"cpu_cores": {"min": 0.0005}}}}, "resources.ps.cpu_cores.min"),
    ],
)
def test_a_specification_that_no_decision_can_read_is_refused_at_the_door(part: dict[str, Any], named: str) -> None:
    with pytest.raises(WireError, match=named):
        JobSpec.parse({"name": "small", "model": {"entry": "a:B"}, "dataset": {"samples": 1000}, **part})

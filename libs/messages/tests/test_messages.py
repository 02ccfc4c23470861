"""The messages by themselves: plain dataclasses that know neither pydantic nor the wire."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import FrozenInstanceError, is_dataclass

import pytest
from stretto_messages.base import GIB, InvalidValue
from stretto_messages.values import NOTHING, Interval, Plan, Resources, total


def test_they_load_without_pydantic() -> None:
    code = "import sys, stretto_messages.pods, stretto_messages.planner; assert 'pydantic' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_they_cannot_be_changed() -> None:
    plan = Plan(1, 1, 1.0, 1.0, GIB, GIB)
    assert is_dataclass(plan)
    with pytest.raises(FrozenInstanceError):
        plan.workers = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [("workers", -1), ("ps", 0), ("worker_cpu_cores", 0.0), ("ps_cpu_cores", float("nan")), ("ps_memory_bytes", 0)],
)
def test_a_plan_outside_every_domain_is_refused_with_its_field(field: str, value: float) -> None:
    fields = {"workers": 1, "ps": 1, "worker_cpu_cores": 1.0, "ps_cpu_cores": 1.0, "worker_memory_bytes": GIB}
    with pytest.raises(InvalidValue, match=field):
        Plan(**{**fields, "ps_memory_bytes": GIB, field: value})  # type: ignore[arg-type]


def test_an_interval_has_its_ends_in_order() -> None:
    with pytest.raises(InvalidValue, match="low must not be above high"):
        Interval(low=2.0, high=1.0)


def test_amounts_add_up_in_any_order() -> None:
    amounts = [Resources(0.1, 1), Resources(0.2, 2), Resources(0.3, 3)]
    assert total(amounts) == total(reversed(amounts))
    assert total([]) == NOTHING

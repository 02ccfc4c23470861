"""Figures as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_client import figures


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (900 * 2**20, "900 MiB"),
        (1.5 * 2**30, "1.5 GiB"),
        (2**50, "1 PiB"),
    ],
)
def test_sizes(value: float | None, shown: str) -> None:
    assert figures.size(value) == shown


@given(st.lists(st.floats(min_value=0, max_value=1e9), max_size=200), st.integers(-5, 80))
def test_a_sparkline_never_is_wider_than_asked(values: list[float], width: int) -> None:
    assert len(figures.sparkline(values, width)) <= max(0, width)


def test_a_plan_tells_the_workers_on_devices_beside_those_on_cores() -> None:
    plan = {"workers": 3, "ps": 1, "worker_cpu_cores": 2.0, "ps_cpu_cores": 1.0, "ps_memory_bytes": 2**30}
    plan["worker_memory_bytes"] = 2**31
    groups = [{"device": "gpu-a", "workers": 2}]
    assert figures.plan(plan) == "3 × worker (2 cores, 2 GiB)  1 × ps (1 core, 1 GiB)"
    assert figures.plan(plan | {"groups": groups}).startswith(
        "1 × worker (2 cores, 2 GiB)  2 × worker on gpu-a  1 × ps"
    )
    assert figures.short_plan(plan | {"groups": groups}) == "1w×2 2w gpu-a 1ps×1 1 GiB"
    staged = plan | {"groups": [groups[0] | {"stage": 1}]}
    assert figures.short_plan(staged) == "1w×2 2w gpu-a stage 1 1ps×1 1 GiB"
    assert "2 × worker of stage 1 on gpu-a" in figures.plan(staged)
    only = plan | {"groups": [{"device": "gpu-a", "workers": 3}]}
    assert figures.short_plan(only) == "3w gpu-a 1ps×1 1 GiB"

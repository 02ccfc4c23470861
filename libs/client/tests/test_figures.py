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
        (2**50, "1024 TiB"),
    ],
)
def test_sizes(value: float | None, shown: str) -> None:
    assert figures.size(value) == shown


@pytest.mark.parametrize(
    ("status", "given_up", "told"),
    [
        ("finished", 0, "finished"),
        ("failed", 700, "failed"),
        ("finished", 1, "finished, <0.1% given up"),
        ("finished", 60, "finished, 0.6% given up"),
        ("finished", 5904, "finished, 59% given up"),
    ],
)
def test_a_finished_job_that_gave_samples_up_has_a_state_of_its_own(status: str, given_up: int, told: str) -> None:
    assert figures.state(status, given_up, 10_000) == told


@given(st.lists(st.floats(min_value=0, max_value=1e9), max_size=200), st.integers(-5, 80))
def test_a_sparkline_never_is_wider_than_asked(values: list[float], width: int) -> None:
    assert len(figures.sparkline(values, width)) <= max(0, width)

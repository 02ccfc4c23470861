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

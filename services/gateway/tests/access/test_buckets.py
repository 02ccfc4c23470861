"""Rates: no caller gets more than its due, and nobody makes the gateway remember without end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from stretto_gateway.access.buckets import Buckets


@given(
    per_s=st.floats(0.1, 100), burst=st.integers(1, 20), pauses_s=st.lists(st.floats(0, 5), min_size=1, max_size=200)
)
def test_in_any_span_a_caller_gets_at_most_a_burst_and_its_rate(
    per_s: float, burst: int, pauses_s: list[float]
) -> None:
    buckets, now, taken = Buckets(per_s, burst), 0.0, list[float]()
    for pause_s in pauses_s:
        now += pause_s
        if buckets.take("a", now) == 0:
            taken.append(now)
    for first, began_s in enumerate(taken):
        for last, ended_s in enumerate(taken[first:], first):
            assert last - first + 1 <= burst + (ended_s - began_s) * per_s + 1e-6


@given(per_s=st.floats(0.1, 100), burst=st.integers(1, 20), asked=st.integers(1, 60))
def test_who_waits_as_long_as_it_was_told_to_is_let_through(per_s: float, burst: int, asked: int) -> None:
    buckets, now = Buckets(per_s, burst), 0.0
    for _ in range(asked):
        now += buckets.take("a", now) + 1e-9
        assert buckets.wait_s("b", now) == 0
    assert buckets.wait_s("a", now + 1 / per_s + 1e-6) == 0


def test_a_rate_of_zero_bounds_nobody() -> None:
    buckets = Buckets(0, 1)
    assert [buckets.take("a", 0.0) for _ in range(100)] == [0.0] * 100


def test_of_too_many_callers_those_are_forgotten_who_asked_longest_ago() -> None:
    buckets = Buckets(1, 1, most=100)
    for number in range(1000):
        buckets.take(str(number), 0.0)
    assert len(buckets) == 100
    assert buckets.wait_s("999", 0.0) > 0
    assert buckets.wait_s("0", 0.0) == 0

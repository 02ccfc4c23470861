"""The cost of rows on disks: memory, reads, and the time of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stretto_core.model.spilling import (
    COLD_ROW_BYTES,
    LOOK_CPU_S,
    READ_CPU_S,
    READS_ERROR,
    Correction,
    Step,
    cheapest,
    hot_rows,
    memory_bytes,
    miss_ratio,
    noise_of,
    read_ratio,
    speed_interval,
    worth,
)
from stretto_core.model.types import Prices
from stretto_messages.base import GIB
from stretto_messages.values import Interval, Remedy, Resources

CURVE = (0.4, 0.2, 0.1, 0.0)
seconds = st.floats(1e-4, 10)


@pytest.mark.parametrize(
    ("share", "misses"),
    [(0.0, 1.0), (1 / 64, 1.0), (0.0625, 0.7), (0.25, 0.4), (0.375, 0.3), (0.75, 0.1), (0.9, 0.04), (1.0, 0.0)],
)
def test_the_curve_is_a_line_between_its_points_and_of_the_logarithm_before_them(share: float, misses: float) -> None:
    assert miss_ratio(CURVE, share, 1 / 64) == pytest.approx(misses)


@given(seconds, st.floats(0, 1), st.integers(1, 64), st.floats(0, 1e5), st.floats(0, 1e5))
def test_more_reads_never_make_a_step_faster_and_the_interval_holds_the_expectation(
    time_s: float, share: float, workers: int, reads: float, more: float
) -> None:
    step = Step(time_s, share * time_s, workers, 40_000.0)
    found = step.slowdown_interval(Correction().interval(reads, 1e6))
    assert 0 <= found.low <= step.slowdown(reads) <= found.high
    assert step.slowdown(reads) <= step.slowdown(reads + more)


@given(st.floats(1e-3, 10), st.floats(0, 1), st.floats(0, 1e4))
def test_a_step_that_reads_already_tells_what_it_takes_without(time_s: float, share: float, reads: float) -> None:
    step = Step(time_s, share * time_s, 1, 40_000.0)
    again = replace(step, time_s=step.with_reads_s(reads)).without(reads)
    assert again.time_s == pytest.approx(time_s, rel=1e-6)


def test_reads_that_were_measured_correct_those_of_the_curve() -> None:
    """Before any, the curve stands, 20 % either way; then what was read holds, and most later windows with it."""
    alone = Correction().interval(120.0, 1000.0)
    assert (alone.low, alone.high) == pytest.approx((120 / (1 + READS_ERROR), 120 * (1 + READS_ERROR)))
    ratios = [read_ratio(read, 600.0, 1e4) for read in (4780.0, 4810.0, 4790.0, 4830.0)]
    found = Correction.of([each for each in ratios if each])
    assert found.factor == pytest.approx(8, rel=0.01)
    interval = found.interval(found.reads(20.0, 1000.0), 1000.0)
    assert interval.low < 20 * 4830 / 600 < interval.high
    dice = np.random.default_rng(3)
    for deviation in (0.02, 0.1, 0.3):
        held = 0
        for _ in range(2000):
            *before, later = np.exp(dice.normal(1.5, deviation, 6)).tolist()
            found = Correction.of(before)
            interval = found.interval(100 * found.factor, 1e6)
            held += interval.low <= 100 * later <= interval.high
        assert held > 1600, deviation


@given(st.floats(0.02, 50), st.lists(st.floats(0.95, 1.045), min_size=1, max_size=5))
def test_windows_that_are_alike_never_widen_the_interval_of_reads(level: float, ratios: list[float]) -> None:
    assert Correction.of([level * each for each in ratios]).spread <= Correction.of([]).spread * (1 + 1e-9)


@pytest.mark.parametrize(
    ("ratios", "low", "high"),
    [([], 83.3, 120), ([1.0], 83.3, 120), ([1.0, 1.0], 89, 113), ([1.0, 1.3], 81, 160), ([0.5, 2.0], 18.4, 543)],
)
def test_windows_that_differ_widen_it_by_as_much(ratios: list[float], low: float, high: float) -> None:
    found = Correction.of(ratios)
    interval = found.interval(100 * found.factor, 1e6)
    assert (interval.low, interval.high) == pytest.approx((low, high), rel=0.01)


@given(st.lists(st.floats(0.01, 100), max_size=5), st.floats(0, 1), st.floats(0, 1e6))
def test_a_step_never_reads_more_rows_than_it_pulls(ratios: list[float], share: float, pulled: float) -> None:
    found = Correction.of(ratios)
    reads = found.reads(share * pulled, pulled)
    interval = found.interval(reads, pulled)
    assert 0 <= interval.low <= reads <= interval.high <= pulled


@pytest.mark.parametrize(
    ("read", "told", "ratio"),
    [(30.0, 40.0, None), (87.0, 360.0, None), (0.0, 600.0, 1 / 100), (1e15, 0.0, 100.0), (399.0, 199.0, 2.0)],
)
def test_windows_are_compared_that_have_some_reads_and_no_ratio_is_beyond_all_bounds(
    read: float, told: float, ratio: float | None
) -> None:
    assert read_ratio(read, told, 5e4) == (None if ratio is None else pytest.approx(ratio))


def test_an_interval_of_speeds_holds_nine_of_ten_windows_however_much_these_differ() -> None:
    """The windows before tell how much: the prior is soon of no weight."""
    dice = np.random.default_rng(7)
    for deviation in (0.01, 0.05, 0.2):
        held, widths = 0, []
        for _ in range(2000):
            *before, later = np.exp(dice.normal(-4, deviation, 13)).tolist()
            found = speed_interval(1 / before[-1], Interval(low=0.0, high=0.0), noise_of(before))
            held += found.low <= 1 / later <= found.high
            widths.append(found.high * before[-1] - found.low * before[-1])
        assert held > 1720, deviation
        assert np.median(widths) < 6 * (deviation + 0.01)


def test_a_slow_down_moves_the_interval_of_speeds() -> None:
    quiet = noise_of([0.02] * 400)
    found = speed_interval(100.0, Interval(low=0.25, high=1.0), quiet)
    assert (found.low, found.high) == pytest.approx((50, 80), rel=0.03)
    assert noise_of([]) > noise_of([0.02] * 4) > quiet > 0


def test_a_pull_hides_under_computing_and_all_workers_share_the_disk() -> None:
    alone = Step(0.02, 0.012, 1, 40_000.0)
    assert alone.slowdown(480) == 0, "12 ms of reads, 12 ms of computing"
    assert alone.slowdown(880) == pytest.approx(0.5)
    assert Step(0.02, 0.012, 8, 40_000.0).with_reads_s(480) == pytest.approx(8 * 0.012)


def test_reads_take_processor_time_of_the_server_until_it_is_the_limit() -> None:
    alone = Step(0.02, 0.012, 4, 1e6, rows=2000, cpu_s=0.004, cores=2.0)
    assert alone.slowdown(100) == 0, "4 workers take 28.8 ms of the 40 ms that two cores have in a step"
    assert alone.with_reads_s(900) == pytest.approx(4 * (0.004 + 2000 * LOOK_CPU_S + 900 * READ_CPU_S) / 2)
    busy = replace(alone, cpu_s=0.010)
    assert busy.slowdown(0) == 0, "as it is"
    spilling = replace(busy, time_s=busy.with_reads_s(500), cpu_s=0.010 + 2000 * LOOK_CPU_S + 500 * READ_CPU_S)
    assert spilling.without(500).cpu_s == pytest.approx(0.010)


@given(st.floats(1, 1e10), st.floats(60, 4000), st.floats(0, 1e9), st.floats(0.01, 1))
def test_a_limit_holds_the_rows_that_it_was_computed_for(
    rows: float, row_bytes: float, rest: float, share: float
) -> None:
    limit = memory_bytes(rows, row_bytes, rest, share)
    rounding = 2 / rows / (row_bytes - COLD_ROW_BYTES) + 1e-6
    assert hot_rows(rows, row_bytes, rest, limit) / rows == pytest.approx(share, abs=rounding)
    assert hot_rows(rows, row_bytes, limit, limit) == 0, "not even the entries of cold rows fit"


def spill(cost: float, slow: float) -> Remedy:
    interval = Interval(low=slow, high=slow)
    return Remedy(
        kind="spill", ps=1, ps_memory_bytes=16 * GIB, cost_per_hour=cost, slowdown=slow, slowdown_interval=interval
    )


@pytest.mark.parametrize(("left", "kind"), [(0.76, "spill"), (0.74, "grow")])
def test_the_cheapest_is_the_one_whose_samples_cost_least(left: float, kind: str) -> None:
    """At the default prices, with 16 cores, 16 GiB in place of 64 pay while three quarters of the speed are left."""
    prices = Prices()
    grow = Remedy(
        kind="grow", ps=1, ps_memory_bytes=64 * GIB, cost_per_hour=prices.cost_per_hour(Resources(16, 64 * GIB))
    )
    slower = spill(prices.cost_per_hour(Resources(16, 16 * GIB)), 1 / left - 1)
    best = cheapest((grow, slower))
    assert best is not None
    assert best.kind == kind
    assert worth(slower) == pytest.approx(0.72 / left)
    assert cheapest(()) is None

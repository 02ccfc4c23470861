"""The forecast from one server's series alone, on generated growth."""

from __future__ import annotations

import numpy as np
import pytest
from curves import Curve, generate
from stretto_core.oom.series import Forecaster, SeriesError, SeriesForecast, SeriesPoint, SeriesProblem, growth, linear


def first_third(
    curve: Curve, capacity_share: float = 0.5, algorithm: Forecaster = growth
) -> tuple[SeriesForecast, float, float]:
    """The forecast, the memory at the end, and the capacity, that share of the way from now to there."""
    held = curve.split[0]
    used, categories = curve.used_bytes(held, 0), curve.rows[:, held].sum(1)
    now = len(curve.samples) // 3
    points = tuple(
        SeriesPoint(float(i), int(curve.samples[i]), int(categories[i]), int(used[i])) for i in range(now)
    )  # fmt: skip
    capacity = used[now - 1] + capacity_share * (used[-1] - used[now - 1])
    left = int(curve.samples[-1] - curve.samples[now - 1])
    return algorithm(SeriesProblem(points, int(capacity), left)), float(used[-1]), float(capacity)


@pytest.mark.parametrize("kind", ["steady", "bursty", "skewed", "surge-seen"])
def test_the_end_the_interval_and_running_out_are_foreseen_where_growth_goes_on_as_seen(kind: str) -> None:
    errors, covered, foreseen, wasted = list[float](), list[bool](), list[bool](), list[float]()
    for curve in (generate(kind, seed) for seed in range(150)):
        if curve.changes:
            continue
        found, end, capacity = first_third(curve)
        errors.append(abs(found.at_end.mean / end - 1))
        covered.append(found.at_end.low <= end <= found.at_end.high)
        wasted.append(found.recommended_bytes / end - 1)
        if end > 1.05 * capacity:
            foreseen.append(found.oom_at_s is not None)
    assert len(errors) >= 15
    assert np.median(errors) <= 0.07
    assert np.mean(covered) >= 0.85
    assert np.mean(foreseen) >= 0.94, "but where a pause has just ended"
    assert np.mean(wasted) <= 0.15
    assert np.quantile(wasted, 0.9) <= 0.25
    assert np.quantile(wasted, 0.1) >= -0.12, "what is recommended will nearly do"


def test_errors_of_reading_do_not_make_rows_dear() -> None:
    """Where memory hardly grows, its slope over the categories is their error: readings scatter by 3 % here."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        read = 1e9 + 200.0 * np.arange(20_000, 40_000, 1000) + 3e7 * rng.standard_normal(20)
        points = tuple(
            SeriesPoint(float(k), 1000 * (k + 1), 20_000 + 1000 * k, int(used)) for k, used in enumerate(read)
        )  # fmt: skip
        found = growth(SeriesProblem(points, 2 * 10**9, 40_000))
        assert found.at_end.mean == pytest.approx(1e9, rel=0.08)
        assert found.oom_at_s is None


def test_an_end_of_memory_that_is_only_possible_is_told_from_a_likely_one() -> None:
    """Few capacities with 15 % of room are told as likely to run out, and each answer names its kind of alarm."""
    likely = list[bool]()
    for curve in (generate("steady", seed) for seed in range(60)):
        if curve.changes:
            continue
        found, end, _ = first_third(curve)
        likely.append(found.recommended_bytes > end / 0.85)
    assert np.mean(likely) <= 0.1
    points = tuple(SeriesPoint(float(k), 1000 * k, round(9e5 * k**0.7), round(1e8 + 9e7 * k**0.7)) for k in range(1, 8))
    found = growth(SeriesProblem(points, 2**50, 40_000))
    between = (found.recommended_bytes + found.at_end.high) / 2
    told = [growth(SeriesProblem(points, round(c), 40_000)) for c in (found.at_end.low, between, found.at_end.high + 2)]
    assert [(one.oom_at_samples is not None, one.oom_is_likely) for one in told] == [
        (True, True), (True, False), (False, False)
    ]  # fmt: skip


def test_what_does_not_grow_does_not_run_out_however_narrow_the_capacity() -> None:
    full = int(1.01 * (10**9 + 2_000_000 * 20))
    growing = tuple(SeriesPoint(float(k), 1000 * k, 10_000 * k, 10**9 + 2_000_000 * k) for k in range(1, 21))
    assert growth(SeriesProblem(growing, full, 0)).oom_at_samples is None
    assert growth(SeriesProblem(growing, full, 40_000)).oom_at_samples is not None
    flat = tuple(SeriesPoint(float(k), 1000 * k, 10_000, 10**9) for k in range(1, 21))
    assert growth(SeriesProblem(flat, int(1.01e9), 40_000)).oom_at_s is None


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99, 1.02])
def test_when_it_runs_out_lies_ahead_and_before_the_end(share: float) -> None:
    """Also where only what is not known of the forecast reaches the capacity."""
    points = tuple(SeriesPoint(float(k), 1000 * k, 10_000 * k, 10**9 + 2_000_000 * k) for k in range(1, 21))
    capacity = int(10**9 + 2_000_000 * (20 + share * 40))
    found = growth(SeriesProblem(points, capacity, 40_000))
    assert found.oom_at_samples is not None
    assert found.oom_at_s is not None
    assert 20_000 < found.oom_at_samples <= 60_000
    assert found.oom_at_s == pytest.approx(found.oom_at_samples / 1000)
    if share < 0.9:
        assert found.oom_at_samples == pytest.approx(1000 * (20 + share * 40), rel=0.05)


def test_a_series_that_went_back_to_a_checkpoint_goes_on_from_there() -> None:
    done = [10, 20, 30, 40, 20, 30, 40, 50]
    points = tuple(SeriesPoint(float(t), n * 1000, n * 100, 10**9 + n * 10**6) for t, n in enumerate(done))
    found = growth(SeriesProblem(points, 2 * 10**9, 50_000))
    assert found.at_end.mean == pytest.approx(1.1e9, rel=0.05)
    assert (found.oom_at_s, found.oom_at_samples) == (None, None)
    with pytest.raises(SeriesError, match="samples_trained goes back"):
        growth(SeriesProblem((*points, SeriesPoint(9.0, 1, 1, 10**9)), 2 * 10**9, 50_000))


@pytest.mark.parametrize(
    ("rows", "said"),
    [([], "samples_trained has 0"), ([(1.0, 1), (2.0, 2)], "has 2"), ([(1.0, 1), (3.0, 2), (2.0, 3)], "time_s is 2.0")],
)
def test_what_cannot_be_forecast_is_refused_by_name(rows: list[tuple[float, int]], said: str) -> None:
    with pytest.raises(SeriesError, match=said):
        SeriesProblem(tuple(SeriesPoint(t, n, n, n) for t, n in rows), 1, 1)


def test_the_published_forecast_is_a_straight_line() -> None:
    """5,000 categories of 400 B each 1,000 samples: 2 MB; of Heaps' law it foretells too much."""
    points = tuple(SeriesPoint(float(k), 1000 * k, 5000 * k, 10**9 + 2 * 10**6 * k) for k in range(1, 21))
    found = linear(SeriesProblem(points, 10**9 + 60 * 10**6, 80_000))
    assert found.at_end.mean == pytest.approx(1.2e9, rel=1e-3)
    assert found.oom_at_samples == pytest.approx(30_000, rel=0.01)
    assert found.oom_at_s == pytest.approx(30, rel=0.01)
    assert linear(SeriesProblem(points, 2 * 10**9, 80_000)).oom_at_s is None
    assert linear(SeriesProblem(points, 10**9, 80_000)).oom_at_samples == 1000
    heaps = tuple(SeriesPoint(float(k), 1000 * k, int(1e6 * k**0.5), int(5e8 + 2e8 * k**0.5)) for k in range(1, 31))
    problem, end = SeriesProblem(heaps, 10**10, 60_000), 5e8 + 2e8 * 90**0.5
    assert linear(problem).at_end.mean > 1.1 * end
    assert growth(problem).at_end.mean == pytest.approx(end, rel=0.03)

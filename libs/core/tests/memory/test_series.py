"""The forecast from one server's series alone, on generated growth."""

from __future__ import annotations

import numpy as np
import pytest
from curves import Curve, generate
from stretto_core.memory.series import SeriesError, SeriesForecast, SeriesPoint, SeriesProblem, growth


def first_third(curve: Curve, capacity_share: float = 0.5) -> tuple[SeriesForecast, float, float]:
    """The forecast, the memory at the end, and the capacity, that share of the way from now to there."""
    held = curve.split[0]
    used, categories = curve.used_bytes(held, 0), curve.rows[:, held].sum(1)
    now = len(curve.samples) // 3
    points = tuple(
        SeriesPoint(float(i), int(curve.samples[i]), int(categories[i]), int(used[i])) for i in range(now)
    )  # fmt: skip
    capacity = used[now - 1] + capacity_share * (used[-1] - used[now - 1])
    left = int(curve.samples[-1] - curve.samples[now - 1])
    return growth(SeriesProblem(points, int(capacity), left)), float(used[-1]), float(capacity)


def test_the_end_the_interval_and_running_out_are_foreseen_where_growth_follows_a_law() -> None:
    errors, covered, foreseen, wasted = list[float](), list[bool](), list[bool](), list[float]()
    for family in ("steady", "bursty", "skewed"):
        for curve in (generate(family, seed) for seed in range(40)):
            if curve.slots or curve.changes:
                continue
            found, end, _ = first_third(curve)
            errors.append(abs(found.at_end.mean / end - 1))
            covered.append(found.at_end.low <= end <= found.at_end.high)
            foreseen.append(found.oom_at_s is not None)
            wasted.append(found.recommended_bytes / end - 1)
    assert len(errors) >= 25
    assert np.median(errors) <= 0.05
    assert np.mean(covered) >= 0.85
    assert np.mean(foreseen) >= 0.95
    assert np.quantile(wasted, 0.95) <= 0.15
    assert np.mean(np.array(wasted) >= -0.05) >= 0.95, "what is recommended will do"


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

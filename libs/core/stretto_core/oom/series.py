"""Forecast of the memory of one parameter server from a series of measurements alone.

Nothing of a job's specification is known here: the cost of a category is estimated from the series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from stretto_core.machine import CoreError
from stretto_core.oom.forecast import SAFETY, Lead, forecast
from stretto_core.oom.growth import Z_90, CategoryForecast, Estimate, GrowthLaw, GrowthPoint, add_point, fit_growth
from stretto_core.oom.line import fit_line
from stretto_core.oom.usage import RowCost, ServerUsage, UsagePoint

NAME = "ps"
POINTS_LEAST = 3
CUSHION = 1.07
"""Factor on the expected memory at the end, recommended where the interval is wide. Chosen
by hand; ``python -m tests.bench --only forecasts`` measures error and waste."""

MEASURING_SD = 0.01 / Z_90
"""Relative sd of resident memory, for the interval: 1 % to either side. Chosen by hand."""

MEASURING_LEAST = 0.001
"""Least relative sd of a measurement: no series is exact. Taste."""

ROW_BYTES, ROW_LOG_SD = 256.0, 1.2
"""Prior of an embedding with its slots, log-normal: 77 to 850 B within one sd. Taste."""

TRIED = np.linspace(-4, 4, 81)
"""Grid of the posterior of a slope, in sd from the least squares."""

GRID = 48
"""Points at which a crossing is interpolated."""


class SeriesError(CoreError):
    """The series says too little, or what cannot be; names the field."""


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """At ``time_s``, after ``samples`` trained, a server holds ``categories`` in ``used_bytes``."""

    time_s: float
    samples: int
    categories: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class SeriesProblem:
    """Input of a forecasting algorithm: the series, oldest first, the server's capacity, and the samples to come.

    Raises SeriesError.
    """

    points: tuple[SeriesPoint, ...]
    capacity_bytes: int
    samples_left: int

    def __post_init__(self) -> None:
        if len({point.samples for point in self.points}) < POINTS_LEAST:
            raise SeriesError(
                f"samples_trained has {len({point.samples for point in self.points})} different values; give at least"
                f" {POINTS_LEAST}, so that growth can be seen"
            )
        times = [point.time_s for point in self.points]
        later = next((b for a, b in pairwise(times) if b <= a), None)
        if later is not None:
            raise SeriesError(f"time_s is {later!r} after a row that is not earlier; give rows in the order of time")
        if self.points[-1].samples <= 0:
            raise SeriesError(f"samples_trained ends at {self.points[-1].samples}; give a series that has trained")


@dataclass(frozen=True, slots=True)
class SeriesForecast:
    """Memory when all samples are trained, with its 90 % interval, and the recommendation.

    ``oom_at_*``: when the capacity is reached, on the clock of the series and in samples trained; both None: not before
    the end. ``oom_is_likely``: the capacity is below what probably will do; else only the upper end of the interval
    reaches it.
    """

    at_end: Estimate
    oom_at_s: float | None
    oom_at_samples: float | None
    recommended_bytes: float
    oom_is_likely: bool = True


class Forecaster(Protocol):
    """Algorithm of the kind ``memory``."""

    def __call__(self, problem: SeriesProblem) -> SeriesForecast: ...


def growth(problem: SeriesProblem) -> SeriesForecast:
    """Forecast by sub-linear growth of categories times the cost of one, each with its uncertainty.

    A capacity runs out if it is below the recommendation or the upper end of the interval, which one job in twenty
    exceeds: an error of the forecast must not cost the job. The time is that of the expected course, or, where that
    just stays below, of a stretched course that leads there.

    From a third of a series, 37 to 79 % of generated ones warn of a capacity with 15 % of room at the end, 5 to 22 % as
    likely (``python -m tests.bench --only forecasts``). By what is likely alone, up to 4 % of the ends are missed.
    """
    last, cost = problem.points[-1], _row_cost(problem.points)
    grown, server = _seen(problem, fit_growth, cost)
    rate = _samples_per_s(problem.points)
    end = last.samples + problem.samples_left
    found = forecast({NAME: server}, grown, cost, end, rate, Lead(0.0, 0.0), 2**62)
    server_forecast = found.servers[0]
    interval = server_forecast.at_end_interval_bytes
    at_end = Estimate(interval.low, float(server_forecast.at_end_bytes), interval.high)
    # a service asks again when more is known; a single forecast recommends what will probably do until the end
    probably = min(CUSHION * at_end.mean, SAFETY * at_end.high)
    enough = max(found.recommended_bytes if found.reaches_end else 0, probably, last.used_bytes)
    over = next((point for point in problem.points if point.used_bytes >= problem.capacity_bytes), None)
    if over is not None:
        when: tuple[float | None, float | None] = over.time_s, float(over.samples)
    elif _grows(server, cost, grown.at(end).high) and problem.capacity_bytes < (most := max(enough, at_end.high)):
        at = server_forecast.oom_at_samples
        if at is None:
            at = _reached(problem, grown, most)
        when = last.time_s + (at - last.samples) / rate, float(at)
    else:
        when = None, None
    is_likely = over is not None or problem.capacity_bytes < enough
    return SeriesForecast(at_end, *when, float(enough), is_likely and when[0] is not None)


def linear(problem: SeriesProblem) -> SeriesForecast:
    """Forecast as published (DLRover-RM 5.3): categories are proportional to samples, memory to categories.

    For comparison. It knows no error: the interval is the forecast, and so is the recommendation.
    """
    last, cost = problem.points[-1], _row_cost(problem.points)
    grown, server = _seen(problem, fit_line, cost)
    new = grown.at(last.samples + problem.samples_left).mean - grown.categories
    slope = new / max(problem.samples_left, 1) * cost.bytes
    at_end = server.used_bytes + slope * problem.samples_left
    over = next((point for point in problem.points if point.used_bytes >= problem.capacity_bytes), None)
    if over is not None:
        when: tuple[float | None, float | None] = over.time_s, float(over.samples)
    elif at_end >= problem.capacity_bytes and slope > 0:
        left = (problem.capacity_bytes - server.used_bytes) / slope
        when = last.time_s + left / _samples_per_s(problem.points), last.samples + left
    else:
        when = None, None
    return SeriesForecast(Estimate(at_end, at_end, at_end), *when, at_end, when[0] is not None)


def _grows(server: ServerUsage, cost: RowCost, categories: float) -> bool:
    """Return True if up to ``categories`` take more memory than the error of a measurement."""
    return cost.bytes * (categories - server.rows) > Z_90 * MEASURING_SD * server.used_bytes


def _reached(problem: SeriesProblem, grown: CategoryForecast, most: float) -> float:
    """Return the samples at which the capacity is reached on a course from the last row to ``most`` at the end.

    It is the expected course, stretched: memory is taken as linear in the categories there.
    """
    last, end = problem.points[-1], problem.points[-1].samples + problem.samples_left
    share = (problem.capacity_bytes - last.used_bytes) / max(most - last.used_bytes, 1.0)
    new = share * (grown.at(end).mean - grown.categories)
    grid = np.linspace(last.samples, end, GRID + 1)
    return float(np.interp(new, [one.mean - grown.categories for one in grown.course(grid.tolist())], grid))


def _seen(problem: SeriesProblem, law: GrowthLaw, cost: RowCost) -> tuple[CategoryForecast, ServerUsage]:
    """Return growth and usage since the series last went back to a checkpoint. ``cost`` tells rows from the rest."""
    points, server = list[GrowthPoint](), ServerUsage()
    for point in problem.points:
        add_point(points, point.samples, point.categories)
        rows_bytes = int(cost.bytes * point.categories)
        usage = UsagePoint(point.categories, point.used_bytes, rows_bytes, cost.bytes)
        server.add(usage, problem.capacity_bytes, buckets=0)
    grown = law(points)
    if grown is None:
        raise SeriesError(f"samples_trained goes back in the last row; give {POINTS_LEAST} rows or more after it")
    return grown, server


def _row_cost(points: Sequence[SeriesPoint]) -> RowCost:
    """Return the cost of a row: memory regressed on the rows, with a prior.

    The rest of the process takes at least nothing, so a row costs at most memory over rows, whichever point gives the
    least. The log-normal prior of a row's size counts where the series says little.
    """
    rows = np.array([point.categories for point in points], dtype=np.float64)
    used = np.array([point.used_bytes for point in points], dtype=np.float64)
    level_sd_bytes = MEASURING_SD * float(used[-1])
    most = float((used / np.maximum(rows, 1.0)).min())
    centred = rows - rows.mean()
    square = float(centred @ centred)
    if square <= 0:
        return RowCost(min(ROW_BYTES, most), min(ROW_BYTES, most) / 2, level_sd_bytes)
    slope = float(centred @ used) / square
    left = used - used.mean() - slope * centred
    noise = (MEASURING_LEAST * float(used.mean())) ** 2
    sd = math.sqrt((float(left @ left) / max(1, len(rows) - 2) + noise) / square)
    tried = slope + sd * TRIED
    inside = (tried > 0) & (tried <= max(most, slope))
    if not inside.any():  # memory falls while categories come
        return RowCost(0.0, sd, level_sd_bytes)
    tried, chance = tried[inside], np.exp(-0.5 * TRIED[inside] ** 2)
    chance *= np.exp(-0.5 * (np.log(tried / ROW_BYTES) / ROW_LOG_SD) ** 2)
    chance /= chance.sum()
    mean = float(chance @ tried)
    return RowCost(mean, math.sqrt(float(chance @ (tried - mean) ** 2)), level_sd_bytes)


def _samples_per_s(points: Sequence[SeriesPoint]) -> float:
    """Return the rate over the newer half of the series, or over all of it where that went back."""
    for first in (points[len(points) // 2], points[0]):
        trained, passed_s = points[-1].samples - first.samples, points[-1].time_s - first.time_s
        if trained > 0 and passed_s > 0:
            return trained / passed_s
    return points[-1].samples / (points[-1].time_s - points[0].time_s)

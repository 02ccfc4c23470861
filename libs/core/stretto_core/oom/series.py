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
from stretto_core.oom.growth import Course, Estimate, Floats, GrowthLaw, GrowthPoint, add_point, fit_growth
from stretto_core.oom.line import fit_line
from stretto_core.oom.usage import LOAD_MAX, MEASURING_SD, RowCost, ServerUsage

NAME = "ps"
POINTS_LEAST = 3
CUSHION = 1.07
"""Factor on the expected memory at the end, recommended where the interval is wide. Chosen
by hand; ``python -m tests.bench --only forecasts`` measures error and waste."""

RISK = 0.7
"""Part of the way from the expected memory to the upper end of its interval: about one job in eight ends above it.
Chosen by hand."""

MEASURING_LEAST = 0.001
"""Least relative sd of a measurement: no series is exact. Taste."""

ROW_BYTES, ROW_LOG_SD = 256.0, 1.2
"""Prior of an embedding with its slots, log-normal: 77 to 850 B within one sd. Taste."""

TRIED = np.linspace(-4, 4, 81)
"""Grid of the posterior of a slope, in sd from the least squares."""

TABLES = 64
"""Hash tables of a server, as many as there are buckets at most. They fill alike, and each is copied as it doubles."""

INITIAL_SLOTS = np.unique((64 * 2 ** (np.arange(32) / 32)).astype(int))
"""Candidates of a table's initial slots; up to doubling, all that there can be."""

STEPS_CLEAR = 0.25
"""Steps are believed if they leave at most this part of the sum of squares that a straight line leaves. Taste."""

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
    the end.
    """

    at_end: Estimate
    oom_at_s: float | None
    oom_at_samples: float | None
    recommended_bytes: float


class Forecaster(Protocol):
    """Algorithm of the kind ``memory``."""

    def __call__(self, problem: SeriesProblem) -> SeriesForecast: ...


def growth(problem: SeriesProblem) -> SeriesForecast:
    """Forecast by sub-linear growth of categories times the cost of one, each with its uncertainty.

    A capacity runs out if it is below the recommendation, or if about one job in eight exceeds it: an error of the
    forecast must not cost the job. The time is that of the expected course, or, where that just stays below, of a
    stretched course that leads there.
    """
    last = problem.points[-1]
    grown, server = _seen(problem, fit_growth)
    rate = _samples_per_s(problem.points)
    end = last.samples + problem.samples_left
    cost = _row_cost(problem.points)
    # what lies between is not reached: tables double, or not
    risk = 1.0 if cost.initial_slots else RISK
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
    elif _grows(server, cost, grown.at(end).high) and problem.capacity_bytes < (
        most := max(enough, at_end.mean + risk * (at_end.high - at_end.mean))
    ):
        at = server_forecast.oom_at_samples
        if at is None:
            at = _reached(problem, grown, most)
        when = last.time_s + (at - last.samples) / rate, float(at)
    else:
        when = None, None
    return SeriesForecast(at_end, *when, float(enough))


def linear(problem: SeriesProblem) -> SeriesForecast:
    """Forecast as published (DLRover-RM 5.3): categories are proportional to samples, memory to categories.

    For comparison. It knows no error: the interval is the forecast, and so is the recommendation.
    """
    grown, server = _seen(problem, fit_line)
    last = problem.points[-1]
    new = grown.at(last.samples + problem.samples_left).mean - grown.categories
    slope = new / max(problem.samples_left, 1) * _plain_cost(problem.points)[0].bytes
    at_end = server.used_bytes + slope * problem.samples_left
    over = next((point for point in problem.points if point.used_bytes >= problem.capacity_bytes), None)
    if over is not None:
        when: tuple[float | None, float | None] = over.time_s, float(over.samples)
    elif at_end >= problem.capacity_bytes and slope > 0:
        left = (problem.capacity_bytes - server.used_bytes) / slope
        when = last.time_s + left / _samples_per_s(problem.points), last.samples + left
    else:
        when = None, None
    return SeriesForecast(Estimate(at_end, at_end, at_end), *when, at_end)


def _grows(server: ServerUsage, cost: RowCost, categories: float) -> bool:
    """Return True if up to ``categories`` take more memory than the error of a measurement."""
    more = cost.units(categories, TABLES) - cost.units(server.rows, TABLES)
    return cost.bytes * more > MEASURING_SD * server.used_bytes


def _reached(problem: SeriesProblem, grown: Course, most: float) -> float:
    """Return the samples at which the capacity is reached on a course from the last row to ``most`` at the end.

    It is the expected course, stretched: memory is taken as linear in the categories there.
    """
    last, end = problem.points[-1], problem.points[-1].samples + problem.samples_left
    share = (problem.capacity_bytes - last.used_bytes) / max(most - last.used_bytes, 1.0)
    new = share * (grown.at(end).mean - grown.categories)
    grid = np.linspace(last.samples, end, GRID + 1)
    return float(np.interp(new, [one.mean - grown.categories for one in grown.course(grid.tolist())], grid))


def _seen(problem: SeriesProblem, law: GrowthLaw) -> tuple[Course, ServerUsage]:
    """Return growth and usage since the series last went back to a checkpoint."""
    points, server = list[GrowthPoint](), ServerUsage()
    for point in problem.points:
        add_point(points, point.samples, point.categories)
        server.add(point.categories, point.used_bytes, problem.capacity_bytes, TABLES)
    grown = law(points)
    if grown is None:
        raise SeriesError(f"samples_trained goes back in the last row; give {POINTS_LEAST} rows or more after it")
    return grown, server


def _row_cost(points: Sequence[SeriesPoint]) -> RowCost:
    """Estimate bytes per category, or per slot where memory rises in steps, as that of tables that double."""
    plain, misfit = _plain_cost(points)
    categories, used = _columns(points)
    if float(categories[-1]) < 2 * TABLES * INITIAL_SLOTS[0]:
        return plain
    full = LOAD_MAX * TABLES * INITIAL_SLOTS[:, None]
    slots = TABLES * INITIAL_SLOTS[:, None] * 2 ** np.ceil(np.log2(np.maximum(categories / full, 1)))
    centred, off = slots - slots.mean(1, keepdims=True), used - used.mean()
    square = (centred**2).sum(1)
    steps = off @ off - np.where(square > 0, (centred @ off) ** 2 / np.maximum(square, 1.0), 0.0)
    best = int(steps.argmin())
    if float(steps[best]) > STEPS_CLEAR * misfit:
        return plain
    return _cost(slots[best], used, int(INITIAL_SLOTS[best]))[0]


def _columns(points: Sequence[SeriesPoint]) -> tuple[Floats, Floats]:
    """Return categories and bytes [n]."""
    categories, used = zip(*((point.categories, point.used_bytes) for point in points), strict=True)
    return np.array(categories, dtype=np.float64), np.array(used, dtype=np.float64)


def _plain_cost(points: Sequence[SeriesPoint]) -> tuple[RowCost, float]:
    """Estimate bytes per category, and return the sum of squared residuals."""
    return _cost(*_columns(points), 0)


def _cost(units: Floats, used: Floats, initial_slots: int) -> tuple[RowCost, float]:
    """Regress memory [n] on units [n] with a prior; return the cost of a unit and the sum of squared residuals.

    The rest of the process takes at least nothing, so a unit costs at most memory over units, whichever row gives the
    least. The log-normal prior of a row's size counts where the series says little.
    """
    most = float((used / np.maximum(units, 1.0)).min())
    centred = units - units.mean()
    square = float(centred @ centred)
    if square <= 0:
        return RowCost(min(ROW_BYTES, most), min(ROW_BYTES, most) / 2), math.inf
    slope = float(centred @ used) / square
    left = used - used.mean() - slope * centred
    misfit, noise = float(left @ left), (MEASURING_LEAST * float(used.mean())) ** 2
    sd = math.sqrt((misfit / max(1, len(units) - 2) + noise) / square)
    tried = slope + sd * TRIED
    inside = (tried > 0) & (tried <= max(most, slope))
    if not inside.any():  # memory falls while categories come
        return RowCost(0.0, sd, initial_slots), misfit
    tried, chance = tried[inside], np.exp(-0.5 * TRIED[inside] ** 2)
    chance *= np.exp(-0.5 * (np.log(tried / ROW_BYTES) / ROW_LOG_SD) ** 2)
    chance /= chance.sum()
    mean = float(chance @ tried)
    spread = math.sqrt(float(chance @ (tried - mean) ** 2))
    return RowCost(mean, spread, initial_slots), misfit + len(units) * noise


def _samples_per_s(points: Sequence[SeriesPoint]) -> float:
    """Return the rate over the newer half of the series, or over all of it where that went back."""
    for first in (points[len(points) // 2], points[0]):
        trained, passed_s = points[-1].samples - first.samples, points[-1].time_s - first.time_s
        if trained > 0 and passed_s > 0:
            return trained / passed_s
    return points[-1].samples / (points[-1].time_s - points[0].time_s)

"""Where the memory of one parameter server is going, from a series of it alone.

What the services know from a job's specification is not known here: what a category costs is taken from the series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from stretto_core.machine import CoreError
from stretto_core.memory.forecast import Lead, forecast
from stretto_core.memory.growth import Growth, GrowthPoint, Interval, add_point, fit_growth
from stretto_core.memory.usage import ServerUsage, fit_row_cost

NAME = "ps"
POINTS_LEAST = 3


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
    """What a forecasting algorithm gets: the series, oldest first, the server's capacity, and how much is to come.

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
    """Memory when all samples are trained, with its 90 % interval, and what is enough. ``oom_at_*``: when the capacity
    is reached, on the clock of the series and in samples trained; both None: not before the end."""

    at_end: Interval
    oom_at_s: float | None
    oom_at_samples: float | None
    recommended_bytes: float


class Forecaster(Protocol):
    """Algorithms of the kind ``memory``."""

    def __call__(self, problem: SeriesProblem) -> SeriesForecast: ...


def growth(problem: SeriesProblem) -> SeriesForecast:
    """Sub-linear growth of categories times what one costs, averaged over the shapes that growth may have."""
    last = problem.points[-1]
    grown, server = _seen(problem)
    cost = fit_row_cost([server], _bytes_per_category(problem.points), 0)
    rate = _samples_per_s(problem.points)
    end = last.samples + problem.samples_left
    found = forecast({NAME: server}, grown, cost, end, rate, Lead(0.0, 0.0), 2**62)
    told = found.servers[0]
    over = next((point for point in problem.points if point.used_bytes >= problem.capacity_bytes), None)
    if over is not None:
        when: tuple[float | None, float | None] = over.time_s, float(over.samples)
    elif told.oom_at_samples is not None:
        when = last.time_s + (told.oom_at_samples - last.samples) / rate, float(told.oom_at_samples)
    else:
        when = None, None
    at_end = Interval(float(told.at_end_low_bytes), float(told.at_end_bytes), float(told.at_end_high_bytes))
    # a service asks again when it is known better; who asks once is told what will probably do to the end
    enough = max(found.recommended_bytes, last.used_bytes, at_end.mean)
    return SeriesForecast(at_end, *when, float(enough))


def _seen(problem: SeriesProblem) -> tuple[Growth, ServerUsage]:
    """The series as the forecast knows it, since it last went back to a checkpoint."""
    points, server = list[GrowthPoint](), ServerUsage()
    for point in problem.points:
        add_point(points, point.samples, point.categories)
        server.add(point.categories, point.used_bytes, problem.capacity_bytes, 1)
    grown = fit_growth(points)
    if grown is None:
        raise SeriesError(f"samples_trained goes back in the last row; give {POINTS_LEAST} rows or more after it")
    return grown, server


def _bytes_per_category(points: Sequence[SeriesPoint]) -> float:
    """The slope of memory over categories, by least squares; what all memory comes to per category if it falls."""
    categories = np.array([point.categories for point in points], dtype=np.float64)
    used = np.array([point.used_bytes for point in points], dtype=np.float64)
    centred = categories - categories.mean()
    square = float(centred @ centred)
    slope = float(centred @ used) / square if square > 0 else 0.0
    return slope if slope > 0 else float(used[-1]) / max(1.0, float(categories[-1]))


def _samples_per_s(points: Sequence[SeriesPoint]) -> float:
    """Of the newer half, or of all where that went back."""
    for first in (points[len(points) // 2], points[0]):
        trained, passed_s = points[-1].samples - first.samples, points[-1].time_s - first.time_s
        if trained > 0 and passed_s > 0:
            return trained / passed_s
    return points[-1].samples / (points[-1].time_s - points[0].time_s)

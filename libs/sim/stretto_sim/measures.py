"""Measures of every simulation: durations of jobs, and levels over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

Progress = Callable[[int, int], None]
"""Function that is called with the number of jobs that have left and the number of all jobs."""

YEAR_S = 8760 * 3600.0
HORIZON_YEARS = 10
"""Longest trace: a million decisions, one every five minutes."""
LATEST_S = 2.0**32
"""Latest submission, 136 years (on a clock that began in 1970, the year 2106): later, floats hold no microseconds."""


@dataclass(frozen=True, slots=True)
class Durations:
    """Mean and 90th percentile in seconds; 0 without jobs."""

    mean_s: float
    p90_s: float

    @staticmethod
    def of(values_s: Sequence[float]) -> Durations:
        """Return the measures of one duration per job."""
        if not values_s:
            return Durations(0.0, 0.0)
        return Durations(float(np.mean(values_s)), float(np.percentile(values_s, 90)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """A job that has left, from its submission to its end. ``queued_s``: time that it waited for its resources."""

    submit_s: float
    end_s: float
    queued_s: float

    @property
    def completion_s(self) -> float:
        """Return the seconds from submission to end."""
        return self.end_s - self.submit_s


@dataclass(slots=True)
class Level:
    """An amount that changes in steps; begins at 0."""

    times_s: list[float] = field(default_factory=list[float])
    amounts: list[float] = field(default_factory=list[float])

    def set(self, now_s: float, amount: float) -> None:
        """Set the amount from now on; the last of several at one time counts."""
        if self.times_s and self.times_s[-1] == now_s:
            self.amounts[-1] = amount
        elif amount != (self.amounts[-1] if self.amounts else 0.0):
            self.times_s.append(now_s)
            self.amounts.append(amount)

    def mean(self, begin_s: float, end_s: float) -> float:
        """Return the mean from ``begin_s`` to ``end_s``; 0 for an empty interval."""
        if end_s <= begin_s or not self.times_s:
            return 0.0
        times = np.clip([*self.times_s, end_s], begin_s, end_s)
        return float(np.diff(times) @ np.array(self.amounts)) / (end_s - begin_s)


EndedT = TypeVar("EndedT", bound=EndedJob)


@dataclass(slots=True, kw_only=True)
class TraceOutcome(Generic[EndedT]):
    """The outcome of a trace. Jobs are numbered by submission."""

    jobs: list[EndedT] = field(default_factory=lambda: list[EndedT]())

    @property
    def completion(self) -> Durations:
        """Return the measures of the times from submission until the jobs left."""
        return Durations.of([job.completion_s for job in self.jobs])

    @property
    def mean_queue_s(self) -> float:
        """Return the mean time that a job waited for its resources."""
        return Durations.of([job.queued_s for job in self.jobs]).mean_s

    @property
    def span_s(self) -> tuple[float, float]:
        """Return the first submission and the last end; (0, 0) without jobs."""
        if not self.jobs:
            return 0.0, 0.0
        return min(job.submit_s for job in self.jobs), max(job.end_s for job in self.jobs)

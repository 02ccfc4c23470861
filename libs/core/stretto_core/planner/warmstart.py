"""Warm start: the first plan of a new job from those of similar past jobs (DLRover-RM Algorithm 1, Eq. 10)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stretto_messages.base import InvalidValue
from stretto_messages.planner import HistoryRecorded
from stretto_messages.values import DeviceSpeed, Plan, Value

from stretto_core.model.pareto import MEMORY_STEP_BYTES
from stretto_core.model.types import GUESSED_SD, JobLimits


@dataclass(frozen=True, slots=True)
class SimilarJob:
    """A past job with its similarity in 0..1, the similarity of each feature, and its share in the smoothed plan."""

    past: HistoryRecorded
    similarity: float
    features: dict[str, float]
    weight: float


def feature_similarity(one: Value, other: Value) -> float:
    """Return 1 for equal values and 0 for different ones; for positive numbers their ratio, whatever the unit."""
    if isinstance(one, str | bool) or isinstance(other, str | bool):
        return float(type(one) is type(other) and one == other)
    if not math.isfinite(one) or not math.isfinite(other):
        return 0.0
    if one > 0 and other > 0:
        return min(one, other) / max(one, other)
    return 1.0 if one == other else 0.0


def similarity(one: Mapping[str, Value], other: Mapping[str, Value]) -> tuple[float, dict[str, float]]:
    """Return the mean similarity over the features of both jobs, and that of each feature; a missing one counts 0."""
    features = {
        name: feature_similarity(one[name], other[name]) if name in one and name in other else 0.0
        for name in sorted({*one, *other})
    }
    return (sum(features.values()) / len(features) if features else 0.0), features


def smoothing_weights(count: int, smoothing: float) -> list[float]:
    """Return the share of each configuration in the result of Eq. 10, the least similar first; they sum to 1."""
    if not 0 < smoothing < 1:
        raise InvalidValue(f"smoothing is {smoothing!r}; give a number between 0 and 1, both excluded")
    later = [smoothing * (1 - smoothing) ** (count - 1 - index) for index in range(1, count)]
    return [(1 - smoothing) ** (count - 1), *later] if count else []


def most_similar(
    metadata: Mapping[str, Value],
    history: Iterable[HistoryRecorded],
    *,
    count: int = 5,
    smoothing: float = 0.5,
    similarity_min: float = 0.3,
) -> list[SimilarJob]:
    """Return the ``count`` most similar past jobs, from ``similarity_min`` on, least similar first (Algorithm 1)."""
    rated = [(past, *similarity(metadata, past.metadata)) for past in history]
    close = sorted((row for row in rated if row[1] >= similarity_min), key=lambda row: (-row[1], row[0].job))[:count]
    weights = smoothing_weights(len(close), smoothing)
    return [
        SimilarJob(past, value, features, weight)
        for (past, value, features), weight in zip(reversed(close), weights, strict=True)
    ]


def known_speeds(similar: Sequence[SimilarJob]) -> tuple[DeviceSpeed, ...]:
    """Return for each type of devices what that similar job measured which tells most.

    A job that is less alike tells less: without any likeness its speed is worth no more than a stated one, and such
    speeds are left out. The errors of the measurement and of the likeness s add up as
    var = sd² + ((1 - s) GUESSED_SD)².
    """
    found = dict[str, DeviceSpeed]()
    for job in reversed(similar):
        for speed in job.past.speeds:
            log_sd = math.hypot(speed.log_sd, (1 - min(job.similarity, 1.0)) * GUESSED_SD)
            known = found.get(speed.device)
            if log_sd < (GUESSED_SD if known is None else known.log_sd):
                found[speed.device] = replace(speed, log_sd=log_sd)
    return tuple(found.values())


def smoothed_plan(similar: Sequence[SimilarJob], limits: JobLimits, *, cpu_step: float = 0.25) -> Plan | None:
    """Return the start-up configuration A_{k-1} of Eq. 10, rounded to whole pods, ``cpu_step`` cores and 16 MiB.

    Memory of a PS is never below the peak of the most similar job. None without similar jobs.
    """
    if not similar:
        return None

    def mean(name: str) -> float:
        return sum(row.weight * getattr(row.past.plan, name) for row in similar)

    def cores(name: str) -> float:
        return max(round(mean(name) / cpu_step), 1) * cpu_step

    def memory(name: str, least: int = 0) -> int:
        return math.ceil(max(mean(name), least) / MEMORY_STEP_BYTES - 1e-9) * MEMORY_STEP_BYTES

    return limits.clamp(
        Plan(
            workers=max(round(mean("workers")), 1),
            ps=max(round(mean("ps")), 1),
            worker_cpu_cores=cores("worker_cpu_cores"),
            ps_cpu_cores=cores("ps_cpu_cores"),
            worker_memory_bytes=memory("worker_memory_bytes"),
            ps_memory_bytes=memory("ps_memory_bytes", similar[-1].past.ps_memory_peak_bytes),
        )
    )

"""The outcome of a simulation: the end of every job, and the resources reserved and used over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto_sim.cluster.trace import ClusterTraceSettings
from stretto_sim.measures import Durations, EndedJob, Level, TraceOutcome

COMPLETED = "completed"
CAUSES = ("out of memory", "pod failure", "scheduling", "own fault")


@dataclass(slots=True)
class Usage:
    """Core-seconds and byte-seconds over a job's life, reserved and used, of workers and of servers."""

    worker_core_s: float = 0.0
    worker_busy_core_s: float = 0.0
    ps_core_s: float = 0.0
    ps_busy_core_s: float = 0.0
    worker_byte_s: float = 0.0
    worker_used_byte_s: float = 0.0
    ps_byte_s: float = 0.0
    ps_used_byte_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(EndedJob):
    """A job that has ended. ``how``: completed, or one of ``CAUSES``; ``slow``: its straggler or hot server, if any.

    ``queued_s``: time until its first pods had nodes. ``stood_s``: all later time in which it did not train.
    ``scaling_s``: time from its submission to its last change of counts or cores. ``first`` and ``last``: the (workers,
    servers, cores of a worker, cores of a server) at its begin and end.
    """

    how: str
    slow: str
    samples: float
    stood_s: float
    changes: int
    restarts: int
    scaling_s: float
    first: tuple[int, int, float, float] | None
    last: tuple[int, int, float, float] | None
    usage: Usage


@dataclass(slots=True, kw_only=True)
class ClusterOutcome(TraceOutcome[Left]):
    """Jobs in the order of the trace, and levels: reserved and busy cores, reserved bytes, jobs that have pods."""

    settings: ClusterTraceSettings
    reserved_cores: Level = field(default_factory=Level)
    busy_cores: Level = field(default_factory=Level)
    reserved_bytes: Level = field(default_factory=Level)
    running: Level = field(default_factory=Level)
    cores_of_job: list[Level] = field(default_factory=list[Level])

    @property
    def completed(self) -> list[Left]:
        return [job for job in self.jobs if job.how == COMPLETED]

    @property
    def completion(self) -> Durations:
        """Return the measures of completed jobs, from submission."""
        return Durations.of([job.completion_s for job in self.completed])

    @property
    def median_completion_s(self) -> float:
        return median([job.completion_s for job in self.completed])

    @property
    def completion_rate(self) -> float:
        """Return the share of the jobs that completed; 1 without jobs."""
        return len(self.completed) / len(self.jobs) if self.jobs else 1.0

    @property
    def failures(self) -> dict[str, int]:
        """Return the number of failed jobs for every cause."""
        counted = Counter(job.how for job in self.jobs)
        return {cause: counted[cause] for cause in CAUSES}

    @property
    def changes_per_job(self) -> float:
        return Durations.of([float(job.changes) for job in self.jobs]).mean_s

    def utilisation(self, resource: str) -> float:
        """Return the used share of the reserved ``worker_core``, ``ps_core``, ``worker_byte`` or ``ps_byte``, or 0."""
        used = resource.replace("core", "busy_core").replace("byte", "used_byte") + "_s"
        reserved = sum(getattr(job.usage, resource + "_s") for job in self.jobs)
        return sum(getattr(job.usage, used) for job in self.jobs) / reserved if reserved else 0.0

    @property
    def allocated(self) -> tuple[float, float]:
        """Return the reserved shares of the cluster's cores and bytes over the span."""
        capacity = self.settings.capacity
        cores, memory = self.reserved_cores.mean(*self.span_s), self.reserved_bytes.mean(*self.span_s)
        return cores / capacity.cpu_cores, memory / capacity.memory_bytes


def median(values: Sequence[float]) -> float:
    """Return the median, or 0 without values."""
    return float(np.median(values)) if values else 0.0

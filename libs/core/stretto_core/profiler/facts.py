"""What the profiler is told and what it tells; it refuses what cannot be true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from stretto_messages.values import Plan

from stretto_core.machine import CoreError

Role = Literal["worker", "ps"]


class ImpossibleTelemetry(CoreError):
    """A report that cannot be true; ``field``, ``value`` and ``remedy`` say what and why."""

    unchanged = True

    def __init__(self, field: str, value: Any, remedy: str) -> None:
        self.field, self.value, self.remedy = field, str(value), remedy
        super().__init__(f"{field} = {value}: {remedy}")


@dataclass(frozen=True, slots=True)
class ProfilingRules:
    """Thresholds; times in seconds. A pod is slow or hot for ``patience`` windows before it is told, or well again.

    ``retold_factor``: a straggler whose slowdown has changed by it is told again. ``hot_alone_factor``: of its own
    usual update time, for a server without peers, and for twice as long: a busy machine is no reason to replace it.
    ``hot_pause_s``: before a server is told hot again, or cleared.
    """

    window_s: float = 5.0
    clock_skew_s: float = 30.0
    report_span_s: float = 600.0
    straggler_slowdown: float = 2.0
    retold_factor: float = 1.5
    cleared_slowdown: float = 4.0 / 3.0
    hot_factor: float = 2.0
    hot_alone_factor: float = 8.0
    hot_cpu: float = 0.9
    cool_cpu: float = 0.6
    patience: int = 2
    hot_pause_s: float = 60.0
    names_ahead: int = 16


# what happens ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job with its batch size (samples of one step of one worker)."""

    batch_size: int


@dataclass(frozen=True, slots=True)
class PlanDecided:
    """A plan is being applied."""

    version: int


@dataclass(frozen=True, slots=True)
class PlanApplied:
    """Everything is as the plan wants it."""

    version: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class PodStarted:
    """A pod is ready, with these limits."""

    pod: str
    role: Role
    cpu_limit_cores: float = 0.0
    memory_limit_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PodResized:
    """A running pod has other limits now; it may not know them itself."""

    pod: str
    cpu_limit_cores: float
    memory_limit_bytes: int


@dataclass(frozen=True, slots=True)
class PodExited:
    """A pod is gone; its name is not used again."""

    pod: str


@dataclass(frozen=True, slots=True)
class MigrationStarted:
    """Parameters move from now on."""


@dataclass(frozen=True, slots=True)
class MigrationFinished:
    """Parameters do not move any more."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Nothing is expected any more. ``completed``: unless a restore takes the job back."""

    completed: bool = False


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """The job's ledger counts on: a completed job was taken back by a restore."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds per step (DLRover-RM Eq. 2-5): pull of rows, local computation, update in the servers, dense exchange."""

    emb_s: float
    grad_s: float
    upd_s: float
    sync_s: float


class WorkerReported(NamedTuple):  # like ``PsReported`` many a second: made in a third of a data class's time
    """A worker's last window; counters of its whole life in ``…_total``."""

    pod: str
    plan_version: int
    ended_at_s: float
    window_s: float
    steps: int
    steps_total: int
    samples_total: int
    step_time_s: float
    longest_gap_s: float
    times: StepTimes
    cpu_used_cores: float
    cpu_limit_cores: float
    memory_used_bytes: int
    memory_limit_bytes: int


class PsReported(NamedTuple):
    """A parameter server's last window."""

    pod: str
    ended_at_s: float
    window_s: float
    updates: int
    update_time_s: float
    applied_samples_total: int
    categories: int
    buckets: int
    cpu_used_cores: float
    cpu_limit_cores: float
    memory_used_bytes: int
    memory_limit_bytes: int


# what is told ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerProfile:
    """One worker over a window."""

    pod: str
    step_time_s: float
    samples_per_s: float
    cpu_used_cores: float
    memory_used_bytes: int


@dataclass(frozen=True, slots=True)
class PsProfile:
    """One parameter server over a window; sizes at its end."""

    pod: str
    cpu_used_cores: float
    cpu_limit_cores: float
    memory_used_bytes: int
    memory_limit_bytes: int
    categories: int
    buckets: int
    update_time_s: float


@dataclass(frozen=True, slots=True)
class ProfileMeasured:
    """One window of one job under one plan. ``settled``: nothing was changing since before it began.

    ``workers`` and ``ps`` are at most 400, evenly spaced over all; every other figure is of all pods.
    """

    plan_version: int
    plan: Plan
    batch_size: int
    window_s: float
    step_time_s: float
    times: StepTimes
    throughput: float
    samples_total: int
    categories: int
    settled: bool
    workers: tuple[WorkerProfile, ...]
    ps: tuple[PsProfile, ...]


@dataclass(frozen=True, slots=True)
class StragglerDetected:
    """A worker trains much more slowly than its peers, waiting for shards excluded."""

    pod: str
    samples_per_s: float
    peers_samples_per_s: float
    slowdown: float


@dataclass(frozen=True, slots=True)
class StragglerCleared:
    """It keeps pace again."""

    pod: str


@dataclass(frozen=True, slots=True)
class HotPsDetected:
    """A parameter server is much slower or busier than its peers; than itself before, where it has none."""

    pod: str
    update_time_s: float
    peers_update_time_s: float
    cpu_used_cores: float
    cpu_limit_cores: float


@dataclass(frozen=True, slots=True)
class HotPsCleared:
    """A server that was hot has kept pace with its peers for a while: it may get back some of what it gave away."""

    pod: str
    update_time_s: float
    peers_update_time_s: float

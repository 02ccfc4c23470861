"""State of the profiler: one job's windows of telemetry, its thresholds, and its two inputs that are no messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from stretto_messages.books import ALL_ROWS, RowBooks
from stretto_messages.pods import PsReported
from stretto_messages.values import Device, Plan

from stretto_core.machine import CoreError


class ImpossibleTelemetry(CoreError):
    """A report that cannot be true; ``field``, ``value`` and ``remedy`` say what and why."""

    unchanged = True

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field, self.value, self.remedy = field, str(value), remedy
        super().__init__(f"{field} = {value}: {remedy}")


@dataclass(frozen=True, slots=True)
class ProfilingRules:
    """Thresholds of the profiler."""

    window_s: float = 5.0
    """Length of a profile."""
    clock_skew_s: float = 30.0
    """A report whose time differs more from the server's is refused."""
    report_span_s: float = 600.0
    """A report over a longer time is refused."""
    straggler_slowdown: float = 2.0
    """Step time over the peers' median from which on a worker is a straggler."""
    repeat_factor: float = 1.5
    """A straggler is published again once its slowdown has changed by this factor."""
    cleared_slowdown: float = 4.0 / 3.0
    """Step or update time over the peers' median below which a pod keeps pace."""
    hot_factor: float = 2.0
    """Update time over the peers' median from which on a parameter server is hot."""
    hot_alone_factor: float = 8.0
    """The same for a server without peers, over its own baseline and for twice as many windows: a busy machine is no
    reason to replace it."""
    hot_cpu: float = 0.9
    """Used share of its CPU above which a server is hot while its peers stay below ``cool_cpu``."""
    cool_cpu: float = 0.6
    patience: int = 2
    """Consecutive windows before a pod is published as slow or hot, or as well again."""
    hot_pause_s: float = 60.0
    """Least time before a server is published as hot again, or as cleared."""
    reports_per_window: float = 1.5
    """A window is at least so many times as long as a worker's report in it: each pod is in each window then."""
    numbers_ahead: int = 16
    """A pod may report before its start is known if its number is at most this far above the highest one known."""


ReportingRole = Literal["worker", "ps", "data"]


@dataclass(frozen=True, slots=True)
class JobOpened:
    """A job exists; ``batch_size`` samples are one step of one worker.

    ``watched``: it runs a program that tells no samples, so that a window without a step is one as well.
    """

    batch_size: int
    watched: bool = False


@dataclass(slots=True)
class WindowSums:
    """Sums over the reports of one pod in the open window, weighted by their length or by ``count``."""

    span_s: float = 0.0
    count: int = 0
    """Steps of a worker, updates of a parameter server."""
    busy_s: float = 0.0
    samples: int = 0
    cpu_core_s: float = 0.0
    emb_s: float = 0.0
    grad_s: float = 0.0
    upd_s: float = 0.0
    sync_s: float = 0.0
    read_s: float = 0.0
    prepared_elsewhere: float = 0.0
    batches: int = 0
    """Batches that a data worker prepared, in ``busy_s`` of its lanes."""
    rows_pulled: int = 0
    rows_read: int = 0


@dataclass(slots=True)
class PodWindow:
    """One pod: its counters at its last report, its sums in the open window, and how it compared with its peers."""

    role: ReportingRole
    device: Device = ""
    stage: int = 0
    started: bool = False
    """The actuator has published its start. Reports that come before are checked but enter no profile."""
    ended_at_s: float = 0.0
    steps_total: int = 0
    samples_total: int = 0
    prepare_s: float = 0.0
    prepare_cpu_s: float = 0.0
    """Time, and processor time, in which a worker prepares a batch; 0: not known."""
    lanes: int = 0
    reports: int = 0
    categories: int = 0
    row_bytes: float = 0.0
    table_bytes: int = 0
    rows: RowBooks = ALL_ROWS
    buckets: int = 0
    told: PsReported | None = None
    """The last report of a parameter server, for what it tells of its disk."""
    cpu_limit_cores: float = 0.0
    memory_used_bytes: int = 0
    memory_limit_bytes: int = 0
    sums: WindowSums = field(default_factory=WindowSums)
    bad_windows: int = 0
    """Consecutive windows in which it was slow (hot) or, once published, slow in another degree."""
    good_windows: int = 0
    """Consecutive windows in which it kept pace."""
    evidence: float = 0.0
    """CUSUM statistic against it, in doublings of its peers' update time."""
    published: bool = False
    """True once the pod was published as a straggler; or as hot, while it is hot or has fewer buckets than its
    peers."""
    published_at_s: float = 0.0
    published_slowdown: float = 0.0
    times_hot: int = 0
    baseline_update_s: float = 0.0
    """Moving average of the update time of a server without peers, while it was not hot."""


@dataclass(slots=True)
class ProfilerState:
    """Memory of one job's profiler."""

    batch_size: int = 0
    watched: bool = False
    ended: bool = False
    completed: bool = False
    plan: Plan | None = None
    plan_version: int = 0
    decided_version: int = 0
    migrating: bool = False
    changed_at_s: float = 0.0
    window_began_s: float = 0.0
    longest_report_s: float = 0.0
    """Length of the longest report of a worker in the open window."""
    pods: dict[str, PodWindow] = field(default_factory=dict[str, PodWindow])
    highest_number: dict[str, int] = field(default_factory=lambda: {"worker": -1, "ps": -1, "data": -1})
    exited: list[str] = field(default_factory=list[str])
    samples_of_exited: int = 0

"""What the profiler remembers of a job's pods, and the profiles that it makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from stretto_messages.values import Plan

from stretto_core.profiler.facts import PsProfile, PsReported, Role, StepTimes, WorkerProfile, WorkerReported


@dataclass(slots=True)
class Sums:
    """Of the present window. Weighted by the reports' lengths (``span_s``) or by ``count`` (steps, updates)."""

    span_s: float = 0.0
    count: int = 0
    busy_s: float = 0.0
    samples: int = 0
    cpu_core_s: float = 0.0
    emb_s: float = 0.0
    grad_s: float = 0.0
    upd_s: float = 0.0
    sync_s: float = 0.0


@dataclass(slots=True)
class PodBook:
    """What is known of a pod. ``announced``: the actuator has told that it started."""

    role: Role
    announced: bool = False
    ended_at_s: float = 0.0
    steps_total: int = 0
    samples_total: int = 0
    reports: int = 0
    categories: int = 0
    buckets: int = 0
    cpu_limit_cores: float = 0.0
    memory_used_bytes: int = 0
    memory_limit_bytes: int = 0
    sums: Sums = field(default_factory=Sums)
    bad_windows: int = 0
    """in a row, in which it was slow (hot), or once told, slow in another degree"""
    good_windows: int = 0
    """in a row, in which it kept pace"""
    evidence: float = 0.0
    """that it is hot, in doublings of its peers' update time"""
    told: bool = False
    """that it is slow; that it is hot, or was and has fewer buckets since"""
    told_at_s: float = 0.0
    told_slowdown: float = 0.0
    times_hot: int = 0
    usual_update_s: float = 0.0
    """of a parameter server without peers, while it was not hot"""


@dataclass(slots=True)
class ProfilerState:
    """Everything that the profiler knows of one job."""

    batch_size: int = 0
    ended: bool = False
    completed: bool = False
    plan: Plan | None = None
    plan_version: int = 0
    decided_version: int = 0
    migrating: bool = False
    changed_at_s: float = 0.0
    window_began_s: float = 0.0
    pods: dict[str, PodBook] = field(default_factory=dict[str, PodBook])
    highest: dict[str, int] = field(default_factory=lambda: {"worker": -1, "ps": -1})
    gone: list[str] = field(default_factory=list[str])
    samples_of_gone: int = 0


def add_ps(sums: Sums, event: PsReported) -> None:
    """A parameter server's report joins the window."""
    sums.span_s += event.window_s
    sums.cpu_core_s += event.cpu_used_cores * event.window_s
    sums.count += event.updates
    sums.busy_s += event.updates * event.update_time_s


def add_worker(sums: Sums, event: WorkerReported, samples: int) -> None:
    sums.span_s += event.window_s
    sums.cpu_core_s += event.cpu_used_cores * event.window_s
    sums.samples += samples
    sums.count += event.steps
    sums.busy_s += event.steps * event.step_time_s
    sums.emb_s += event.steps * event.times.emb_s
    sums.grad_s += event.steps * event.times.grad_s
    sums.upd_s += event.steps * event.times.upd_s
    sums.sync_s += event.steps * event.times.sync_s


def worker_profile(pod: str, book: PodBook) -> WorkerProfile:
    sums = book.sums
    return WorkerProfile(
        pod=pod,
        step_time_s=sums.busy_s / sums.count,
        samples_per_s=sums.samples / sums.span_s,
        cpu_used_cores=sums.cpu_core_s / sums.span_s,
        memory_used_bytes=book.memory_used_bytes,
    )


def ps_profile(pod: str, book: PodBook) -> PsProfile:
    sums = book.sums
    return PsProfile(
        pod=pod,
        cpu_used_cores=sums.cpu_core_s / sums.span_s,
        cpu_limit_cores=book.cpu_limit_cores,
        memory_used_bytes=book.memory_used_bytes,
        memory_limit_bytes=book.memory_limit_bytes,
        categories=book.categories,
        buckets=book.buckets,
        update_time_s=sums.busy_s / sums.count if sums.count else 0.0,
    )


def median_times(books: Iterable[PodBook]) -> StepTimes:
    sums = [book.sums for book in books]
    return StepTimes(
        median(s.emb_s / s.count for s in sums),
        median(s.grad_s / s.count for s in sums),
        median(s.upd_s / s.count for s in sums),
        median(s.sync_s / s.count for s in sums),
    )

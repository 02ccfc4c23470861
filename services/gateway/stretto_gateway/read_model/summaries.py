"""Summaries of views, and a view as it is at a given time."""

from __future__ import annotations

from dataclasses import replace

from stretto_core.model.spilling import EVICTS_FROM
from stretto_wire.rest.summaries import JobSummary
from stretto_wire.rest.views import OVER, JobView, PodView

from .folds.cost import billed

STALLED_S = 10.0
"""Time without a trained sample after which a job has no throughput: two windows of a profile."""
LATE_INTERVALS = 3
"""Number of intervals of checkpoints after which a job's last checkpoint is late, if LATE_S_MIN have passed, too."""
LATE_S_MIN = 60.0
"""Least age of a late checkpoint: where intervals are seconds, a full checkpoint is longer on its way to the store."""

STOPPED_S = 60.0
"""Time for which all workers of a job may stand still (objective of charts/runbook)."""
START_BOUNDS_S = (15.0, 30.0, 45.0, 60.0, 120.0, 300.0, 1800.0)
"""Buckets of the time from submission to the first step; one bound is the objective of charts/runbook."""


def ends_at_s(view: JobView, now_s: float) -> float | None:
    """Return when a job ends that goes on at its present rate; None if that is unknown."""
    progress = view.progress
    if view.status != "training" or view.data.growing or progress.samples_per_s <= 0:
        return None
    left = progress.samples_total - progress.samples_done - view.data.given_up
    return now_s + max(0, left) / progress.samples_per_s


def oom_in_s(view: JobView, now_s: float) -> float | None:
    """Return the time until the first parameter server of a living job is full; None if the forecast has none."""
    if view.forecast is None or view.status in OVER:
        return None
    age_s = now_s - view.forecast.time_s
    return min((max(0.0, ps.oom_in_s - age_s) for ps in view.forecast.ps if ps.oom_in_s is not None), default=None)


def summary(view: JobView, now_s: float) -> JobSummary:
    """Return the summary of a job as it is at ``now_s``."""
    view = as_of(view, now_s)
    over = view.status in OVER
    watched = [] if view.level or over else [pod for pod in view.pods.values() if pod.cpu_used_cores is not None]
    watched = [pod for pod in watched if pod.state == "running"]
    return JobSummary(
        name=view.name,
        team=view.team,
        status=view.status,
        submitted_at_s=view.submitted_at_s,
        ended_at_s=view.ended_at_s,
        plan_version=view.plan_version,
        plan=view.plan,
        samples_done=view.progress.samples_done,
        samples_total=view.progress.samples_total,
        samples_per_s=view.progress.samples_per_s,
        stalled_since_s=view.progress.stalled_since_s,
        reason=view.reason,
        submitted_by=view.submitted_by,
        cost_per_hour=None if over else view.cost_per_hour,
        priority=view.spec.priority,
        deadline_s=view.spec.deadline_s,
        ends_at_s=ends_at_s(view, now_s),
        oom_in_s=oom_in_s(view, now_s),
        pods_pending=0 if over else sum(pod.state == "pending" for pod in view.pods.values()),
        samples_given_up=view.progress.samples_given_up,
        ending=view.ending,
        complete=view.complete,
        stored_bytes=view.stored_bytes,
        cost_so_far=view.cost.so_far,
        mean_samples_per_s=view.progress.mean_samples_per_s,
        quality=view.quality,
        level=view.level,
        cpu_used_cores=sum(pod.cpu_used_cores or 0.0 for pod in watched) if watched else None,
        memory_used_bytes=sum(pod.memory_used_bytes or 0 for pod in watched) if watched else None,
        unreadable=view.unreadable,
    )


def checkpoint_is_late(view: JobView, now_s: float) -> bool:
    """Return whether a job trains without a checkpoint for longer than it should, or its final one fails."""
    if view.status == "finishing" and view.final_checkpoint_failure:
        return True
    every_s, started_s = view.spec.checkpoint.every_s, view.started_at_s
    if every_s is None or started_s is None or view.status != "training":
        return False
    taken_s = [each.time_s for each in view.checkpoints if each.stage in ("cached", "stored")]
    return now_s - max([started_s, *taken_s]) > max(LATE_INTERVALS * every_s, LATE_S_MIN)


def spilling(view: JobView) -> list[PodView]:
    """Return the running servers that have rows on their disks for lack of memory, or whose rows find no room."""
    return [pod for pod in view.pods.values() if pod.state == "running" and (_is_short(pod) or pod.spill_fault)]


def _is_short(pod: PodView) -> bool:
    """Return whether a server evicts rows; after it got more memory, those that nobody uses stay on the disk."""
    return pod.cold_rows > 0 and (pod.memory_used_bytes or 0) > EVICTS_FROM * (pod.memory_limit_bytes or 0)


def rounded_rows(view: JobView) -> int:
    """Return the number of rows that running servers keep rounded for lack of memory."""
    return sum(pod.warm_rows for pod in view.pods.values() if pod.state == "running")


def has_stopped(view: JobView, now_s: float) -> bool:
    """Return whether all workers of a training job have stood still for more than ``STOPPED_S``."""
    since_s = as_of(view, now_s).progress.stalled_since_s
    return since_s is not None and now_s - since_s > STOPPED_S


def start_s(view: JobView) -> float | None:
    """Return the time from a job's submission to its first step; None before that step."""
    return None if view.started_at_s is None else view.started_at_s - view.submitted_at_s


def as_of(view: JobView, now: float) -> JobView:
    """Return the view as it is at time ``now``. No event says that nothing happens, so a published rate expires."""
    since = view.progress.advanced_at_s
    if view.status != "training" or since is None or now - since <= STALLED_S:
        return view
    data = view.data
    # a growing job that has trained all its data waits for more, and a program of level 0 tells no samples
    waits = view.level == 0 or (data.growing and view.progress.samples_done + data.given_up >= data.samples)
    progress = replace(view.progress, samples_per_s=0.0, stalled_since_s=None if waits else since)
    pods = {name: replace(pod, samples_per_s=pod.samples_per_s and 0.0) for name, pod in view.pods.items()}
    pods = pods if view.level else view.pods  # of a watched program they are steps, which its ledger does not know
    cost = replace(view.cost, so_far=billed(view.cost, now), until_s=now)
    return replace(view, progress=progress, pods=pods, cost=cost)

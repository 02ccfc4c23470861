"""Messages to events of the core, facts of the core to messages; nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import stretto_wire as wire
from pydantic_core import to_json
from stretto_core.profiler import facts as core
from stretto_messages.actuator import (
    JobFailed,
    MigrationFinished,
    MigrationStarted,
    PlanApplied,
    PodExited,
    PodResized,
    PodStarted,
)
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import JobCancelled
from stretto_messages.pods import PsReported, WorkerReported
from stretto_messages.profiler import HotPsCleared, HotPsDetected, ProfileMeasured, StragglerCleared, StragglerDetected
from stretto_wire.codec import decode


def to_event(message: Any) -> Any:
    """The core event of ``message``; None: none of the profiler's business."""
    translate = _EVENTS.get(type(message))
    return translate(message) if translate else None


def to_message(job: str, fact: Any) -> Any:
    """The wire message of a core fact."""
    kind, names = _FACTS[type(fact)]
    told: dict[str, Any] = {name: getattr(fact, name) for name in names}
    return decode(kind, to_json({"job": job, **told}))


def _worker(message: WorkerReported) -> core.WorkerReported:
    times = message.times
    return core.WorkerReported(
        message.pod,
        message.plan_version,
        message.ended_at_s,
        message.window_s,
        message.steps,
        message.steps_total,
        message.samples_total,
        message.step_time_s,
        message.longest_gap_s,
        core.StepTimes(times.emb_s, times.grad_s, times.upd_s, times.sync_s),
        message.cpu_used_cores,
        message.cpu_limit_cores,
        message.memory_used_bytes,
        message.memory_limit_bytes,
    )


def _ps(message: PsReported) -> core.PsReported:
    return core.PsReported(
        message.pod,
        message.ended_at_s,
        message.window_s,
        message.updates,
        message.update_time_s,
        message.applied_samples_total,
        message.categories,
        message.buckets,
        message.cpu_used_cores,
        message.cpu_limit_cores,
        message.memory_used_bytes,
        message.memory_limit_bytes,
    )


def _started(message: PodStarted) -> core.PodStarted | None:
    if message.role == "data":
        return None
    return core.PodStarted(message.pod, message.role, message.cpu_cores, message.memory_bytes)


_EVENTS: dict[type, Callable[[Any], Any]] = {
    wire.JobSubmitted: lambda m: core.JobSubmitted(m.spec.dataset.batch_size),
    PlanDecided: lambda m: core.PlanDecided(m.version),
    PlanApplied: lambda m: core.PlanApplied(m.version, m.plan),
    PodStarted: _started,
    PodResized: lambda m: core.PodResized(m.pod, m.cpu_cores, m.memory_bytes),
    PodExited: lambda m: core.PodExited(m.pod),
    MigrationStarted: lambda m: core.MigrationStarted(),
    MigrationFinished: lambda m: core.MigrationFinished(),
    JobCompleted: lambda m: core.JobEnded(completed=True),
    JobProgressed: lambda m: core.JobProgressed(),
    JobFailed: lambda m: core.JobEnded(),
    JobCancelled: lambda m: core.JobEnded(),
    WorkerReported: _worker,
    PsReported: _ps,
}

_FACTS: dict[type, tuple[type[Message], tuple[str, ...]]] = {
    kind: (message, tuple(field.name for field in fields(kind)))
    for kind, message in (
        (core.ProfileMeasured, ProfileMeasured),
        (core.StragglerDetected, StragglerDetected),
        (core.StragglerCleared, StragglerCleared),
        (core.HotPsDetected, HotPsDetected),
        (core.HotPsCleared, HotPsCleared),
    )
}
"""Each fact's message, and the names that it has in common with it."""

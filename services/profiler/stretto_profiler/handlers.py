"""Messages to events of the core, facts of the core to messages; nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import stretto_wire as wire
from stretto_core.model.types import Plan
from stretto_core.profiler import facts as core


def to_event(message: Any) -> Any:
    """The core event of ``message``; None: none of the profiler's business."""
    translate = _EVENTS.get(type(message))
    return translate(message) if translate else None


def to_message(job: str, fact: Any) -> Any:
    """The wire message of a core fact."""
    kind, names = _FACTS[type(fact)]
    told: dict[str, Any] = {name: getattr(fact, name) for name in names}
    return kind.model_validate({"job": job, **told}, from_attributes=True)


def _worker(message: wire.WorkerReported) -> core.WorkerReported:
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


def _ps(message: wire.PsReported) -> core.PsReported:
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


def _started(message: wire.PodStarted) -> core.PodStarted | None:
    if message.role == "data":
        return None
    return core.PodStarted(message.pod, message.role, message.cpu_cores, message.memory_bytes)


_EVENTS: dict[type, Callable[[Any], Any]] = {
    wire.JobSubmitted: lambda m: core.JobSubmitted(m.spec.dataset.batch_size),
    wire.PlanDecided: lambda m: core.PlanDecided(m.version),
    wire.PlanApplied: lambda m: core.PlanApplied(m.version, Plan(**m.plan.model_dump())),
    wire.PodStarted: _started,
    wire.PodResized: lambda m: core.PodResized(m.pod, m.cpu_cores, m.memory_bytes),
    wire.PodExited: lambda m: core.PodExited(m.pod),
    wire.MigrationStarted: lambda m: core.MigrationStarted(),
    wire.MigrationFinished: lambda m: core.MigrationFinished(),
    wire.JobCompleted: lambda m: core.JobEnded(completed=True),
    wire.JobProgressed: lambda m: core.JobProgressed(),
    wire.JobFailed: lambda m: core.JobEnded(),
    wire.JobCancelled: lambda m: core.JobEnded(),
    wire.WorkerReported: _worker,
    wire.PsReported: _ps,
}

_FACTS: dict[type, tuple[type[wire.Message], tuple[str, ...]]] = {
    kind: (message, tuple(field.name for field in fields(kind)))
    for kind, message in (
        (core.ProfileMeasured, wire.ProfileMeasured),
        (core.StragglerDetected, wire.StragglerDetected),
        (core.StragglerCleared, wire.StragglerCleared),
        (core.HotPsDetected, wire.HotPsDetected),
        (core.HotPsCleared, wire.HotPsCleared),
    )
}
"""Each fact's message, and the names that it has in common with it."""

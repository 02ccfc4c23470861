"""Messages to events of the core, facts of the core to messages; nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import stretto_wire as wire
from stretto_core.profiling import facts as core
from stretto_core.types import Plan


def to_event(message: Any) -> Any:
    """The core event of ``message``; None: none of the profiler's business."""
    translate = _EVENTS.get(type(message))
    return translate(message) if translate else None


def to_message(job: str, fact: Any) -> Any:
    """The wire message of a core fact."""
    return _FACTS[type(fact)](job=job, **asdict(fact))


def _worker(message: wire.WorkerReported) -> core.WorkerReported:
    fields = message.model_dump(exclude={"job", "times"})
    return core.WorkerReported(times=core.StepTimes(**message.times.model_dump()), **fields)


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
    wire.PsReported: lambda m: core.PsReported(**m.model_dump(exclude={"job"})),
}

_FACTS: dict[type, type[wire.Message]] = {
    core.ProfileMeasured: wire.ProfileMeasured,
    core.StragglerDetected: wire.StragglerDetected,
    core.StragglerCleared: wire.StragglerCleared,
    core.HotPsDetected: wire.HotPsDetected,
    core.HotPsCleared: wire.HotPsCleared,
}

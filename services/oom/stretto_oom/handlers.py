"""Wire message <-> event and fact of the memory watch. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stretto_core import oom as memory
from stretto_messages.actuator import JobFailed, PlanApplied, PodExited, PodResized
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import JobCancelled
from stretto_messages.oom import OomForecast
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Interval, PsForecast
from stretto_wire.spec import ModelSpec
from stretto_wire.submission import JobSubmitted

KEY_BYTES = 8
FLOAT_BYTES = 4


def row_bytes(model: ModelSpec) -> int:
    """One category: its key, its weights and the optimiser's slots (Adagrad [w|a], Adam [w|m|v|t])."""
    dimension = model.embedding_dim
    floats = 2 * dimension if model.optimizer == "adagrad" else 3 * dimension + 1
    return KEY_BYTES + FLOAT_BYTES * floats


def _opened(message: JobSubmitted, table_slots: int) -> memory.WatchOpened:
    spec = message.spec
    bounds = spec.resources.ps.memory
    return memory.WatchOpened(spec.samples_total, row_bytes(spec.model), bounds.min, bounds.max, table_slots)


def _measured(message: ProfileMeasured) -> memory.MemoryMeasured:
    servers = tuple(
        memory.ServerMeasured(ps.pod, ps.memory_used_bytes, ps.memory_limit_bytes, ps.categories, ps.buckets)
        for ps in message.ps
    )
    return memory.MemoryMeasured(servers, message.settled)


def _of_server(pod: str, event: Any) -> Any:
    return event if pod.startswith("ps-") else None


_EVENTS: dict[type[Message], Callable[[Any], Any]] = {
    ProfileMeasured: _measured,
    JobProgressed: lambda m: memory.ProgressSeen(m.samples_done, m.samples_total, m.samples_per_s),
    PlanDecided: lambda m: memory.LimitDecided(m.plan.ps_memory_bytes),
    PlanApplied: lambda m: memory.LimitChanged(m.plan.ps_memory_bytes),
    PodResized: lambda m: _of_server(m.pod, memory.LimitChanged(m.memory_bytes, m.pod)),
    PodExited: lambda m: _of_server(m.pod, memory.ServerLeft(m.pod, m.reason == "oom-killed")),
    JobCompleted: lambda m: memory.WatchClosed(completed=True),
    JobCancelled: lambda m: memory.WatchClosed(),
    JobFailed: lambda m: memory.WatchClosed(),
}


def to_event(message: Message, table_slots: int) -> Any:
    """The watch's event of a message; None for pods that are no parameter servers."""
    if isinstance(message, JobSubmitted):
        return _opened(message, table_slots)
    return _EVENTS[type(message)](message)


def _server(server: memory.ServerForecast) -> PsForecast:
    return PsForecast(
        pod=server.pod,
        used_bytes=server.used_bytes,
        limit_bytes=server.limit_bytes,
        at_end_bytes=server.at_end_bytes,
        at_end_interval_bytes=Interval(low=float(server.at_end_low_bytes), high=float(server.at_end_high_bytes)),
        oom_in_s=server.oom_in_s,
        oom_at_samples=server.oom_at_samples,
    )


def to_message(job: str, fact: memory.OomForecast) -> OomForecast:
    """The forecast on the wire."""
    return OomForecast(
        job=job,
        ps=tuple(_server(server) for server in fact.servers),
        samples_done=fact.samples_done,
        samples_total=fact.samples_total,
        horizon_s=fact.horizon_s,
        recommended_ps_memory_bytes=fact.recommended_bytes,
        limit_ps_memory_bytes=fact.limit_bytes,
        action=fact.action,  # type: ignore[arg-type]
        reason=fact.reason,
    )

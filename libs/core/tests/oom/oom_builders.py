"""Messages as the memory watch receives them; what it does not read is of the registered examples."""

from __future__ import annotations

from collections.abc import Iterable

from facts import maker
from stretto_messages.actuator import PlanApplied, PodExited
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB
from stretto_messages.dispatcher import JobProgressed
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Plan, PsProfile


def plan(ps_memory_bytes: int) -> Plan:
    return Plan(2, 2, 1.0, 1.0, GIB, ps_memory_bytes)


def server_measured(
    pod: str,
    used_bytes: int,
    limit_bytes: int,
    rows: int,
    buckets: int,
    row_bytes: float = 152.6,
    table_bytes: int | None = None,
) -> PsProfile:
    """``table_bytes``: as many as ``row_bytes`` give where they are not stated."""
    return PsProfile(
        pod=pod,
        cpu_used_cores=0.5,
        cpu_limit_cores=1.0,
        memory_used_bytes=used_bytes,
        memory_limit_bytes=limit_bytes,
        categories=rows,
        row_bytes=row_bytes,
        table_bytes=int(rows * row_bytes) if table_bytes is None else table_bytes,
        buckets=buckets,
        update_time_s=0.002,
    )


progressed = maker(JobProgressed, "samples_done", "samples_total", "samples_per_s")


def measured(servers: Iterable[PsProfile], settled: bool = True) -> ProfileMeasured:
    return maker(ProfileMeasured)(ps=tuple(servers), settled=settled)


def limit_decided(limit_bytes: int) -> PlanDecided:
    return maker(PlanDecided)(plan=plan(limit_bytes))


def limit_changed(limit_bytes: int) -> PlanApplied:
    return maker(PlanApplied)(plan=plan(limit_bytes))


def server_exited(pod: str, oom_killed: bool = False) -> PodExited:
    return maker(PodExited)(pod=pod, reason="oom-killed" if oom_killed else "stopped", exit_code=137)

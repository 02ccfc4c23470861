"""Remedies for servers whose rows outgrow their memory: more memory, more servers, or rows on their disks.

Each remedy is stated at the rows of the same moment, the furthest that the forecast is sure enough to ask memory for.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace

from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import PsProfile, Remedy

from stretto_core.model import spilling
from stretto_core.model.types import JobProfile, servers_to_hold
from stretto_core.oom.usage import ServerUsage, rest_bytes


@dataclass(frozen=True, slots=True)
class Known:
    """Figures of a job's latest windows: the noise of its step time, and how its reads differ from the curve."""

    noise: float = 0.0
    reads: spilling.Correction = field(default_factory=spilling.Correction)


_NOTHING = Known()


def remedies(
    usage: ServerUsage, need_bytes: int, measured: ProfileMeasured, pod: str, job: JobProfile, known: Known = _NOTHING
) -> tuple[Remedy, ...]:
    """Return what may be done for the server ``pod``, the fullest, if all its rows need ``need_bytes``.

    Empty if no server has told its curve or its disk's reads, so that there is nothing to compare with.
    """
    server = next((each for each in measured.ps if each.pod == pod), None)
    plan, high = measured.plan, job.limits.high
    if server is None or not measured.miss_ratios or server.disk_reads_per_s < 1 or _steps(measured) < 1:
        return ()

    def found() -> Iterator[Remedy]:
        if need_bytes <= high.ps_memory_bytes:
            more = replace(plan, ps_memory_bytes=need_bytes)
            yield Remedy(kind="grow", ps=plan.ps, ps_memory_bytes=need_bytes, cost_per_hour=job.cost_per_hour(more))
        each = plan.ps_memory_bytes if need_bytes <= high.ps_memory_bytes else high.ps_memory_bytes
        rest = rest_bytes(usage)
        wider = replace(plan, ps=servers_to_hold(plan.ps, need_bytes, rest, each), ps_memory_bytes=each)
        if plan.ps < wider.ps <= high.ps:
            yield Remedy(kind="move", ps=wider.ps, ps_memory_bytes=each, cost_per_hour=job.cost_per_hour(wider))
        rows = max(float(usage.rows), (need_bytes - rest) / max(server.row_bytes, 1.0))
        yield from _spill(rows, rest, measured, server, job, known)

    return tuple(found())


def _spill(
    rows: float, rest_bytes: float, measured: ProfileMeasured, server: PsProfile, job: JobProfile, known: Known
) -> Iterator[Remedy]:
    """Yield the remedy of evicting rows, unless policy, disk or memory does not allow it."""
    plan, row_bytes = measured.plan, server.row_bytes
    hot = spilling.hot_rows(rows, row_bytes, rest_bytes + server.buckets * spilling.AHEAD_BYTES, plan.ps_memory_bytes)
    disk_bytes = spilling.log_bytes(rows - hot, row_bytes)
    room_bytes = server.disk_free_bytes + server.log_bytes
    if job.spill_limit_bytes:
        room_bytes = min(room_bytes, job.spill_limit_bytes)
    if job.spill == "never" or measured.spill_fault or not hot or disk_bytes > room_bytes:
        return
    steps = _steps(measured)
    pulled, reads_now = server.rows_pulled / steps, server.rows_read / steps
    told = spilling.reads_per_step(measured.miss_ratios, hot / rows, rows, pulled)
    reads = known.reads.reads(told, pulled)
    reads_interval = known.reads.interval(reads, pulled)
    step = spilling.Step(
        measured.step_time_s,
        measured.times.grad_s,
        plan.workers,
        server.disk_reads_per_s,
        rows=pulled,
        cpu_s=server.cpu_used_cores * measured.window_s / steps,
        cores=server.cpu_limit_cores or math.inf,
    ).without(reads_now)
    yield Remedy(
        kind="spill",
        ps=plan.ps,
        ps_memory_bytes=plan.ps_memory_bytes,
        cost_per_hour=job.cost_per_hour(plan) + job.prices.of_disk(plan.ps * disk_bytes),
        slowdown=step.slowdown(reads),
        slowdown_interval=step.slowdown_interval(reads_interval),
        noise=known.noise,
        reads_per_step=reads,
        reads_interval=reads_interval,
        reads_measured=reads_now,
        hot_share=hot / rows,
        disk_bytes=disk_bytes,
    )


def read_ratio(measured: ProfileMeasured, evicted: Container[str]) -> float | None:
    """Return the rows that servers read in a window over those that the curve tells; None if nothing can be said.

    Only servers that evict rows now are compared, of those which did so before: ``evicted``. In the window in which
    its first rows go, fewer were away than at its end. After one got more memory, rows that nobody uses stay on its
    disk.
    """
    steps, read, told, pulled_rows = _steps(measured), 0, 0.0, 0
    if not measured.miss_ratios or steps < 1:
        return None
    for server in measured.ps:
        full = server.memory_used_bytes > spilling.EVICTS_FROM * server.memory_limit_bytes
        if not (server.cold_rows and full and server.pod in evicted):
            continue
        hot_share, pulled = 1 - server.cold_rows / max(server.categories, 1), server.rows_pulled / steps
        read, pulled_rows = read + server.rows_read, pulled_rows + server.rows_pulled
        told += steps * spilling.reads_per_step(measured.miss_ratios, hot_share, server.categories, pulled)
    return spilling.read_ratio(read, told, pulled_rows)


def _steps(measured: ProfileMeasured) -> float:
    """Return the steps of all workers in the window."""
    return measured.throughput / measured.batch_size * measured.window_s

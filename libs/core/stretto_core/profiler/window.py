"""Sums of one window of telemetry, and the profiles made from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from stretto_messages.base import RATE_MAX, bounded
from stretto_messages.pods import DataWorkerReported, PsReported, WorkerReported
from stretto_messages.values import MISS_POINTS, FeedProfile, GroupProfile, Plan, PsProfile, StepTimes, WorkerProfile

from stretto_core.profiler.state import PodWindow, WindowSums


def add_ps(sums: WindowSums, report: PsReported) -> None:
    """Add the report of a parameter server."""
    sums.span_s += report.window_s
    sums.cpu_core_s += report.cpu_used_cores * report.window_s
    sums.count += report.updates
    sums.busy_s += report.updates * report.update_time_s
    sums.rows_pulled += report.rows_pulled
    sums.rows_read += report.rows_read


def add_worker(sums: WindowSums, report: WorkerReported, samples: int) -> None:
    """Add the report of a worker, in which it trained ``samples``."""
    times = report.times
    sums.span_s += report.window_s
    sums.cpu_core_s += report.cpu_used_cores * report.window_s
    sums.samples += samples
    sums.count += report.steps
    sums.busy_s += report.steps * report.step_time_s
    sums.emb_s += report.steps * times.emb_s
    sums.grad_s += report.steps * times.grad_s
    sums.upd_s += report.steps * times.upd_s
    sums.sync_s += report.steps * times.sync_s
    sums.read_s += report.steps * times.read_s
    sums.prepared_elsewhere += report.steps * report.prepared_elsewhere


def add_data_worker(sums: WindowSums, report: DataWorkerReported) -> None:
    """Add the report of a data worker."""
    sums.span_s += report.window_s
    sums.cpu_core_s += report.cpu_used_cores * report.window_s
    sums.batches += report.batches
    sums.busy_s += report.busy_s


def worker_profile(pod: str, window: PodWindow) -> WorkerProfile:
    """Return the means of a worker over the window; a step time of 0: it finished no step."""
    sums = window.sums
    return WorkerProfile(
        pod=pod,
        step_time_s=sums.busy_s / max(1, sums.count),
        samples_per_s=sums.samples / sums.span_s,
        cpu_used_cores=sums.cpu_core_s / sums.span_s,
        memory_used_bytes=window.memory_used_bytes,
        device=window.device,
        stage=window.stage,
    )


def group_profiles(plan: Plan, workers: Sequence[tuple[WorkerProfile, PodWindow]]) -> tuple[GroupProfile, ...]:
    """Return the workers of each stage and type of devices that the plan has; none where all have cores."""
    if not plan.groups:
        return ()
    planned = {(place.stage, place.device) for place in plan.worker_places}
    of_places = defaultdict[tuple[int, str], list[tuple[WorkerProfile, PodWindow]]](list)
    for worker, window in workers:
        of_places[worker.stage, worker.device].append((worker, window))
    return tuple(
        GroupProfile(
            device=device,
            workers=len(found),
            step_time_s=median(worker.step_time_s for worker, _ in found),
            times=median_times(window for _, window in found),
            stage=stage,
        )
        for (stage, device), found in sorted(of_places.items())
        if (stage, device) in planned
    )


def is_complete(plan: Plan, workers: Sequence[WorkerProfile], servers: Sequence[PsProfile]) -> bool:
    """Return True if these are the workers of each stage and type of devices, and the servers, that the plan has."""
    there = Counter((worker.stage, worker.device) for worker in workers)
    planned = Counter({(place.stage, place.device): count for place, count in plan.worker_places.items()})
    return there == planned and len(servers) == plan.servers


def ps_profile(pod: str, window: PodWindow) -> PsProfile:
    """Return the means of a parameter server over the window, and its sizes at the end of it."""
    sums = window.sums
    return PsProfile(
        pod=pod,
        cpu_used_cores=sums.cpu_core_s / sums.span_s,
        cpu_limit_cores=window.cpu_limit_cores,
        memory_used_bytes=window.memory_used_bytes,
        memory_limit_bytes=window.memory_limit_bytes,
        categories=window.categories,
        row_bytes=window.row_bytes,
        table_bytes=window.table_bytes,
        buckets=window.buckets,
        update_time_s=sums.busy_s / sums.count if sums.count else 0.0,
        cold_rows=window.told.cold_rows if window.told else 0,
        log_bytes=window.told.log_bytes if window.told else 0,
        warm_rows=window.told.warm_rows if window.told else 0,
        warm_bytes=window.told.warm_bytes if window.told else 0,
        disk_free_bytes=window.told.disk_free_bytes if window.told else 0,
        rows_pulled=sums.rows_pulled,
        rows_read=sums.rows_read,
        disk_reads_per_s=window.told.disk_reads_per_s if window.told else 0.0,
    )


def miss_ratios(servers: Sequence[PodWindow]) -> tuple[float, ...]:
    """Return the mean curve of those servers that tell one, each by the rows that were pulled from it.

    A message has one curve and not one of each of 400 servers, which would not fit into it. Their keys are hashed, so
    their curves are alike. A row's share is rounded to a ten thousandth.
    """
    told = [(window.told.miss_ratios, window.sums.rows_pulled) for window in servers if window.told]
    known = [(curve, pulled) for curve, pulled in told if curve and pulled]
    total = sum(pulled for _, pulled in known)
    return tuple(
        round(sum(curve[point] * pulled for curve, pulled in known) / total, 4)
        for point in range(MISS_POINTS if known else 0)
    )


def spill_fault(servers: Sequence[tuple[str, PodWindow]]) -> str:
    """Return the first server whose rows find no room, and why; "" if none says so."""
    faults = (f"{pod}: {window.told.spill_fault}" for pod, window in servers if window.told and window.told.spill_fault)
    return bounded(next(faults, ""))


def prepared_elsewhere(windows: Iterable[PodWindow]) -> float:
    """Return the share of the batches of all workers that data workers prepared."""
    all_sums = [window.sums for window in windows]
    return sum(sums.prepared_elsewhere for sums in all_sums) / max(1, sum(sums.count for sums in all_sums))


def feed_profile(workers: Sequence[PodWindow], data_workers: Sequence[PodWindow]) -> FeedProfile | None:
    """Return the data queue of the job; None if no worker has told how long it prepares a batch.

    A worker takes a batch in T - T_read, the part of a step in which it does not wait for one. A lane prepares one in
    its busy time over its batches. No time that a pod tells makes a rate larger than a message may carry.
    """
    telling = [window for window in workers if window.prepare_s > 0]
    if not telling:
        return None
    limits = [window for window in workers if window.cpu_limit_cores > 0]
    busy_s = sum(window.sums.busy_s for window in data_workers)
    batches = sum(window.sums.batches for window in data_workers)
    lanes = sum(window.lanes for window in data_workers)
    cores_s = sum(window.cpu_limit_cores * window.sums.span_s for window in limits)
    read_s, step_s = sum(w.sums.read_s for w in workers), sum(w.sums.busy_s for w in workers)
    return FeedProfile(
        dequeued_per_s=min(sum(_taken_per_s(window.sums) for window in workers), RATE_MAX),
        enqueued_per_s=min(lanes * batches / busy_s, RATE_MAX) if busy_s > 0 else 0.0,
        read_share=min(read_s / step_s, 1.0),
        prepare_s=median(window.prepare_s for window in telling),
        prepare_cpu_s=median(window.prepare_cpu_s for window in telling),
        cpu_share=min(sum(w.sums.cpu_core_s for w in limits) / cores_s, 1.0) if cores_s else 0.0,
        lanes=lanes,
    )


def _taken_per_s(sums: WindowSums) -> float:
    """Return the steps per second of a worker that does not wait; at most a thousand times those that it has."""
    without_s = max(sums.busy_s - sums.read_s, sums.busy_s / 1000, sums.count / RATE_MAX)
    return sums.count / without_s


def median_times(windows: Iterable[PodWindow]) -> StepTimes:
    """Return the medians over workers of the parts of a step."""
    all_sums = [window.sums for window in windows]
    return StepTimes(
        emb_s=median(sums.emb_s / max(1, sums.count) for sums in all_sums),
        grad_s=median(sums.grad_s / max(1, sums.count) for sums in all_sums),
        upd_s=median(sums.upd_s / max(1, sums.count) for sums in all_sums),
        sync_s=median(sums.sync_s / max(1, sums.count) for sums in all_sums),
        read_s=median(sums.read_s / max(1, sums.count) for sums in all_sums),
    )

"""Messages and observations of a job named "job", with defaults for the fields that a test does not care about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stretto_core.actuator.observations import (
    BucketsClaimed,
    CountsTaken,
    MovesFinished,
    MovesStarted,
    PlanConverged,
    PodGivenUp,
    PodResizeRefused,
    ServerCounts,
    ServerEmptied,
)
from stretto_messages.actuator import (
    GetServers,
    PodExited,
    PodPending,
    PodResized,
    PodStarted,
    ReplacementEnded,
)
from stretto_messages.arbiter import PlanDecided, ReplacementDecided
from stretto_messages.base import GIB
from stretto_messages.books import AppliedBooks, ColumnBooks, CompletedBooks, PartialShard, ShardApplied
from stretto_messages.checkpoints import CheckpointFailed, CheckpointFlushed, CheckpointRestored
from stretto_messages.dispatcher import JobCompleted, JobProgressed, LedgerReturn, RecomputationDecided, ShardAbandoned
from stretto_messages.gateway import JobCancelled
from stretto_messages.profiler import HotPsCleared, HotPsDetected
from stretto_messages.values import CheckpointRef, Plan, Shard

JOB = "job"


def plan(workers: int = 1, ps: int = 1, cpu: float = 1.0, memory: int = GIB) -> Plan:
    return Plan(workers, ps, cpu, cpu, memory, memory)


def role_of(pod: str) -> Any:
    return pod.partition("-")[0]


# messages ----------------------------------------------------------------------------------------------------------


def plan_decided(version: int, decided: Plan) -> PlanDecided:
    return PlanDecided(
        job=JOB,
        version=version,
        kind="improve",
        plan=decided,
        previous=None,
        throughput=None,
        throughput_interval=None,
        throughput_before=None,
        cost_per_hour=1.0,
        reasons=(),
        alternatives=(),
        algorithm="exact",
        free_cpu_cores=0.0,
        free_memory_bytes=0,
    )


def replacement_decided(pod: str, granted: bool) -> ReplacementDecided:
    return ReplacementDecided(job=JOB, pod=pod, granted=granted, reasons=())


def replacement_ended(pod: str) -> ReplacementEnded:
    return ReplacementEnded(job=JOB, pod=pod)


def hot_detected(pod: str, update_time_s: float, peers_update_time_s: float) -> HotPsDetected:
    return HotPsDetected(
        job=JOB,
        pod=pod,
        update_time_s=update_time_s,
        peers_update_time_s=peers_update_time_s,
        cpu_used_cores=1.0,
        cpu_limit_cores=1.0,
    )


def hot_cleared(pod: str, update_time_s: float, peers_update_time_s: float) -> HotPsCleared:
    return HotPsCleared(job=JOB, pod=pod, update_time_s=update_time_s, peers_update_time_s=peers_update_time_s)


def checkpoint(name: str) -> CheckpointRef:
    return CheckpointRef(id=name, url=f"file:/store/{name}/manifest.json", samples=0, size_bytes=0, ps=1)


def checkpoint_restored() -> CheckpointRestored:
    return CheckpointRestored(job=JOB, checkpoint=checkpoint("job-1"), ps=1, ledger="", request_id="job-restore-2")


def recomputation_decided(loss: int, granted: bool = True) -> RecomputationDecided:
    reason = "" if granted else "the shards that ended since are not all known"
    return RecomputationDecided(job=JOB, loss=loss, checkpoint="job-1", granted=granted, reason=reason)


def checkpoint_flushed(name: str) -> CheckpointFlushed:
    return CheckpointFlushed(job=JOB, checkpoint=checkpoint(name), took_s=1.0)


def checkpoint_failed(name: str, reason: str) -> CheckpointFailed:
    return CheckpointFailed(job=JOB, id=name, reason=reason)


def job_completed(
    samples_abandoned: int = 0,
    samples_before: int = 0,
    fingerprint: int | None = None,
    partial: Sequence[tuple[int, int]] = (),
    unproven: int = 0,
    samples: int = 0,
) -> JobCompleted:
    """``partial``: shards that nobody will complete, and how many samples of each count as done."""
    books = None
    if fingerprint is not None:
        books = CompletedBooks(
            samples_before=samples_before,
            fingerprint=f"{fingerprint:016x}",
            partial=tuple(PartialShard(shard=shard, known=known) for shard, known in partial),
            unproven=unproven,
        )
    return JobCompleted(
        job=JOB,
        samples=samples,
        samples_abandoned=samples_abandoned,
        epochs=1,
        shards=1,
        requeued=0,
        started_at_s=0.0,
        books=books,
    )


def job_progressed(samples_done: int, returned: LedgerReturn | None = None) -> JobProgressed:
    return JobProgressed(
        job=JOB,
        samples_done=samples_done,
        samples_total=1000,
        epoch=0,
        samples_per_s=0.0,
        shards_leased=1,
        shards_requeued_total=0,
        returned=returned,
    )


def shard_abandoned(samples: int, reason: str) -> ShardAbandoned:
    """A shard of which half as many samples were processed before."""
    shard = Shard(id=1, attempt=3, epoch=0, start=0, length=samples + samples // 2, offset=samples // 2)
    return ShardAbandoned(job=JOB, shard=shard, reason=reason)


def job_cancelled() -> JobCancelled:
    return JobCancelled(job=JOB)


def get_servers(pod: str = "worker-0") -> GetServers:
    return GetServers(job=JOB, request_id="test", pod=pod)


# observations ------------------------------------------------------------------------------------------------------


def pod_started(pod: str, cpu_cores: float, memory_bytes: int, cause: Any = "plan") -> PodStarted:
    return PodStarted(
        job=JOB,
        pod=pod,
        role=role_of(pod),
        plan_version=1,
        address=f"127.0.0.1:{pod.partition('-')[2]}",
        cpu_cores=cpu_cores,
        memory_bytes=memory_bytes,
        took_s=0.1,
        cause=cause,
    )


def pod_pending(pod: str, reason: Any, detail: str = "") -> PodPending:
    return PodPending(job=JOB, pod=pod, role=role_of(pod), reason=reason, detail=detail)


def pod_given_up(pod: str) -> PodGivenUp:
    return PodGivenUp(job=JOB, pod=pod)


def pod_resized(pod: str, cpu_cores: float, memory_bytes: int) -> PodResized:
    return PodResized(job=JOB, pod=pod, cpu_cores=cpu_cores, memory_bytes=memory_bytes)


def pod_resize_refused(pod: str) -> PodResizeRefused:
    return PodResizeRefused(job=JOB, pod=pod)


def pod_exited(pod: str, reason: Any, exit_code: int | None, detail: str = "") -> PodExited:
    return PodExited(job=JOB, pod=pod, role=role_of(pod), reason=reason, exit_code=exit_code, detail=detail)


def server_emptied(pod: str, version: int) -> ServerEmptied:
    return ServerEmptied(job=JOB, pod=pod, version=version)


def buckets_claimed(*pods: str) -> BucketsClaimed:
    return BucketsClaimed(job=JOB, pods=pods)


def moves_started(number: int, buckets: int) -> MovesStarted:
    return MovesStarted(job=JOB, number=number, sources=(), destinations=(), buckets=buckets)


def moves_finished(number: int, buckets: int) -> MovesFinished:
    return MovesFinished(job=JOB, number=number, buckets=buckets, moved_bytes=0, longest_freeze_s=0.0)


def plan_converged(version: int) -> PlanConverged:
    return PlanConverged(job=JOB, version=version)


def server_counts(
    columns_total: int,
    *counted: tuple[tuple[int, ...], int, int],
    shards: Sequence[tuple[int, tuple[int, ...], int]] = (),
    skipped_repeats: int = 0,
    rows: int = 0,
    checksum: str = "",
) -> ServerCounts:
    """``counted``: columns, samples, fingerprint. ``shards``: shard, columns, samples."""
    columns = (ColumnBooks(columns=own, samples=n, fingerprint=f"{mark:016x}") for own, n, mark in counted)
    applied = (ShardApplied(shard=shard, columns=own, samples=n) for shard, own, n in shards)
    return ServerCounts(
        skipped_repeats=skipped_repeats,
        rows=rows,
        checksum=checksum,
        applied=AppliedBooks(columns_total=columns_total, columns=tuple(columns), shards=tuple(applied)),
    )


def counts_taken(*servers: ServerCounts) -> CountsTaken:
    return CountsTaken(job=JOB, servers=servers, evaluation=None)

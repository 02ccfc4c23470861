"""Messages and observations of a job named "job", with defaults for the fields that a test does not care about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from facts import maker
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
from stretto_messages.actuator import GetServers, PodExited, PodPending, PodResized, PodStarted, ReplacementEnded
from stretto_messages.arbiter import PlanDecided, ReplacementDecided
from stretto_messages.base import GIB
from stretto_messages.books import AppliedBooks, ColumnBooks, CompletedBooks, PartialShard, ShardApplied
from stretto_messages.checkpoints import CheckpointFailed, CheckpointFlushed, CheckpointRestored
from stretto_messages.dispatcher import JobCompleted, JobProgressed, RecomputationDecided, ShardAbandoned
from stretto_messages.gateway import JobCancelled
from stretto_messages.profiler import HotPsCleared, HotPsDetected
from stretto_messages.values import CheckpointRef, Plan, Shard


def plan(workers: int = 1, ps: int = 1, cpu: float = 1.0, memory: int = GIB) -> Plan:
    return Plan(workers, ps, cpu, cpu, memory, memory)


# messages ----------------------------------------------------------------------------------------------------------


def checkpoint(name: str) -> CheckpointRef:
    return CheckpointRef(id=name, url=f"file:/store/{name}/manifest.json", samples=0, size_bytes=0, ps=1)


plan_decided = maker(PlanDecided, "version", "plan", kind="improve", previous=None)
replacement_decided = maker(ReplacementDecided, "pod", "granted")
replacement_ended = maker(ReplacementEnded, "pod")
hot_detected = maker(HotPsDetected, "pod", "update_time_s", "peers_update_time_s")
hot_cleared = maker(HotPsCleared, "pod", "update_time_s", "peers_update_time_s")
checkpoint_restored = maker(
    CheckpointRestored, checkpoint=checkpoint("job-1"), ps=1, ledger="", request_id="job-restore-2"
)
checkpoint_failed = maker(CheckpointFailed, "id", "reason")
job_progressed = maker(JobProgressed, "samples_done", samples_total=1000)
job_cancelled = maker(JobCancelled)
get_servers = maker(GetServers, "pod", pod="worker-0")


def recomputation_decided(loss: int, granted: bool = True) -> RecomputationDecided:
    reason = "" if granted else "the shards that ended since are not all known"
    return RecomputationDecided(job="job", loss=loss, checkpoint="job-1", granted=granted, reason=reason)


def checkpoint_flushed(name: str) -> CheckpointFlushed:
    return CheckpointFlushed(job="job", checkpoint=checkpoint(name), took_s=1.0)


def job_completed(
    samples_abandoned: int = 0,
    fingerprint: int | None = None,
    partial: Sequence[tuple[int, int]] = (),
    samples: int = 0,
    **books: int,
) -> JobCompleted:
    """``partial``: shards that nobody will complete, and how many samples of each count as done."""
    closed = None
    if fingerprint is not None:
        shards = tuple(PartialShard(shard=shard, known=known) for shard, known in partial)
        closed = CompletedBooks(fingerprint=f"{fingerprint:016x}", partial=shards, **books)
    return maker(JobCompleted, samples=samples, samples_abandoned=samples_abandoned, books=closed)()


def shard_abandoned(samples: int, reason: str) -> ShardAbandoned:
    """A shard of which half as many samples were processed before."""
    shard = Shard(id=1, attempt=3, epoch=0, start=0, length=samples + samples // 2, offset=samples // 2)
    return ShardAbandoned(job="job", shard=shard, reason=reason)


# observations ------------------------------------------------------------------------------------------------------


pod_pending = maker(PodPending, "pod", "reason", "detail", detail="")
pod_given_up = maker(PodGivenUp, "pod")
pod_resized = maker(PodResized, "pod", "cpu_cores", "memory_bytes")
pod_resize_refused = maker(PodResizeRefused, "pod")
pod_exited = maker(PodExited, "pod", "reason", "exit_code", "detail", detail="")
server_emptied = maker(ServerEmptied, "pod", "version")
moves_started = maker(MovesStarted, "number", "buckets", sources=(), destinations=())
moves_finished = maker(MovesFinished, "number", "buckets", moved_bytes=0, longest_freeze_s=0.0)
plan_converged = maker(PlanConverged, "version")
_started = maker(PodStarted, "pod", "cpu_cores", "memory_bytes", "cause", plan_version=1, cause="plan")


def pod_started(pod: str, *more: Any) -> PodStarted:
    return _started(pod, *more, address=f"127.0.0.1:{pod.partition('-')[2]}")


def buckets_claimed(*pods: str) -> BucketsClaimed:
    return BucketsClaimed(job="job", pods=pods)


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
    return CountsTaken(job="job", servers=servers, evaluation=None)

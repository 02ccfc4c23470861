"""Messages to events of the core, facts of the core to messages; nothing more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import stretto_wire as wire
from stretto_core import actuator as core
from stretto_core.checkpoints import is_final, is_restore
from stretto_core.dispatcher import Applied, Counted
from stretto_messages.actuator import (
    GetServers,
    GetServersReply,
    JobFailed,
    JobFinished,
    MigrationFinished,
    MigrationStarted,
    PlanApplied,
    PodExited,
    PodPending,
    PodResized,
    PodStarted,
    ReplacementAsked,
    ReplacementEnded,
    ServersChanged,
)
from stretto_messages.arbiter import PlanDecided, ReplacementDecided
from stretto_messages.books import AppliedBooks, ColumnBooks, ShardApplied, gathered, partly_done, spread
from stretto_messages.checkpoints import CheckpointFailed, CheckpointFlushed, CheckpointRestored
from stretto_messages.dispatcher import JobCompleted, ShardAbandoned
from stretto_messages.gateway import JobCancelled
from stretto_messages.profiler import HotPsCleared, HotPsDetected
from stretto_messages.values import Evaluation, ParameterServer, Plan

from . import observations as seen


def to_event(message: Any) -> Any:
    """The core event of ``message``; None: none of the actuator's business."""
    translate = _EVENTS.get(type(message))
    return translate(message) if translate else None


def to_message(job: str, fact: Any) -> Any:
    """The wire message of a core fact or reply."""
    return _FACTS[type(fact)](job, fact)


def _submitted(message: wire.JobSubmitted) -> core.JobSubmitted:
    spec = message.spec
    return core.JobSubmitted(
        job=message.job,
        spec=spec.model_dump_json(),
        samples_total=0 if spec.dataset.growing else spec.samples_total,
        evaluate=spec.evaluate,
        worker_failures=spec.restarts.worker_failures,
        samples_given_up_max=spec.restarts.samples_given_up,
        restores=spec.checkpoint.restore_from is not None,
        final_checkpoint=spec.checkpoint.every_s is not None or spec.checkpoint.url is not None,
        worker_memory_max_bytes=spec.resources.workers.memory.max,
    )


def _completed(message: JobCompleted) -> core.JobCompleted:
    books = message.books
    if books is None:
        return core.JobCompleted(message.samples_abandoned, samples=message.samples)
    return core.JobCompleted(
        message.samples_abandoned,
        books.samples_before,
        int(books.fingerprint, 16),
        tuple(partly_done(books)),
        books.unproven,
        message.samples,
    )


def _book(book: seen.BookOfPs) -> core.Book:
    applied = book.applied
    return core.Book(
        skipped_repeats=book.skipped_repeats,
        rows=book.rows,
        checksum=book.checksum,
        columns_total=applied.columns_total,
        counted=tuple(Counted(part.columns, part.samples, int(part.fingerprint, 16)) for part in applied.columns),
        applied=tuple(Applied(part.shard, part.columns, part.samples) for part in spread(applied)),
    )


def _gone(message: seen.PodGone) -> core.PodExited:
    return core.PodExited(message.pod, message.reason, message.exit_code, message.detail)


def _ready(message: seen.PodReady) -> core.PodStarted:
    return core.PodStarted(
        pod=message.pod,
        address=message.address,
        took_s=message.took_s,
        limits=message.limits,
        cpu_cores=message.cpu_cores,
        memory_bytes=message.memory_bytes,
        adopted=message.adopted,
    )


_EVENTS: dict[type, Callable[[Any], Any]] = {
    wire.JobSubmitted: _submitted,
    JobCancelled: lambda m: core.JobCancelled(),
    PlanDecided: lambda m: core.PlanDecided(m.version, m.plan),
    HotPsDetected: lambda m: core.HotPsDetected(m.pod, m.update_time_s, m.peers_update_time_s),
    HotPsCleared: lambda m: core.HotPsCleared(m.pod, m.update_time_s, m.peers_update_time_s),
    ReplacementDecided: lambda m: core.ReplacementDecided(m.pod, m.granted),
    CheckpointRestored: lambda m: core.CheckpointRestored(),
    CheckpointFlushed: lambda m: core.CheckpointFlushed(m.checkpoint.id, is_final(m.checkpoint.id)),
    CheckpointFailed: lambda m: core.CheckpointFailed(m.id, m.reason, is_final(m.id), is_restore(m.id)),
    JobCompleted: _completed,
    ShardAbandoned: lambda m: core.ShardAbandoned(m.shard.length - m.shard.offset, m.reason),
    GetServers: lambda m: core.ServersAsked(m.pod),
    seen.PodReady: _ready,
    seen.PodWaits: lambda m: core.PodPending(m.pod, m.reason, m.detail),
    seen.PodGivenUp: lambda m: core.PodGivenUp(m.pod),
    seen.PodGone: _gone,
    seen.PodLimited: lambda m: core.PodResized(m.pod, m.cpu_cores, m.memory_bytes),
    seen.PodFixed: lambda m: core.PodFixed(m.pod),
    seen.ServersClaimed: lambda m: core.BucketsClaimed(m.pods),
    seen.MoveBegun: lambda m: core.MigrationStarted(m.number, m.sources, m.destinations, m.buckets),
    seen.MoveEnded: lambda m: core.MigrationFinished(m.number, m.buckets, m.moved_bytes, m.longest_freeze_s),
    seen.PlanReached: lambda m: core.PlanApplied(m.version),
    seen.BooksTaken: lambda m: core.BooksTaken(tuple(_book(book) for book in m.books), m.evaluation),
}


def _servers(servers: tuple[core.Server, ...]) -> tuple[ParameterServer, ...]:
    return tuple(ParameterServer(**asdict(server)) for server in servers)


def _finished(job: str, fact: core.JobFinished) -> JobFinished:
    fields = {**_without(fact, "columns_total", "counted", "applied"), "evaluation": None}
    columns = tuple(
        ColumnBooks(columns=part.columns, samples=part.samples, fingerprint=f"{part.fingerprint:016x}")
        for part in fact.counted
    )
    parts = (ShardApplied(shard=part.shard, columns=part.columns, samples=part.samples) for part in fact.applied)
    shards = gathered(parts, sum(len(part.columns) for part in fact.counted))
    fields["applied"] = AppliedBooks(columns_total=fact.columns_total, columns=columns, shards=shards)
    if fact.evaluation is not None:
        samples, loss, auc = fact.evaluation
        fields["evaluation"] = Evaluation(samples=samples, loss=loss, auc=auc)
    return JobFinished(job=job, **fields)


def _without(fact: Any, *names: str) -> dict[str, Any]:
    return {key: value for key, value in asdict(fact).items() if key not in names}


_FACTS: dict[type, Callable[[str, Any], Any]] = {
    core.PodStarted: lambda job, f: PodStarted(job=job, **_without(f, "adopted")),
    core.PodPending: lambda job, f: PodPending(job=job, **asdict(f)),
    core.PodExited: lambda job, f: PodExited(job=job, **asdict(f)),
    core.PodResized: lambda job, f: PodResized(job=job, **asdict(f)),
    core.PlanApplied: lambda job, f: PlanApplied(
        job=job, version=f.version, plan=Plan(**asdict(f.plan)), took_s=f.took_s
    ),
    core.ServersChanged: lambda job, f: ServersChanged(job=job, version=f.version, servers=_servers(f.servers)),
    core.ServersKnown: lambda job, f: GetServersReply(
        job=job,
        answer="ok" if f.known else "unknown",
        version=f.version,
        plan_version=f.plan_version,
        servers=_servers(f.servers),
    ),
    core.MigrationStarted: lambda job, f: MigrationStarted(job=job, **_without(f, "number")),
    core.MigrationFinished: lambda job, f: MigrationFinished(job=job, **_without(f, "number")),
    core.ReplacementAsked: lambda job, f: ReplacementAsked(job=job, pod=f.pod),
    core.ReplacementEnded: lambda job, f: ReplacementEnded(job=job, pod=f.pod),
    core.JobFinished: _finished,
    core.JobFailed: lambda job, f: JobFailed(job=job, reason=f.reason[:2000]),
}

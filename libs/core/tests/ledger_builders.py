"""Messages as the ledger receives them, with the defaults of the tests."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from stretto_core.dispatcher.book import Book, Shard
from stretto_core.dispatcher.machine import ShardLedger
from stretto_messages.actuator import ParametersLost, PodExited
from stretto_messages.base import example_of
from stretto_messages.checkpoints import CheckpointFlushed, ColumnsRestored
from stretto_messages.dispatcher import AuditLedger, MarkLedger, NextShard, ReleaseShard, ShardHeartbeat, ShardReport
from stretto_messages.gateway import DataArrived, JobCancelled
from stretto_messages.profiler import StragglerDetected
from stretto_messages.values import CheckpointRef, DataPartition, MetricSum, PartialEvaluation

JOB = "j"
AUDIT = AuditLedger(job=JOB)


class Audited(NamedTuple):
    """The books as they are, and the shards that workers train or hold ahead, with their holders."""

    book: Book
    leased: list[tuple[str, Shard]]

    @property
    def shards(self) -> list[Shard]:
        return [shard for _, shard in self.leased]


def audited(ledger: ShardLedger) -> Audited:
    book = ledger.state.book
    assert book is not None
    workers = ledger.state.workers.items()
    held = [(name, shard) for name, worker in workers for shard in (worker.lease, worker.ahead) if shard is not None]
    leased = [(name, shard.copy()) for name, shard in held if not shard.held_out]
    return Audited(book.with_leases([]), leased)


def arrival(name: str, samples: int, priority: int = 0) -> DataPartition:
    return DataPartition(name=name, samples=samples, priority=priority)


def data_arrived(partitions: tuple[DataPartition, ...], closed: bool = False) -> DataArrived:
    return replace(example_of(DataArrived), job=JOB, partitions=partitions, closed=closed)


def evaluation(
    samples: int,
    loss_sum: float,
    positives: tuple[int, ...],
    negatives: tuple[int, ...],
    metrics: tuple[MetricSum, ...] = (),
) -> PartialEvaluation:
    return PartialEvaluation(
        samples=samples, loss_sum=loss_sum, positives=positives, negatives=negatives, metrics=metrics
    )


def next_shard(
    pod: str,
    request_id: str,
    shard: int | None = None,
    attempt: int = 0,
    found: PartialEvaluation | None = None,
    ahead: bool = False,
) -> NextShard:
    complete = None if shard is None else ShardReport(id=shard, attempt=attempt, evaluation=found)
    return NextShard(job=JOB, request_id=request_id, pod=pod, complete=complete, ahead=ahead)


def heartbeat(pod: str, shard: int, attempt: int, offset: int) -> ShardHeartbeat:
    return ShardHeartbeat(job=JOB, pod=pod, shard=shard, attempt=attempt, offset=offset, samples_per_s=1.0)


def release(pod: str, shard: int, attempt: int, offset: int, failure: str | None = None) -> ReleaseShard:
    return ReleaseShard(job=JOB, pod=pod, shard=shard, attempt=attempt, offset=offset, failure=failure)


def mark_ledger(request_id: str, after: str | None = None, checkpoint: str = "") -> MarkLedger:
    return MarkLedger(job=JOB, request_id=request_id, after=after, checkpoint=checkpoint)


def checkpoint(name: str) -> CheckpointRef:
    return CheckpointRef(id=name, url=f"file:/store/{name}/manifest.json", samples=0, size_bytes=0, ps=1)


def checkpoint_flushed(name: str) -> CheckpointFlushed:
    return CheckpointFlushed(job=JOB, checkpoint=checkpoint(name), took_s=1.0)


def parameters_lost(version: int) -> ParametersLost:
    return ParametersLost(job=JOB, pod="ps-1", version=version, servers=())


def columns_restored(loss: int, name: str, columns: int = 38) -> ColumnsRestored:
    return ColumnsRestored(
        job=JOB, loss=loss, checkpoint=checkpoint(name), columns=columns, size_bytes=1000, took_s=0.5
    )


def pod_exited(pod: str) -> PodExited:
    return replace(example_of(PodExited), job=JOB, pod=pod)


def straggler(pod: str, slowdown: float) -> StragglerDetected:
    """Also a worker that keeps pace again: ``slowdown`` 1."""
    return StragglerDetected(job=JOB, pod=pod, samples_per_s=1.0, peers_samples_per_s=slowdown, slowdown=slowdown)


def job_cancelled(by: str = "alice") -> JobCancelled:
    return replace(example_of(JobCancelled), job=JOB, by=by)

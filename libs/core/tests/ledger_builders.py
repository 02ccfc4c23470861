"""Messages as the ledger receives them, with the defaults of the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from facts import maker
from stretto_core.dispatcher.book import Book, Shard
from stretto_core.dispatcher.machine import ShardLedger
from stretto_messages.actuator import ParametersLost, PodExited
from stretto_messages.checkpoints import CheckpointFlushed, ColumnsRestored
from stretto_messages.dispatcher import AuditLedger, MarkLedger, NextShard, ReleaseShard, ShardHeartbeat, ShardReport
from stretto_messages.gateway import DataArrived, JobCancelled
from stretto_messages.profiler import StragglerDetected
from stretto_messages.values import CheckpointRef, DataPartition, PartialEvaluation

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
    workers = ledger.state.workers.items()
    held = [(name, shard) for name, worker in workers for shard in (worker.lease, worker.ahead) if shard is not None]
    leased = [(name, shard.copy()) for name, shard in held if not shard.held_out]
    return Audited(book.with_leases([]), leased)


def arrival(name: str, samples: int, priority: int = 0) -> DataPartition:
    return DataPartition(name=name, samples=samples, priority=priority)


def message(kind: type[Any], /, *names: str, **known: Any) -> Callable[..., Any]:
    return maker(kind, *names, job=JOB, **known)


data_arrived = message(DataArrived, "partitions", "closed", closed=False)
heartbeat = message(ShardHeartbeat, "pod", "shard", "attempt", "offset")
release = message(ReleaseShard, "pod", "shard", "attempt", "offset", "failure", failure=None)
mark_ledger = message(MarkLedger, "request_id", "after", "checkpoint", after=None, checkpoint="")
parameters_lost = message(ParametersLost, "version", pod="ps-1", servers=())
pod_exited = message(PodExited, "pod")
job_cancelled = message(JobCancelled, "by", by="alice")
_restored = message(ColumnsRestored, "loss", "checkpoint", "columns", columns=38)


def columns_restored(loss: int, name: str, **more: int) -> ColumnsRestored:
    return _restored(loss, checkpoint(name), **more)


def evaluation(samples: int, loss_sum: float, *histograms: tuple[int, ...], **more: Any) -> PartialEvaluation:
    positives, negatives = histograms
    return PartialEvaluation(samples=samples, loss_sum=loss_sum, positives=positives, negatives=negatives, **more)


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


def checkpoint(name: str) -> CheckpointRef:
    return CheckpointRef(id=name, url=f"file:/store/{name}/manifest.json", samples=0, size_bytes=0, ps=1)


def checkpoint_flushed(name: str) -> CheckpointFlushed:
    return CheckpointFlushed(job=JOB, checkpoint=checkpoint(name), took_s=1.0)


def straggler(pod: str, slowdown: float) -> StragglerDetected:
    """Also a worker that keeps pace again: ``slowdown`` 1."""
    return StragglerDetected(job=JOB, pod=pod, samples_per_s=1.0, peers_samples_per_s=slowdown, slowdown=slowdown)

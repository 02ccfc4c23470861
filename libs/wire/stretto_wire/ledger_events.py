"""Facts of the ledger: the data of a job, who trains which of them, and what came of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Count, EpochSeconds, Message, PodId, Rate, Text
from .books import CompletedBooks
from .values import DataPartition, Evaluation, Shard

__all__ = [
    "DataArrived",
    "EvaluationMeasured",
    "JobCompleted",
    "JobProgressed",
    "ShardAbandoned",
    "ShardCompleted",
    "ShardLeased",
    "ShardRequeued",
]


class DataArrived(Message):
    """Partitions of a growing dataset have these totals now, which only grow. ``closed``: nothing more comes."""

    partitions: Annotated[tuple[DataPartition, ...], Field(max_length=1000)] = ()
    closed: bool = False


class ShardLeased(Message):
    """A worker holds a shard."""

    shard: Shard
    pod: PodId


class ShardCompleted(Message):
    """Every sample of a shard has been applied."""

    shard: Shard
    pod: PodId


class ShardRequeued(Message):
    """The unprocessed rest of a shard goes to somebody else."""

    shard: Shard
    pod: PodId
    reason: Literal["pod-exited", "lease-expired", "released", "failed", "straggler"]


class ShardAbandoned(Message):
    """A shard failed by itself as often as allowed: its data are dead-lettered, by name, and the job goes on."""

    shard: Shard
    reason: Text


class JobProgressed(Message):
    """How far a job is; some seconds apart."""

    samples_done: Count
    samples_total: Annotated[Count, Field(description="of all epochs; of a dataset that grows: known so far")]
    epoch: Count
    samples_per_s: Rate
    shards_leased: Count
    shards_requeued_total: Count


class JobCompleted(Message):
    """Every sample of every epoch was trained (or dead-lettered by name)."""

    samples: Count
    samples_abandoned: Count
    epochs: Count
    shards: Count
    requeued: Count
    started_at_s: EpochSeconds
    books: CompletedBooks | None = None


class EvaluationMeasured(Message):
    """Quality on the held-out samples while training went on, between these numbers of samples done."""

    samples_done: Count
    samples_done_after: Count
    evaluation: Evaluation

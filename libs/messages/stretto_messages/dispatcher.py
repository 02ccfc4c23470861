"""Facts of the dispatcher about shards, progress and the end of the data; the requests that it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, MaxLen

from stretto_messages.base import (
    Count,
    EpochSeconds,
    Message,
    Name,
    PodId,
    Rate,
    Record,
    RequestId,
    Seconds,
    Text,
    example,
)
from stretto_messages.books import CompletedBooks, LedgerBooks
from stretto_messages.scenario import BOOKS, COMPLETED, JOB, LEDGER, REST, SHARD
from stretto_messages.values import Evaluation, PartialEvaluation, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLeased(Message):
    """A worker holds a shard."""

    shard: Shard
    pod: PodId


example(ShardLeased(job=JOB, shard=SHARD, pod="worker-1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardCompleted(Message):
    """Every sample of a shard has been applied."""

    shard: Shard
    pod: PodId


example(ShardCompleted(job=JOB, shard=SHARD, pod="worker-1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRequeued(Message):
    """The unprocessed rest of a shard returns to the queue."""

    shard: Shard
    pod: PodId
    reason: Literal["pod-exited", "lease-expired", "released", "failed", "straggler"]


example(ShardRequeued(job=JOB, shard=REST, pod="worker-1", reason="pod-exited"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAbandoned(Message):
    """A shard failed by itself as often as allowed: its data are dead-lettered, by name, and the job goes on."""

    shard: Shard
    reason: Text


example(ShardAbandoned(job=JOB, shard=REST, reason="3 attempts failed: row 10191002 has 38 columns instead of 39"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerReturn(Record):
    """The ledger went back to a checkpoint; ``samples_before`` were done in the ledger until then.

    ``samples_gained`` are done in the checkpoint alone: after a restoration from a backup that is older. They are not
    trained again. ``samples_undone`` were done in the ledger alone, and are trained again.
    """

    checkpoint: Name
    samples_before: Count
    samples_gained: Count
    samples_undone: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgressed(Message):
    """Progress of a job; published every few seconds."""

    samples_done: Count
    samples_total: Count
    """Samples of all epochs; of a growing dataset, those known so far."""
    epoch: Count
    samples_per_s: Rate
    shards_leased: Count
    shards_requeued_total: Count
    returned: LedgerReturn | None = None
    """Set once, when the ledger has just gone back to a checkpoint."""
    samples_recomputed: Count = 0
    """Samples handed out again so far, for columns that came back from a checkpoint while the others went on."""


example(
    JobProgressed(
        job=JOB,
        samples_done=10_190_848,
        samples_total=91_681_234,
        epoch=0,
        samples_per_s=35900.0,
        shards_leased=2,
        shards_requeued_total=1,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompleted(Message):
    """Every sample of every epoch was trained (or dead-lettered by name), or training stopped early.

    ``stopped`` says why it did, and ``samples_left`` how many samples it left out.
    """

    samples: Count
    samples_abandoned: Count
    epochs: Count
    shards: Count
    requeued: Count
    started_at_s: EpochSeconds
    books: CompletedBooks | None = None
    stopped: Text | Literal[""] = ""
    samples_left: Count = 0


example(
    JobCompleted(
        job=JOB,
        samples=91_681_234,
        samples_abandoned=0,
        epochs=2,
        shards=2798,
        requeued=1,
        started_at_s=1794998598.25,
        books=COMPLETED,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMeasured(Message):
    """Quality on held-out samples while training went on, between these numbers of samples done.

    ``partition``: that of the samples; empty where data have none. ``trained_next``: the samples are a window's, which
    is trained after this evaluation; nothing was trained during it, so that both numbers are equal. ``best``: it is the
    best one so far, by the metric that the job names.
    """

    samples_done: Count
    samples_done_after: Count
    evaluation: Evaluation
    partition: Annotated[str, MaxLen(60)] = ""
    trained_next: bool = False
    best: bool = False


example(
    EvaluationMeasured(
        job=JOB,
        samples_done=10_000_000,
        samples_done_after=10_190_848,
        evaluation=Evaluation(samples=100_000, loss=0.4633, auc=0.7871),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputationDecided(Message):
    """The dispatcher hands out again what restored columns lack, each shard under its id; other columns skip it.

    ``granted`` is false if the books do not say what the columns lack: all parameters return to a checkpoint then.
    """

    loss: Annotated[int, Ge(1)]
    """Version of the ParametersLost."""
    checkpoint: Name
    granted: bool
    shards: Count = 0
    samples: Count = 0
    """Samples of these shards."""
    reason: Text = ""
    """Set if it is not granted."""


example(
    RecomputationDecided(job=JOB, loss=4, checkpoint="ctr-ranking-42-000003", granted=True, shards=8, samples=262_144)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport(Record):
    """A worker's report that every sample of a shard has been applied by the parameter servers, or evaluated."""

    id: Count
    attempt: Annotated[int, Ge(1)]
    evaluation: PartialEvaluation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NextShard(Message):
    """Complete one shard and lease another, in one request. The same ``request_id`` gets the same reply."""

    request_id: RequestId
    pod: PodId
    complete: ShardReport | None = None
    ahead: bool = False
    """The worker can read a shard ahead of the one that it trains."""


example(NextShard(job=JOB, request_id="worker-1:312", pod="worker-1", complete=ShardReport(id=310, attempt=1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NextShardReply(Message):
    """The next shard. ``wait``: nothing is free now, ask again; ``end``: the job is over; ``unknown``: see below.

    ``unknown``: there is no such job, or the pod is known to have exited. ``stale``: the
    completed lease belongs to another worker now.
    """

    answer: Literal["shard", "wait", "end", "unknown"]
    shard: Shard | None = None
    wait_s: Seconds = 0.0
    stale: bool = False
    forget: Annotated[tuple[Count, ...], MaxLen(256)] = ()
    """Finished shards whose progress records the parameter servers may delete."""
    servers_version: Count = 0
    """The least version of ServersChanged under which the shard may be trained: a server that an older list names may
    count as lost and serve on."""
    lineage: Count = 0
    """Number of the return to a checkpoint that the ledger comes from; 0: none. The shard may be trained, and records
    deleted, only on parameters of the same lineage."""
    ahead: Shard | None = None
    """The shard that follows when the leased one is complete, under this attempt. It may be read, and is not trained
    before a reply leases it: until then it may go to another worker, under the same attempt."""


example(NextShardReply(job=JOB, answer="shard", shard=SHARD, forget=(307, 308)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHeartbeat(Message):
    """A worker lives and has processed ``offset`` samples of its shard."""

    pod: PodId
    shard: Count
    attempt: Annotated[int, Ge(1)]
    offset: Count
    samples_per_s: Rate


example(ShardHeartbeat(job=JOB, pod="worker-1", shard=311, attempt=1, offset=12_288, samples_per_s=17700.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHeartbeatReply(Message):
    """Answer to a heartbeat. ``stale``: another worker holds the lease; stop training it and ask for the next shard.

    ``unknown``: there is no such job, or the pod is known to have exited.
    """

    answer: Literal["ok", "stale", "unknown"]


example(ShardHeartbeatReply(job=JOB, answer="ok"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseShard(Message):
    """A worker gives its shard back, because it leaves or because the data fail."""

    pod: PodId
    shard: Count
    attempt: Annotated[int, Ge(1)]
    offset: Count
    failure: Text | None = None
    """Set when the data themselves failed, not the pod."""
    repeated: Count = 0
    """Samples behind the offset that a program may have trained all the same, and that it gets a second time."""

    SELDOM: ClassVar[frozenset[str]] = frozenset({"repeated"})


example(ReleaseShard(job=JOB, pod="worker-1", shard=311, attempt=1, offset=12_288))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseShardReply(Message):
    """Answer to ReleaseShard. ``stale``: the lease was not this worker's."""

    answer: Literal["ok", "stale", "unknown"]


example(ReleaseShardReply(job=JOB, answer="ok"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLedger(Message):
    """Ask for the ledger's state at this instant, for a checkpoint whose pushes are frozen now.

    Images that are copied while training goes on need two marks: one before the first image, and one after the last,
    with ``after`` the ``request_id`` of the first. The second belongs to the images: it lists as outstanding
    whatever was not complete at the first or was leased since, and the records in the images filter it.
    """

    request_id: RequestId
    after: RequestId | None = None
    checkpoint: Annotated[str, MaxLen(200)] = ""
    """Name of the checkpoint, as CheckpointFlushed will have it. With the first mark only."""


example(MarkLedger(job=JOB, request_id="mark-first.ctr-ranking-42-000003", checkpoint="ctr-ranking-42-000003"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkLedgerReply(Message):
    """The ledger's state as a document that only the dispatcher reads; CheckpointRestored carries it back."""

    answer: Literal["ok", "unknown"]
    ledger: Annotated[str, MaxLen(200_000)] = ""
    samples_done: Count = 0


example(MarkLedgerReply(job=JOB, answer="ok", ledger=LEDGER, samples_done=10_158_080))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnLedger(Message):
    """Go back to the ledger's state at a checkpoint that a program of level 2 took, whose parameters go back with it.

    Every lease comes back: whoever holds one trains parameters that are given up.
    """

    request_id: RequestId
    pod: PodId
    checkpoint: Name
    ledger: Annotated[str, MaxLen(200_000)]
    """Document of the MarkLedgerReply of that checkpoint."""


example(
    ReturnLedger(
        job=JOB,
        request_id="worker-1.return-ledger.0",
        pod="worker-1",
        checkpoint="ctr-ranking-42-000003",
        ledger=LEDGER,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnLedgerReply(Message):
    """Books of the job after the return. ``unknown``: there is no such job, or the job is over."""

    answer: Literal["ok", "unknown"]
    samples_done: Count = 0


example(ReturnLedgerReply(job=JOB, answer="ok", samples_done=10_158_080))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLedger(Message):
    """Ask for the books at this instant. Changes nothing."""


example(AuditLedger(job=JOB))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLedgerReply(Message):
    """The books: the place of every sample."""

    answer: Literal["ok", "unknown"]
    ledger: LedgerBooks | None = None


example(AuditLedgerReply(job=JOB, answer="ok", ledger=BOOKS))

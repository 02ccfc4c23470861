"""What a shard ledger says: facts for everybody, replies for the one who asked."""

from __future__ import annotations

from dataclasses import dataclass

from stretto_core.dispatcher.book import Book, GivenUp, Partial, Shard


@dataclass(frozen=True, slots=True)
class ShardLeased:
    """``worker`` holds ``shard``."""

    shard: Shard
    worker: str


@dataclass(frozen=True, slots=True)
class ShardCompleted:
    """Every sample of ``shard`` is applied."""

    shard: Shard
    worker: str


@dataclass(frozen=True, slots=True)
class ShardRequeued:
    """The unprocessed rest of ``shard`` waits for somebody else.

    ``reason``: pod-exited, lease-expired, released, failed or straggler.
    """

    shard: Shard
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class ShardAbandoned:
    """``shard`` failed by itself as often as allowed: dead-lettered, by name; the job goes on."""

    shard: Shard
    reason: str


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """How far the job is. ``samples_done`` counts the reported offsets of open leases, too."""

    samples_done: int
    samples_total: int
    epoch: int
    samples_per_s: float
    shards_leased: int
    shards_requeued_total: int


@dataclass(frozen=True, slots=True)
class EvaluationMeasured:
    """Mean log loss and AUC on held-out samples, between two numbers of samples done: training went on."""

    samples_done: int
    samples_done_after: int
    samples: int
    loss: float
    auc: float


@dataclass(frozen=True, slots=True)
class JobCompleted:
    """Every sample of every epoch was trained, or abandoned by name."""

    samples: int
    samples_abandoned: int
    epochs: int
    shards: int
    requeued: int
    started_at_s: float
    samples_before: int = 0
    fingerprint: int = 0
    """of ``samples_before`` and ``samples``: what every column of the parameters should have counted"""
    given_up: tuple[GivenUp, ...] = ()
    """the dead-letter list; what of it does not fit is only part of ``samples_abandoned``"""
    partial: tuple[Partial, ...] = ()
    unproven: int = 0


@dataclass(slots=True)
class NextReply:
    """``answer``: shard, wait (``wait_s``), end, or unknown (no such job, or the pod has exited).

    ``stale``: the completion was of a lease that is not this worker's any more. ``forget``: finished shards whose
    progress records the parameter servers may delete. Mutable only because it is remembered in the state.
    """

    answer: str
    shard: Shard | None = None
    wait_s: float = 0.0
    stale: bool = False
    forget: list[int] | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """ok, stale (stop training this shard, ask for the next) or unknown (no such job, or the pod has exited)."""

    answer: str


@dataclass(frozen=True, slots=True)
class ReturnReply:
    """ok, stale or unknown, as of a heartbeat."""

    answer: str


@dataclass(frozen=True, slots=True)
class MarkReply:
    """The books to restore from; None when the job is unknown."""

    book: Book | None
    samples_done: int


@dataclass(frozen=True, slots=True)
class AuditReply:
    """The books beside the leases, by worker; why nothing is leased any more, if so. None: the job is unknown."""

    book: Book | None
    leased: dict[str, Shard]
    closed: str

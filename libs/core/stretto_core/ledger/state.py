"""What a shard ledger remembers, and its settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from stretto_core.ledger.book import Book, LedgerError, Shard
from stretto_core.ledger.facts import NextReply

PEER_HEARD_S = 5.0
"""a worker that holds a shard beats once a second, one that waits asks twice"""


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """Times of the ledger, in seconds.

    ``deaf_after_s``: when the ledger itself heard nothing at all for longer (its service was away), that time does
    not count as anybody's silence. ``forget_after_s``: how long after its completion the progress records of a shard
    may be deleted; longer than any push can be under way. ``shard_facts_per_s``: leases and completions told one by
    one; a job with more of them is followed by its progress (requeued and abandoned shards are always told).
    """

    lease_timeout_s: float = 30.0
    wait_s: float = 0.5
    progress_every_s: float = 2.0
    rate_memory_s: float = 10.0
    deaf_after_s: float = 5.0
    forget_after_s: float = 15.0
    shard_facts_per_s: float = 50.0

    def __post_init__(self) -> None:
        if self.lease_timeout_s <= self.deaf_after_s:
            raise LedgerError("lease_timeout_s", self.lease_timeout_s, f"more than deaf_after_s, {self.deaf_after_s}")


@dataclass(slots=True)
class Worker:
    """What the ledger knows of one worker: its lease, its pace, and its last request with the reply to it.

    The last completion is kept beside them: a late copy of an older request may have taken the reply's place.
    """

    heard_at_s: float
    lease: Shard | None = None
    slowdown: float = 1.0
    request_id: str = ""
    reply: NextReply | None = None
    completed_id: int = -1
    completed_attempt: int = 0


@dataclass(slots=True)
class Finished:
    """A completed shard whose progress records can be deleted some time after."""

    id: int
    at_s: float


@dataclass(slots=True)
class OpenMark:
    """A checkpoint is being taken since ``at_s``: what was leased then or since, and is over."""

    id: str
    at_s: float
    over: list[Shard] = field(default_factory=list[Shard])
    """their ``offset``: how far each was when it ended"""


@dataclass(slots=True)
class LedgerState:
    """The whole memory of one job's ledger. Its size grows with the workers, not with the data."""

    book: Book | None = None
    shard_failures_max: int = 3
    opened_at_s: float = 0.0
    closed: str = ""
    """why nothing is leased any more: completed, or the reason of a cancellation or failure"""
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    exited: dict[str, float] = field(default_factory=dict[str, float])
    """when the last pods that exited did so, oldest first"""
    finished: list[Finished] = field(default_factory=list[Finished])
    mark: OpenMark | None = None
    requeued_total: int = 0
    heard_at_s: float = 0.0
    facts_left: float = 0.0
    """of this second and the last one"""
    facts_at_s: float = 0.0
    progress_at_s: float = 0.0
    progress_samples: int = 0
    samples_per_s: float = 0.0

    def has_faster(self, worker: Worker, now: float) -> bool:
        """Whether a peer that was heard of just now is less slow."""
        peers = (peer for peer in self.workers.values() if now - peer.heard_at_s <= PEER_HEARD_S)
        return any(peer.slowdown < worker.slowdown for peer in peers)

"""State of a shard ledger, and its settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from stretto_messages.dispatcher import NextShardReply
from stretto_messages.values import WORKERS_MAX

from stretto_core.dispatcher.book import Book, Shard
from stretto_core.dispatcher.evaluating import Best, Evaluating, HeldOut
from stretto_core.dispatcher.recomputing import ENDED_MAX, Ended, EndedSince
from stretto_core.dispatcher.source import LedgerError, Orders, Range

FINISHED_MAX = 1000
FORGET_MAX = 64
WORKER_KEPT_S = 600.0
"""A worker without a lease that was silent for longer is forgotten: one that waits asks twice a second."""
RELEASES_FREE, RELEASE_S_MAX = 8, 60.0
"""A shard is released so often at once. Then its holder keeps it for a second, and each time for twice as long, up to
the maximum: tastes, far above what data that fail or pods that leave need."""
RETURNS_RESERVE_S = 2.0
"""Returns are published beyond leases and completions: a flood of tiny shards does not hide the end of a pod."""
AHEAD_SHARDS_LEFT = 2
"""A worker gets a shard ahead while more than so many wait for each: nobody idles beside a peer that holds two."""
PEER_HEARD_S = 5.0
"""Time without a word from a worker after which it counts as silent: a worker with a shard beats once a second, a
waiting one asks twice."""


def least_held_s(attempt: int) -> float:
    """Return how long the holder of a shard's lease number ``attempt`` keeps it before it may release it, in s."""
    beyond = attempt - RELEASES_FREE
    return min(RELEASE_S_MAX, 2.0 ** min(beyond - 1, 16)) if beyond > 0 else 0.0


@dataclass(frozen=True, slots=True)
class LedgerSettings:
    """Times of the ledger, in seconds.

    ``deaf_after_s``: when the ledger itself heard nothing at all for longer (its service was away), that time does
    not count as anybody's silence. ``forget_after_s``: how long after its completion the progress records of a shard
    may be deleted; longer than any push can be under way. ``stuck_after_s``: a worker that beats but trains no sample
    for so long, while its peers do or wait for its shard, hangs: it loses the shard too. ``shard_facts_per_s``: at
    most so many leases, completions and returns of a job are published a second; its progress covers the others.
    Abandoned shards are always published. ``progress_per_s``: the most progress events that all ledgers of a partition
    publish a second; where they are many, each tells less often. By default about as often as its pods report in such a
    crowd (500 reports a second of all pods, three of them a job): four services handle each event.
    """

    lease_timeout_s: float = 30.0
    stuck_after_s: float = 120.0
    wait_s: float = 0.5
    progress_every_s: float = 2.0
    progress_per_s: float = 10.0
    rate_memory_s: float = 10.0
    deaf_after_s: float = 5.0
    forget_after_s: float = 15.0
    shard_facts_per_s: float = 50.0

    def __post_init__(self) -> None:
        if self.lease_timeout_s <= self.deaf_after_s:
            raise LedgerError("lease_timeout_s", self.lease_timeout_s, f"more than deaf_after_s, {self.deaf_after_s}")


@dataclass(slots=True)
class Worker:
    """One worker: its lease, its pace, and its last request with the reply to it.

    The last completion is kept beside them: a late copy of an older request may have taken the reply's place.
    """

    heard_at_s: float
    lease: Shard | None = None
    ahead: Shard | None = None
    """The shard that it trains after its lease, under this attempt. There is none without a lease."""
    moved_at_s: float = 0.0
    """Time when its lease began, or last advanced; 0: not known."""
    slowdown: float = 1.0
    request_id: str = ""
    reply: NextShardReply | None = None
    completed_id: int = -1
    completed_attempt: int = 0

    @property
    def is_ahead_of_none(self) -> bool:
        """True if it holds a shard ahead and trains none."""
        return self.ahead is not None and self.lease is None


class Finished(NamedTuple):
    """A completed shard whose progress records can be deleted some time after. A tuple, since there may be many."""

    id: int
    at_s: float


@dataclass(slots=True)
class OpenMark:
    """A checkpoint that is being taken since ``at_s``, and the shards that ended since."""

    id: str
    at_s: float
    over: list[Shard] = field(default_factory=list[Shard])
    """Shards that are over; ``offset`` is where each ended."""


@dataclass(slots=True)
class LedgerState:
    """The whole memory of one job's ledger. Its size grows with workers and partitions, not with the samples."""

    job: str = ""
    book: Book | None = None
    shard_failures_max: int = 3
    opened_at_s: float = 0.0
    closed: str = ""
    """Reason why no shard is leased: completed, or the reason of a cancellation or failure."""
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    exited: dict[str, float] = field(default_factory=dict[str, float])
    """Exit times of the last pods that exited, oldest first."""
    finished: list[Finished] = field(default_factory=list[Finished])
    ended: EndedSince = field(default_factory=EndedSince)
    loss: int = 0
    """Version of the loss whose columns have not come back yet; 0: every column is there. The job cannot complete."""
    servers_version: int = 0
    """Version of the list of servers after the last loss."""
    lineage: int = 0
    """Number of the return to a checkpoint that the books come from; 0: none."""
    samples_recomputed: int = 0
    """Samples handed out again: for columns that came back from a checkpoint, or of lost workers that ran a program."""
    runs_program: bool = False
    returns: bool = False
    mark: OpenMark | None = None
    held_out: HeldOut | None = None
    evaluating: Evaluating | None = None
    best: Best | None = None
    evaluate_at: int = 0
    """Samples done at which the next evaluation begins, or later if one is still running."""
    requeued_total: int = 0
    heard_at_s: float = 0.0
    facts_left: float = 0.0
    """Leases, completions and returns that may still be published: a token bucket of two seconds."""
    facts_at_s: float = 0.0
    progress_at_s: float = 0.0
    progress_samples: int = 0
    progress_pause_s: float = 0.0
    """Least time between two progress events that the number of ledgers allows, by the last tick."""
    samples_per_s: float = 0.0

    def admit(self, name: str, now: float) -> Worker:
        """Return the worker of this name, known from now on.

        The names are the callers' own words, so a job has no more of them than a plan may have workers.

        Raises:
            LedgerError: the job has so many already.
        """
        worker = self.workers.get(name)
        if worker is None:
            if len(self.workers) >= WORKERS_MAX:
                known = f"one of the {WORKERS_MAX} workers that have asked within the last {WORKER_KEPT_S:g} s"
                raise LedgerError("pod", name, f"{known}; more are let in when those are gone")
            worker = self.workers[name] = Worker(now)
        return worker

    def forget_silent(self, now: float) -> None:
        """Forget the workers that hold nothing and have been silent for long."""
        gone = [
            name
            for name, worker in self.workers.items()
            if worker.lease is None and now - worker.heard_at_s > WORKER_KEPT_S
        ]
        for name in gone:
            del self.workers[name]

    def lost(self, now: float, settings: LedgerSettings) -> list[str]:
        """Return the holders of a lease that are silent, or that hang while others could train their shards."""
        since_s = now - settings.stuck_after_s
        peers = (peer for peer in self.workers.values() if now - peer.heard_at_s <= PEER_HEARD_S)
        others_could = any(peer.lease is None or peer.moved_at_s >= since_s for peer in peers)
        return [
            name
            for name, worker in self.workers.items()
            if worker.lease is not None
            and (
                now - worker.heard_at_s > settings.lease_timeout_s or (others_could and 0 < worker.moved_at_s < since_s)
            )
        ]

    def has_faster(self, worker: Worker, now: float) -> bool:
        """Return True if a peer that reported just now is less slow."""
        peers = (peer for peer in self.workers.values() if now - peer.heard_at_s <= PEER_HEARD_S)
        return any(peer.slowdown < worker.slowdown for peer in peers)

    def held_shards(self) -> Iterator[tuple[str, Shard]]:
        """Yield the shards of all workers, leased and held ahead, with their holders."""
        for name, worker in self.workers.items():
            if worker.lease is not None:
                yield name, worker.lease
            if worker.ahead is not None:
                yield name, worker.ahead

    def training(self) -> list[tuple[str, Shard]]:
        """Return those of the held shards that are not evaluated, with their holders."""
        return [(name, shard) for name, shard in self.held_shards() if not shard.held_out]

    def leased(self) -> int:
        """Return the number of held shards."""
        return sum(1 for _ in self.held_shards())

    def reserve_ahead(self, book: Book, worker: Worker, orders: Orders) -> None:
        """Give a worker the shard after its lease, while it keeps pace and plenty is left for the others."""
        if worker.ahead is not None or worker.lease is None or worker.lease.held_out or worker.slowdown > 1.0:
            return
        if book.has_waiting(AHEAD_SHARDS_LEFT * book.data.block_samples * len(self.workers)):
            worker.ahead = book.take(book.batches_for(worker.slowdown), orders)

    def take_back(self, book: Book, worker: Worker) -> None:
        """Put back what a worker holds: its lease, and then the shard ahead."""
        lease, worker.lease = worker.lease, None
        if lease is not None and not lease.held_out:
            book.requeued.append(lease)
        elif lease is not None and self.evaluating is not None:
            self.evaluating.take_back(lease)
        self.take_back_ahead(book, worker)

    def take_back_ahead(self, book: Book, worker: Worker) -> None:
        """Put back the shard that a worker holds ahead."""
        if worker.ahead is not None:
            book.put_back_unbegun(worker.ahead)
            worker.ahead = None

    def may_tell(self, now: float, facts_per_s: float, reserve_s: float = 0.0) -> bool:
        """Return True if one more lease, completion or return may be published: a token bucket of two seconds.

        ``reserve_s``: seconds of the rate by which it may be overdrawn, for facts that are rarer.
        """
        if now > self.facts_at_s:
            self.facts_left = min(2 * facts_per_s, self.facts_left + (now - self.facts_at_s) * facts_per_s)
            self.facts_at_s = now
        if self.facts_left < 1 - reserve_s * facts_per_s:
            return False
        self.facts_left -= 1
        return True

    def remember_ended(self, shard: Shard, now: float) -> None:
        """Remember a shard that ended, while a checkpoint may need it; after that, until its records are deleted."""
        over = self.ended.add(Ended.of(shard, now))
        self.allow_to_forget(over, ENDED_MAX if self.ended.needed else FINISHED_MAX)

    def allow_to_forget(self, over: list[Ended], most: int = ENDED_MAX) -> None:
        """Let the records of these shards go: no column will come back without them. Beyond ``most``, they stay."""
        self.finished += [Finished(shard.id, shard.at_s) for shard in over if shard.forgettable]
        if len(self.finished) > most:
            del self.finished[:-most]

    def distrust_reports(self, book: Book) -> None:
        """Count nothing of incomplete shards as applied, and lease each to its holder anew: columns were lost.

        The report of a shard that was complete on those columns may come after that of their loss; it is stale then.
        """
        for shard in book.requeued:
            shard.offset = 0
        for _, shard in self.training():
            shard.offset = 0
        for worker in self.workers.values():
            if worker.lease is None or worker.lease.held_out:
                continue
            worker.lease.attempt += 1
            book.attempt_max = max(book.attempt_max, worker.lease.attempt)
            worker.request_id, worker.reply = "", None  # it names the lease under the attempt before

    def recompute(self, book: Book) -> tuple[int, int]:
        """Hand out again whatever ended since the newest complete checkpoint; return how many shards and samples.

        Of a shard that was given up since, nothing counts as done any more: the restored columns may have none of it.
        """
        checkpoint = self.ended.checkpoint
        ended = self.ended.returned_to(checkpoint)
        shards = [one.shard() for one in ended if one.complete]
        book.without(shards)
        for shard in shards:
            shard.offset = 0
            shard.recomputed += 1
        book.requeued[:0] = shards
        book.void([one.shard() for one in ended if not one.complete])
        samples = sum(shard.length for shard in shards)
        self.samples_recomputed += samples
        self.mark = None
        return len(shards), samples

    def forgettable(self, limit_s: float) -> tuple[int, ...]:
        """Remove and return ids of shards that finished by ``limit_s``: a worker is asked once to delete their records.

        If that worker dies first, the records stay. Empty while a checkpoint is taken: it may list finished shards as
        outstanding, and needs their records.
        """
        finished, ripe = self.finished, 0
        if self.mark is not None:
            return ()
        while ripe < len(finished) and ripe < FORGET_MAX and finished[ripe].at_s <= limit_s:
            ripe += 1
        if not ripe:
            return ()
        ids = tuple(shard.id for shard in finished[:ripe])
        del finished[:ripe]
        return ids

    def excuse_own_absence(self, now: float, deaf_after_s: float) -> bool:
        """Do not count the ledger's own absence as the workers' silence, or an outage would expire every lease.

        Return True if it was absent.
        """
        gap_s = now - self.heard_at_s
        deaf = gap_s > deaf_after_s and self.heard_at_s > 0
        if deaf:
            for worker in self.workers.values():
                worker.heard_at_s += gap_s
                worker.moved_at_s += gap_s if worker.moved_at_s else 0.0  # 0 says that it is not known
        if gap_s > 0:
            self.heard_at_s = now
        return deaf

    def lease_of(
        self, name: str, shard_id: int, attempt: int
    ) -> tuple[Shard | None, Literal["ok", "stale", "unknown"]]:
        """Return the lease that a report is about, and the answer to it."""
        if self.book is None or name in self.exited:
            return None, "unknown"
        worker = self.workers.get(name)
        lease = worker.lease if worker else None
        if lease is None or lease.id != shard_id or lease.attempt != attempt:
            return None, "stale"
        return lease, "ok"

    def take_back_all(self) -> None:
        """Take every lease back, and drop the running evaluation."""
        if self.book is not None:
            for worker in self.workers.values():
                self.take_back(self.book, worker)
        self.evaluating = None

    def samples_seen(self, book: Book) -> int:
        """Return the samples done, reported offsets of incomplete shards included."""
        return book.samples_done + sum(shard.offset for shard in self.open(book))

    def open(self, book: Book) -> Iterator[Shard]:
        """Yield the shards that are held or have come back."""
        yield from (shard for _, shard in self.training())
        yield from book.requeued

    def begin_evaluation(self, book: Book, of: Range, window: Range | None = None) -> None:
        """Begin an evaluation of these samples. ``window``: what is trained after it."""
        self.evaluating = Evaluating.begin(of, book.data, book.samples_done, book.next_id, window)
        book.next_id += len(self.evaluating.waiting)


def faults_of(state: LedgerState) -> list[str]:
    """Return what must not be: each opened sample is in one place, and a shard ahead follows a lease.

    opened = done + abandoned + remainder + returned + held. O(workers + returned shards).
    """
    book = state.book
    if book is None:
        return []
    held = sum(shard.length for _, shard in state.training())
    faults = [
        f"{name} holds a shard ahead of no lease" for name, each in state.workers.items() if each.is_ahead_of_none
    ]
    if excess := book.samples_placed + held - book.source.opened:
        faults.append(f"{excess:+} samples are in places beyond those that were opened")
    return faults

"""Reference model of a ledger, by sets of samples; ``dispatcher/test_model.py`` compares the ledger with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stretto_core.dispatcher.evaluating import HeldOut
from stretto_core.dispatcher.machine import ShardLedger
from stretto_core.dispatcher.source import DataSpec
from stretto_core.dispatcher.state import WORKER_KEPT_S, LedgerSettings
from stretto_messages.dispatcher import NextShardReply
from stretto_messages.values import DataPartition, Shard

Sample = tuple[str, int, int]
"""partition, epoch, place"""
SETTINGS = LedgerSettings(lease_timeout_s=10, stuck_after_s=1e6, deaf_after_s=4)


@dataclass
class Model:
    """Every sample of every epoch is in exactly one of: free, held, done, given up. ``fresh``: of no block so far."""

    free: set[Sample] = field(default_factory=set)
    fresh: set[Sample] = field(default_factory=set)
    done: set[Sample] = field(default_factory=set)
    given_up: set[Sample] = field(default_factory=set)
    held: dict[str, Shard] = field(default_factory=dict)
    ahead: dict[str, Shard] = field(default_factory=dict)
    """By worker: the shard that it trains next. Its samples count as held."""
    heard_at_s: dict[str, float] = field(default_factory=dict)


@dataclass
class Round:
    """An evaluation: samples that nobody evaluates, and by whom the others are; how many were found."""

    waiting: set[int]
    held: dict[str, Shard] = field(default_factory=dict)
    found: int = 0


def samples_of(shard: Any, begin: int = 0) -> set[Sample]:
    return {(shard.partition, shard.epoch, i) for i in range(shard.start + begin, shard.start + shard.length)}


class Expected:
    """The naive model, and the checks of a reply against it."""

    ledger: ShardLedger
    data: DataSpec
    held_out: HeldOut | None
    now: float

    def expect(self, data: DataSpec, epochs: int, held_out: HeldOut | None) -> None:
        """Nothing has happened yet."""
        self.data, self.epochs, self.growing = data, epochs, data.growing
        self.totals: dict[str, int] = {}
        self.priorities: dict[str, int] = {"": 0}
        self.every: set[Sample] = set()
        self.model, self.round, self.rounds, self.found = Model(), None, 0, 0
        self.held_out, self.evaluate_at = held_out, held_out.every if held_out else 0
        self.ranges: dict[int, tuple[str, int, int, int]] = {}
        self.attempts: dict[int, int] = {}
        self.leases: list[tuple[str, Shard]] = []
        self.gone_back = False
        self.exited: set[str] = set()
        self.slow: dict[str, float] = {}
        self.closed, self.complete = False, not data.growing

    @property
    def over(self) -> bool:
        return self.closed or (self.complete and self.model.done | self.model.given_up == self.every)

    def arrive(self, parts: list[DataPartition]) -> None:
        for part in parts:
            name, samples, priority = part.name, part.samples, part.priority
            new = {(name, e, i) for e in range(self.epochs) for i in range(self.totals.get(name, 0), samples)}
            self.every |= new
            self.model.free |= new
            self.model.fresh |= new
            if name not in self.totals or new or any(sample[0] == name for sample in self.model.fresh):
                self.priorities[name] = priority
            self.totals[name] = max(samples, self.totals.get(name, 0))

    def take_back(self, worker: str) -> None:
        for shard in (self.model.held.pop(worker, None), self.model.ahead.pop(worker, None)):
            self.model.free |= samples_of(shard) if shard else set()
        if self.round is not None and (shard := self.round.held.pop(worker, None)):
            self.round.waiting |= set(range(shard.start, shard.start + shard.length))

    def expire(self) -> None:
        for worker in {**self.model.held, **(self.round.held if self.round else {})}:
            if self.now - self.model.heard_at_s[worker] > SETTINGS.lease_timeout_s:
                self.take_back(worker)

    def lease_of(self, worker: str) -> Shard | None:
        return self.model.held.get(worker) or (self.round.held.get(worker) if self.round else None)

    def book_completion(self, worker: str, shard: Shard | None) -> bool:
        """Return True if the report counts, that is if it is for the lease that this worker holds."""
        held = self.lease_of(worker)
        if shard is None or held is None or (held.id, held.attempt) != (shard.id, shard.attempt):
            return False
        if held.kind == "evaluate":
            del self.round.held[worker]
            self.round.found += held.length
            self.end_round()
            return True
        del self.model.held[worker]
        self.model.done |= samples_of(held)
        if self.over:
            self.round = None
        elif self.held_out is not None and len(self.model.done) >= self.evaluate_at:
            self.aim()
            self.round = self.round or Round(set(range(5, 5 + self.held_out.samples)))
        return True

    def aim(self) -> None:
        self.evaluate_at = (len(self.model.done) // self.held_out.every + 1) * self.held_out.every

    def end_round(self) -> None:
        if not self.round.waiting and not self.round.held:
            self.rounds += self.round.found > 0
            self.found, self.round = self.round.found, None

    def check(self, worker: str, reply: NextShardReply, remainder: Any) -> None:
        model, held = self.model, self.lease_of(worker)
        if worker in self.exited:
            assert reply.answer == "unknown"
        elif self.over and held is None and not self.evaluates(worker):
            assert reply.answer == "end"
            self.round = None  # what others still evaluate is dropped
        elif held is not None:
            assert (reply.shard.id, reply.shard.attempt) == (held.id, held.attempt)
        elif self.evaluates(worker):
            assert reply.shard is not None
            self.check_evaluated(worker, reply.shard)
        elif worker in model.ahead:
            assert reply.shard == model.ahead.pop(worker), "what was held ahead is trained as it was promised"
            self.begin_attempt(worker, reply.shard)
            model.held[worker] = reply.shard
        elif not model.free or (reply.answer == "wait" and self.is_spared(worker)):
            assert reply.answer == "wait"
            assert reply.wait_s > 0
        else:
            assert reply.answer == "shard"
            assert reply.shard is not None
            self.check_fresh(worker, reply.shard, remainder)

    def check_ahead(self, worker: str, is_asked: bool, reply: NextShardReply, remainder: Any) -> None:
        """The shard ahead: only of a worker that asks, keeps pace and trains, and while there is plenty for all."""
        model, held = self.model, self.lease_of(worker)
        if not is_asked or reply.shard is None or held is None:
            assert reply.ahead is None
        elif worker in model.ahead:
            assert reply.ahead == model.ahead[worker]
        elif held.kind == "evaluate" or self.slow.get(worker, 1.0) > 1 or not self.is_plenty():
            assert reply.ahead is None
        else:
            assert reply.ahead is not None
            taken = remainder is not None and samples_of(reply.shard) & samples_of(remainder)
            self.check_samples(reply.ahead, None if taken else remainder)
            self.check_attempt(reply.ahead)
            model.ahead[worker] = reply.ahead

    def is_plenty(self) -> bool:
        known = sum(self.now - at_s <= WORKER_KEPT_S for at_s in self.model.heard_at_s.values())
        return len(self.model.free) > 2 * self.data.block_samples * known

    def evaluates(self, worker: str) -> bool:
        """Return True if the worker gets held-out samples, also if training has completed meanwhile."""
        slow = self.slow.get(worker, 1.0) > 1 and self.has_faster(worker)
        return self.round is not None and bool(self.round.waiting) and not slow

    def is_spared(self, worker: str) -> bool:
        """All that is free is too large for it, and a faster one will come for it."""
        batches = max(1, int(self.data.batches_per_shard / self.slow.get(worker, 1.0)))
        requeued = self.ledger.state.book.requeued
        whole = sum(shard.length for shard in requeued) == len(self.model.free)
        large = all(shard.length - shard.offset > batches * self.data.batch_size for shard in requeued)
        return whole and large and self.has_faster(worker)

    def has_faster(self, worker: str) -> bool:
        heard = (other for other, at_s in self.model.heard_at_s.items() if self.now - at_s <= 5 and other != worker)
        return any(self.slow.get(other, 1.0) < self.slow.get(worker, 1.0) for other in heard)

    def check_evaluated(self, worker: str, shard: Shard) -> None:
        samples = set(range(shard.start, shard.start + shard.length))
        assert (shard.kind, shard.partition) == ("evaluate", "test")
        assert samples
        assert samples <= self.round.waiting, "evaluated twice, or of no evaluation"
        self.begin_attempt(worker, shard)
        self.round.waiting -= samples
        self.round.held[worker] = shard

    def check_attempt(self, shard: Shard) -> None:
        """An id is of one range for ever, and its attempts are counted by who began it: held ahead is not begun."""
        place = (shard.partition, shard.epoch, shard.start, shard.length)
        assert self.ranges.setdefault(shard.id, place) == place
        begun = self.attempts.get(shard.id, 0)
        assert shard.attempt > begun if self.gone_back else shard.attempt == begun + 1

    def begin_attempt(self, worker: str, shard: Shard) -> None:
        self.check_attempt(shard)
        self.attempts[shard.id] = shard.attempt
        self.leases.append((worker, shard))

    def check_fresh(self, worker: str, shard: Shard, remainder: Any) -> None:
        """A new lease."""
        self.check_samples(shard, remainder)
        self.begin_attempt(worker, shard)
        self.model.held[worker] = shard

    def check_samples(self, shard: Shard, remainder: Any) -> None:
        """Take free samples only, of the highest priority if they open a block."""
        samples, fresh = samples_of(shard), self.model.fresh
        assert samples
        assert shard.kind == "train"
        assert samples <= self.model.free, "leased twice, done already, given up, or of no dataset"
        if samples & fresh:
            assert remainder is None or samples <= samples_of(remainder)
            if remainder is None:
                first = min(epoch for _, epoch, _ in fresh)
                best = max(self.priorities[name] for name, epoch, _ in fresh if epoch == first)
                assert (shard.epoch, self.priorities[shard.partition]) == (first, best)
        fresh -= samples
        self.model.free -= samples

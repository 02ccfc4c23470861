"""The ledger against sets of samples: random requests, clocks and restarts, and the one right answer to each.

Beside it runs a twin that is rebuilt from its snapshot before every event: it must say the same, word for word.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pydantic import TypeAdapter
from stretto_core.ledger import (
    Book,
    DataSpec,
    HeartbeatReceived,
    JobClosed,
    JobOpened,
    LedgerRestored,
    LedgerSettings,
    LedgerState,
    MarkRequested,
    NextReply,
    NextRequested,
    Shard,
    ShardLedger,
    ShardReturned,
    StragglerNamed,
    WorkerExited,
)
from stretto_core.machine import Reply, Tick

STATE, BOOK = TypeAdapter(LedgerState), TypeAdapter(Book)
Sample = tuple[int, int]
SETTINGS = LedgerSettings(lease_timeout_s=10, deaf_after_s=4)
FAILURES_MAX = 3
WORKERS = st.sampled_from([f"worker-{n}" for n in range(4)])


@dataclass
class Model:
    """Every sample of every epoch is in exactly one of: free, held, done, given up."""

    free: set[Sample] = field(default_factory=set)
    done: set[Sample] = field(default_factory=set)
    given_up: set[Sample] = field(default_factory=set)
    held: dict[str, Shard] = field(default_factory=dict)
    heard_at_s: dict[str, float] = field(default_factory=dict)


def samples_of(shard: Shard, begin: int = 0) -> set[Sample]:
    return {(shard.epoch, i) for i in range(shard.start + begin, shard.start + shard.length)}


class AgainstModel(RuleBasedStateMachine):
    @initialize(
        data=st.builds(
            DataSpec, st.integers(1, 90), st.integers(1, 7), st.integers(1, 5), st.booleans(), st.integers(0, 99)
        ),
        epochs=st.integers(1, 3),
    )
    def begin(self, data: DataSpec, epochs: int) -> None:
        self.ledger, self.twin = ShardLedger(None, SETTINGS), ShardLedger(None, SETTINGS)
        self.now, self.requests = 5000.0, 0
        self.reply("worker-0", NextReply("unknown"))
        self.every = {(epoch, sample) for epoch in range(epochs) for sample in range(data.samples)}
        self.model = Model(free=set(self.every))
        self.failures: dict[int, int] = {}
        self.ranges: dict[int, tuple[int, int, int]] = {}
        self.attempts: dict[int, int] = {}
        self.leases: list[tuple[str, Shard]] = []
        self.exited: set[str] = set()
        self.data, self.slow = data, dict[str, float]()
        self.saved: tuple[bytes, Model, dict[int, int]] | None = None
        self.closed = False
        self.last: dict[str, tuple[NextRequested, NextReply]] = {}
        self.tell(JobOpened(data, epochs, FAILURES_MAX))
        self.tell(JobOpened(data, epochs, FAILURES_MAX))  # told twice

    def tell(self, event: Any) -> Any:
        self.twin = ShardLedger(STATE.validate_json(STATE.dump_json(self.twin.state)), SETTINGS)
        said = self.ledger.handle(event, self.now)
        assert self.twin.handle(event, self.now) == said
        return next((copy.deepcopy(action.body) for action in said if isinstance(action, Reply)), None)

    def reply(self, worker: str, expected: NextReply) -> None:
        self.requests += 1
        assert self.tell(NextRequested(worker, f"r{self.requests}")) == expected

    # the model

    def take_back(self, worker: str) -> None:
        if shard := self.model.held.pop(worker, None):
            self.model.free |= samples_of(shard)

    def expire(self) -> None:
        for worker in list(self.model.held):
            if self.now - self.model.heard_at_s[worker] > SETTINGS.lease_timeout_s:
                self.take_back(worker)

    def book_completion(self, worker: str, shard: Shard | None) -> bool:
        """Whether the report counts: of the lease that this worker holds, and no other."""
        held = self.model.held.get(worker)
        if shard is None or held is None or (held.id, held.attempt) != (shard.id, shard.attempt):
            return False
        del self.model.held[worker]
        self.model.done |= samples_of(held)
        return True

    def check(self, worker: str, reply: NextReply) -> None:
        model, held = self.model, self.model.held.get(worker)
        if worker in self.exited:
            assert reply.answer == "unknown"
        elif self.closed or not model.free | set().union(*map(samples_of, model.held.values())):
            assert reply.answer == "end"
        elif held is not None:
            assert reply.shard is not None
            assert (reply.shard.id, reply.shard.attempt) == (held.id, held.attempt)
        elif not model.free or (reply.answer == "wait" and self.is_spared(worker)):
            assert reply.answer == "wait"
            assert reply.wait_s > 0
        else:
            assert reply.answer == "shard"
            assert reply.shard is not None
            self.check_fresh(worker, reply.shard)

    def is_spared(self, worker: str) -> bool:
        """All that is free is too large for it, and a faster one will come for it."""
        slow, size = self.slow.get(worker, 1.0), self.data.batches_per_shard * self.data.batch_size
        requeued = self.ledger.state.book.requeued
        whole = sum(shard.length for shard in requeued) == len(self.model.free)
        return whole and self.has_faster(worker) and all(s.length - s.offset > size / slow - 1 for s in requeued)

    def has_faster(self, worker: str) -> bool:
        known = self.ledger.state.workers.items()
        heard = (other for other, seen in known if self.now - seen.heard_at_s <= 5 and other != worker)
        return any(self.slow.get(other, 1.0) < self.slow.get(worker, 1.0) for other in heard)

    def check_fresh(self, worker: str, shard: Shard) -> None:
        """A new lease: of free samples only, under an id of its own range, by a higher attempt than any before."""
        samples = samples_of(shard)
        assert samples
        assert samples <= self.model.free, "leased twice, done already, given up, or of no dataset"
        assert self.ranges.setdefault(shard.id, (shard.epoch, shard.start, shard.length)) == (
            shard.epoch, shard.start, shard.length)  # fmt: skip
        assert shard.attempt > self.attempts.get(shard.id, 0)
        self.attempts[shard.id] = shard.attempt
        self.model.free -= samples
        self.model.held[worker] = shard
        self.leases.append((worker, shard))

    # what happens

    def ask(self, worker: str, report: Shard | None) -> None:
        self.requests += 1
        done = (report.id, report.attempt) if report else (None, 0)
        request = NextRequested(worker, f"r{self.requests}", *done)
        if worker not in self.exited:
            self.model.heard_at_s[worker] = self.now
        counted = self.book_completion(worker, report)
        reply = self.tell(request)
        if counted:
            assert not reply.stale
        self.check(worker, reply)
        if worker not in self.exited:
            self.last[worker] = request, reply

    @rule(worker=WORKERS)
    def asks(self, worker: str) -> None:
        self.ask(worker, None)

    @rule(worker=WORKERS)
    def completes(self, worker: str) -> None:
        self.ask(worker, self.model.held.get(worker))

    @precondition(lambda self: self.leases)
    @rule(worker=WORKERS, choice=st.integers(0, 1000))
    def reports_any_lease_of_the_past(self, worker: str, choice: int) -> None:
        """Its own, late; somebody else's; a zombie's."""
        self.ask(worker, self.leases[choice % len(self.leases)][1])

    @precondition(lambda self: self.last)
    @rule(choice=st.integers(0, 1000))
    def repeats_its_last_request(self, choice: int) -> None:
        worker = sorted(self.last)[choice % len(self.last)]
        request, reply = self.last[worker]
        if worker not in self.exited:
            self.model.heard_at_s[worker] = self.now
            assert self.tell(request) == reply

    @precondition(lambda self: self.leases)
    @rule(choice=st.integers(0, 1000), part=st.floats(0, 1))
    def beats(self, choice: int, part: float) -> None:
        worker, shard = self.leases[-1 - choice % len(self.leases)]
        held = self.model.held.get(worker)
        answer = self.tell(HeartbeatReceived(worker, shard.id, shard.attempt, int(part * shard.length))).answer
        current = held is not None and (held.id, held.attempt) == (shard.id, shard.attempt)
        assert answer == ("unknown" if worker in self.exited else "ok" if current else "stale")
        if worker not in self.exited:
            self.model.heard_at_s[worker] = self.now

    @precondition(lambda self: self.model.held)
    @rule(choice=st.integers(0, 3), failed=st.booleans())
    def gives_back(self, choice: int, failed: bool) -> None:
        worker = sorted(self.model.held)[choice % len(self.model.held)]
        shard = self.model.held.pop(worker)
        self.model.heard_at_s[worker] = self.now
        begin = self.ledger.state.workers[worker].lease.offset
        failures = self.failures[shard.id] = self.failures.get(shard.id, 0) + failed
        answer = self.tell(ShardReturned(worker, shard.id, shard.attempt, 0, "bad row" if failed else None)).answer
        assert answer == "ok"
        if failures == FAILURES_MAX:  # and no loss of a pod ever comes here
            self.model.done |= samples_of(shard) - samples_of(shard, begin)
            self.model.given_up |= samples_of(shard, begin)
        else:
            self.model.free |= samples_of(shard)

    @rule(worker=WORKERS)
    def pod_exits(self, worker: str) -> None:
        self.tell(WorkerExited(worker))
        self.take_back(worker)
        self.slow.pop(worker, None)
        self.exited.add(worker)

    @precondition(lambda self: self.exited)
    @rule()
    def new_pods_take_the_place(self) -> None:
        """Under new names, as pods do; the model calls them by the old ones to keep the choice small."""
        self.ledger.state.exited.clear()
        self.twin.state.exited.clear()
        self.last = {worker: last for worker, last in self.last.items() if worker not in self.exited}
        self.exited.clear()

    @rule(worker=WORKERS, slowdown=st.floats(1, 20))
    def straggles(self, worker: str, slowdown: float) -> None:
        held = self.ledger.state.workers[worker].lease if worker in self.model.held else None
        if worker in self.ledger.state.workers:
            self.slow[worker] = slowdown
        batches = max(1, int(self.data.batches_per_shard / slowdown))
        large = held is not None and held.length - held.offset > batches * self.data.batch_size
        taken = large and self.has_faster(worker)
        self.tell(StragglerNamed(worker, slowdown))
        if taken:
            self.take_back(worker)

    @rule(seconds=st.integers(1, 12))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.tell(Tick())
            if not self.closed:
                self.expire()

    @rule()
    def saves(self) -> None:
        """A checkpoint with pushes frozen."""
        document = BOOK.dump_json(self.tell(MarkRequested("m")).book)
        then = copy.deepcopy(self.model)
        for shard in then.held.values():
            then.free |= samples_of(shard)
        then.held.clear()
        self.saved = document, then, dict(self.failures)

    @precondition(lambda self: self.saved and not self.closed)
    @rule()
    def goes_back(self) -> None:
        document, then, failures = self.saved
        self.tell(LedgerRestored(BOOK.validate_json(document)))
        heard = self.model.heard_at_s
        self.model = copy.deepcopy(then)
        self.model.heard_at_s, self.failures = heard, dict(failures)
        self.ranges = {s.id: (s.epoch, s.start, s.length) for s in BOOK.validate_json(document).requeued}
        self.last.clear()

    @precondition(lambda self: self.requests > 40)
    @rule()
    def is_cancelled(self) -> None:
        self.tell(JobClosed("cancelled"))
        for worker in list(self.model.held):
            self.take_back(worker)
        self.closed = True

    # what must hold

    @invariant()
    def the_books_say_what_the_model_says(self) -> None:
        book, model = self.ledger.state.book, self.model
        leased = {name: worker.lease for name, worker in self.ledger.state.workers.items() if worker.lease}
        assert {name: (s.id, s.attempt) for name, s in leased.items()} == {
            name: (s.id, s.attempt) for name, s in model.held.items()
        }
        assert (book.samples_done, book.samples_abandoned) == (len(model.done), len(model.given_up))
        assert book.samples_waiting == len(model.free)
        assert book.settled == (model.done | model.given_up == self.every)

    def teardown(self) -> None:
        """Whatever happened: calm workers then finish the job, and every sample of every epoch is in one place."""
        if not hasattr(self, "model") or self.closed:
            return
        self.new_pods_take_the_place()
        for worker in list(self.ledger.state.workers):
            self.pod_exits(worker)
        self.new_pods_take_the_place()
        for _ in range(2000):
            if self.model.done | self.model.given_up == self.every:
                break
            self.ask("worker-0", self.model.held.get("worker-0"))
        assert self.model.done | self.model.given_up == self.every
        assert not self.model.done & self.model.given_up


AgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestAgainstModel = AgainstModel.TestCase

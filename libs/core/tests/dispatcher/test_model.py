"""The ledger against sets of samples: random requests, clocks, arrivals and restarts, and the one right answer to each.

Beside it runs a twin that is rebuilt from its snapshot before every event: it must say the same, word for word.
"""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_builders import (
    JOB,
    arrival,
    data_arrived,
    evaluation,
    heartbeat,
    job_cancelled,
    mark_ledger,
    next_shard,
    pod_exited,
    release,
    straggler,
)
from ledger_model import SETTINGS, Expected, Model, Sample, samples_of
from pydantic import TypeAdapter
from stretto_core.dispatcher.book import Book
from stretto_core.dispatcher.evaluating import HeldOut
from stretto_core.dispatcher.events import JobOpened, LedgerRestored
from stretto_core.dispatcher.machine import ShardLedger
from stretto_core.dispatcher.source import DataSpec
from stretto_core.dispatcher.state import RELEASES_FREE, LedgerState
from stretto_core.machine import Emit, Reply, Tick
from stretto_messages.dispatcher import EvaluationMeasured, JobCompleted, NextShard, NextShardReply
from stretto_messages.values import DataPartition, Shard

STATE, BOOK = TypeAdapter(LedgerState), TypeAdapter(Book)
FAILURES_MAX = 3
WORKERS = st.sampled_from([f"worker-{n}" for n in range(4)])
NAMES = st.sampled_from(["a", "b", "c"])
ARRIVALS = st.lists(
    st.builds(arrival, NAMES, st.integers(1, 60), st.integers(-1, 1)), max_size=3, unique_by=lambda a: a.name
)


class AgainstModel(Expected, RuleBasedStateMachine):
    @initialize(
        cut=st.tuples(st.integers(1, 7), st.integers(1, 5), st.booleans(), st.integers(0, 99)),
        kind=st.sampled_from(["plain", "partitions", "growing"]),
        samples=st.integers(1, 90),
        parts=ARRIVALS,
        epochs=st.integers(1, 3),
        held_out=st.none() | st.builds(HeldOut, st.integers(1, 40), st.integers(1, 60), st.just(5), st.just("test")),
    )
    def begin(
        self, cut: Any, kind: str, samples: int, parts: list[DataPartition], epochs: int, held_out: HeldOut | None
    ) -> None:
        growing = kind == "growing"
        parts = parts if kind != "plain" else []
        if not growing:
            samples = sum(part.samples for part in parts) or samples
        data = DataSpec(0 if growing else samples, *cut, growing)
        self.expect(data, 1 if growing else epochs, held_out)
        self.arrive(parts or ([] if growing else [arrival("", samples)]))
        self.ledger, self.twin = ShardLedger(None, SETTINGS), ShardLedger(None, SETTINGS)
        self.now, self.requests, self.facts = 5000.0, 0, list[Any]()
        self.reply("worker-0", NextShardReply(job=JOB, answer="unknown"))
        self.failures: dict[int, int] = {}
        self.saved: tuple[bytes, Model, dict[int, int], set[Sample]] | None = None
        self.last: dict[str, tuple[NextShard, NextShardReply]] = {}
        opened = JobOpened(JOB, data, self.epochs, FAILURES_MAX, tuple(parts), held_out)
        self.tell(opened)
        self.tell(opened)  # told twice

    def tell(self, event: Any) -> Any:
        self.twin = ShardLedger(STATE.validate_json(STATE.dump_json(self.twin.state)), SETTINGS)
        said = self.ledger.handle(event, self.now)
        assert self.twin.handle(event, self.now) == said
        self.facts += [action.fact for action in said if isinstance(action, Emit)]
        return next((copy.deepcopy(action.body) for action in said if isinstance(action, Reply)), None)

    def reply(self, worker: str, expected: NextShardReply) -> None:
        self.requests += 1
        assert self.tell(next_shard(worker, f"r{self.requests}")) == expected

    # what happens

    def ask(self, worker: str, report: Shard | None, ahead: bool) -> None:
        self.requests += 1
        done = (report.id, report.attempt) if report else (None, 0)
        found = None
        if report is not None and report.kind == "evaluate":
            found = evaluation(report.length, report.length * 0.5, (0, report.length), (0, 0))
        request = next_shard(worker, f"r{self.requests}", *done, found, ahead)
        if worker not in self.exited:
            self.model.heard_at_s[worker] = self.now
        rest = copy.copy(self.ledger.state.book.remainder)
        counted = self.book_completion(worker, report)
        reply = self.tell(request)
        if counted:
            assert not reply.stale
        self.check(worker, reply, rest)
        self.check_ahead(worker, ahead, reply, rest)
        if worker not in self.exited:
            self.last[worker] = request, reply

    @rule(worker=WORKERS, ahead=st.booleans())
    def asks(self, worker: str, ahead: bool) -> None:
        self.ask(worker, None, ahead)

    @rule(worker=WORKERS, ahead=st.booleans())
    def completes(self, worker: str, ahead: bool) -> None:
        self.ask(worker, self.lease_of(worker), ahead)

    @precondition(lambda self: self.leases)
    @rule(worker=WORKERS, choice=st.integers(0, 1000), ahead=st.booleans())
    def reports_any_lease_of_the_past(self, worker: str, choice: int, ahead: bool) -> None:
        """Its own, late; somebody else's; a zombie's."""
        self.ask(worker, self.leases[choice % len(self.leases)][1], ahead)

    @precondition(lambda self: self.model.ahead)
    @rule(worker=WORKERS, choice=st.integers(0, 1000))
    def reports_what_is_only_held_ahead(self, worker: str, choice: int) -> None:
        """Nobody may have trained it: neither its holder nor another one can complete, keep or return it."""
        ahead = self.model.ahead[sorted(self.model.ahead)[choice % len(self.model.ahead)]]
        expected = "unknown" if worker in self.exited else "stale"
        assert self.tell(heartbeat(worker, ahead.id, ahead.attempt, ahead.length)).answer == expected
        assert self.tell(release(worker, ahead.id, ahead.attempt, ahead.length)).answer == expected
        if worker in self.model.heard_at_s:
            self.model.heard_at_s[worker] = self.now
        self.ask(worker, ahead, True)

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
        held = self.lease_of(worker)
        answer = self.tell(heartbeat(worker, shard.id, shard.attempt, int(part * shard.length))).answer
        current = held is not None and (held.id, held.attempt) == (shard.id, shard.attempt)
        assert answer == ("unknown" if worker in self.exited else "ok" if current else "stale")
        if worker in self.model.heard_at_s:  # one that took an exited pod's place is known when it has asked
            self.model.heard_at_s[worker] = self.now

    @rule(worker=WORKERS, failed=st.booleans())
    def gives_back(self, worker: str, failed: bool) -> None:
        shard = self.lease_of(worker)
        if shard is None or shard.attempt > RELEASES_FREE:
            return
        self.model.heard_at_s[worker] = self.now
        begin = self.ledger.state.workers[worker].lease.offset
        failures = self.failures[shard.id] = self.failures.get(shard.id, 0) + failed
        answer = self.tell(release(worker, shard.id, shard.attempt, 0, "bad row" if failed else None)).answer
        assert answer == "ok"
        self.take_back(worker)
        if failures < FAILURES_MAX:  # and no loss of a pod ever comes here
            return
        if shard.kind == "evaluate":
            self.round.waiting -= set(range(shard.start, shard.start + shard.length))
            self.end_round()
            return
        self.model.free -= samples_of(shard)
        self.model.done |= samples_of(shard) - samples_of(shard, begin)
        self.model.given_up |= samples_of(shard, begin)
        if self.over:
            self.round = None

    @rule(worker=WORKERS)
    def pod_exits(self, worker: str) -> None:
        self.tell(pod_exited(worker))
        self.take_back(worker)
        self.slow.pop(worker, None)
        self.model.heard_at_s.pop(worker, None)
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
        held = self.ledger.state.workers[worker].lease if self.lease_of(worker) else None
        if worker in self.model.heard_at_s:
            self.slow[worker] = slowdown
        batches = max(1, int(self.data.batches_per_shard / slowdown))
        large = held is not None and held.length - held.offset > batches * self.data.batch_size
        taken = large and self.has_faster(worker)
        self.tell(straggler(worker, slowdown))
        if slowdown > 1 and (ahead := self.model.ahead.pop(worker, None)):
            self.model.free |= samples_of(ahead)
        if taken:
            self.take_back(worker)

    @rule(seconds=st.integers(1, 12))
    def time_passes(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.tell(Tick())
            if not self.closed:
                self.expire()

    @rule(parts=ARRIVALS)
    def data_arrive(self, parts: list[DataPartition]) -> None:
        """Also old totals again, and to a job whose data do not grow or are complete: nothing comes of it."""
        self.tell(data_arrived(tuple(parts)))
        if not self.complete and not self.closed:
            self.arrive(parts)

    @precondition(lambda self: self.requests > 20)
    @rule(parts=ARRIVALS)
    def data_are_closed(self, parts: list[DataPartition]) -> None:
        self.data_arrive(parts)
        self.tell(data_arrived((), closed=True))
        if not self.closed:
            self.complete = True

    @rule()
    def saves(self) -> None:
        """A checkpoint with pushes frozen."""
        document = BOOK.dump_json(self.tell(mark_ledger("m")).book)
        then = copy.deepcopy(self.model)
        for shard in (*then.held.values(), *then.ahead.values()):
            then.free |= samples_of(shard)
        then.held.clear()
        then.ahead.clear()
        self.saved = document, then, dict(self.failures), set(self.every)

    @precondition(lambda self: self.saved and not self.closed)
    @rule()
    def goes_back(self) -> None:
        document, then, failures, known = self.saved
        self.gone_back = True
        self.tell(LedgerRestored(BOOK.validate_json(document)))
        heard = self.model.heard_at_s
        self.model = copy.deepcopy(then)
        self.model.free |= self.every - known
        self.model.fresh |= self.every - known
        self.model.heard_at_s, self.failures = heard, dict(failures)
        self.priorities |= {name: part.priority for name, part in self.ledger.state.book.source.partitions.items()}
        self.ranges = {s.id: (s.partition, s.epoch, s.start, s.length) for s in BOOK.validate_json(document).requeued}
        self.round = None
        if self.held_out is not None:
            self.aim()
        self.last.clear()

    @precondition(lambda self: self.requests > 40)
    @rule()
    def is_cancelled(self) -> None:
        self.tell(job_cancelled())
        self.round = None
        for worker in {**self.model.held, **self.model.ahead}:
            self.take_back(worker)
        self.closed = True

    # what must hold

    @invariant()
    def the_books_say_what_the_model_says(self) -> None:
        book, model = self.ledger.state.book, self.model
        held = {name: (w.lease.id, w.lease.attempt) for name, w in self.ledger.state.workers.items() if w.lease}
        evaluated = self.round.held if self.round else {}
        ahead = {name: (w.ahead.id, w.ahead.attempt) for name, w in self.ledger.state.workers.items() if w.ahead}
        assert ahead == {name: (s.id, s.attempt) for name, s in model.ahead.items()}
        assert ahead.keys() <= held.keys(), "what is held ahead follows a lease"
        assert held == {name: (s.id, s.attempt) for name, s in {**model.held, **evaluated}.items()}
        assert (book.samples_done, book.samples_abandoned) == (len(model.done), len(model.given_up))
        assert (book.samples_waiting, book.samples_total) == (len(model.free), len(self.every))
        assert book.settled == (self.complete and model.done | model.given_up == self.every)
        measured = [fact for fact in self.facts if isinstance(fact, EvaluationMeasured)]
        assert len(measured) == self.rounds
        if measured:
            assert (measured[-1].evaluation.loss, measured[-1].evaluation.samples) == (0.5, self.found)

    def teardown(self) -> None:
        """Whatever happened: calm workers then finish the job, and every sample of every epoch is in one place."""
        if not hasattr(self, "model") or self.closed:
            return
        self.data_are_closed([])
        self.new_pods_take_the_place()
        for worker in {**self.model.held, **(self.round.held if self.round else {})}:
            self.pod_exits(worker)
        self.new_pods_take_the_place()
        for _ in range(20_000):  # an evaluation after each sample may have as many shards as it has samples
            if self.over and self.ledger.state.closed:
                break
            self.now += 1  # nobody waits for a faster peer that has fallen silent
            self.ask("worker-0", self.lease_of("worker-0"), True)
        assert self.model.done | self.model.given_up == self.every
        assert not self.model.done & self.model.given_up
        assert any(isinstance(fact, JobCompleted) for fact in self.facts)


AgainstModel.TestCase.settings = settings(max_examples=120, stateful_step_count=60)
TestAgainstModel = AgainstModel.TestCase

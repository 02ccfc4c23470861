"""The books under random schedules, against a list of samples and a parameter server's progress records.

The model applies samples as the trainer does: parameters are columns, each with one record per shard id; a batch is
applied where it continues the record, skipped where it is behind it. A worker that gets a requeued shard starts from
the smallest record; one that is killed may have reached some columns only. A checkpoint copies column after column
while training goes on, between two marks of the ledger.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_builders import AUDIT, JOB, audited, heartbeat, mark_ledger, next_shard, pod_exited, release, straggler
from pydantic import TypeAdapter
from stretto_core.dispatcher.audit import Applied, Counted, Proof, epochs_of, prove
from stretto_core.dispatcher.book import Book, fingerprint_of
from stretto_core.dispatcher.events import JobOpened, LedgerRestored
from stretto_core.dispatcher.machine import ShardLedger
from stretto_core.dispatcher.source import DataSpec
from stretto_core.dispatcher.state import RELEASES_FREE, LedgerSettings, LedgerState
from stretto_core.machine import Emit, Reply, Tick
from stretto_messages.dispatcher import JobCompleted, NextShard, NextShardReply, ShardAbandoned
from stretto_messages.values import Shard

STATE = TypeAdapter(LedgerState)
BOOK = TypeAdapter(Book)


COLUMNS = 3


@dataclass
class Column:
    """Content of one part of the parameters: applied counts by epoch and sample, and the records."""

    applied: Counter[tuple[int, int]] = field(default_factory=Counter)
    progress: dict[int, int] = field(default_factory=dict)
    samples: int = 0
    fingerprint: int = 0

    def push(self, shard: Shard, start: int, end: int) -> None:
        done = self.progress.get(shard.id, 0)
        if end <= done:
            return
        assert start <= done, "a gap: the worker must ask the record first"
        for sample in range(shard.start + done, shard.start + end):
            self.applied[shard.epoch, sample] += 1
        self.samples += end - done
        self.fingerprint += fingerprint_of(shard.id, 1) * (end**2 - done**2)
        self.progress[shard.id] = end


class PsModel:
    def __init__(self) -> None:
        self.columns = [Column() for _ in range(COLUMNS)]

    def push(self, shard: Shard, start: int, end: int, reached: int = COLUMNS) -> None:
        for column in self.columns[:reached]:
            column.push(shard, start, end)

    def progress(self, shard: Shard) -> int:
        return min(column.progress.get(shard.id, 0) for column in self.columns)


@dataclass
class Images:
    """A checkpoint being taken: the columns copied so far."""

    mark: str
    abandoned: list[Shard]
    columns: list[Column] = field(default_factory=list)


@dataclass
class WorkerModel:
    shard: Shard | None = None
    offset: int = 0
    ahead: Shard | None = None
    begun: int = -1
    """Id of the shard that it trained last."""
    last: NextShard | None = None
    reply: NextShardReply | None = None
    blurred: bool = False  # a late copy of an older request came after the last one


class Books(RuleBasedStateMachine):
    @initialize(
        samples=st.integers(1, 120),
        batch=st.integers(1, 7),
        per_shard=st.integers(1, 6),
        epochs=st.integers(1, 3),
        shuffle=st.booleans(),
        seed=st.integers(0, 99),
    )
    def begin(self, samples: int, batch: int, per_shard: int, epochs: int, shuffle: bool, seed: int) -> None:
        self.data = DataSpec(samples, batch, per_shard, shuffle, seed)
        self.epochs = epochs
        self.ledger = ShardLedger(None, self.config())
        self.now, self.requests, self.pods = 5000.0, 0, 0
        self.ps = PsModel()
        self.workers: dict[str, WorkerModel] = {}
        self.zombies: list[tuple[str, Shard]] = []
        self.old_requests: list[NextShard] = []
        self.completed: list[JobCompleted] = []
        self.abandoned: list[Shard] = []
        self.images: Images | None = None
        self.checkpoint: tuple[bytes, list[Column], list[Shard]] | None = None
        self.tell(JobOpened(JOB, self.data, epochs, 3))

    @staticmethod
    def config() -> LedgerSettings:
        return LedgerSettings(lease_timeout_s=10, deaf_after_s=4)

    def tell(self, event: Any) -> Any:
        reply = None
        for action in self.ledger.handle(event, self.now):
            if isinstance(action, Reply):
                reply = action.body
            elif isinstance(action, Emit) and isinstance(action.fact, JobCompleted):
                self.completed.append(action.fact)
            elif isinstance(action, Emit) and isinstance(action.fact, ShardAbandoned):
                self.abandoned.append(copy.copy(action.fact.shard))
        return reply

    def pick(self, choice: int) -> tuple[str, WorkerModel]:
        names = sorted(self.workers)
        name = names[choice % len(names)]
        return name, self.workers[name]

    def request(self, name: str, done: Shard | None, ahead: bool = True) -> NextShardReply:
        worker = self.workers[name]
        self.requests += 1
        report = (done.id, done.attempt) if done else (None, 0)
        worker.last = next_shard(name, f"r{self.requests}", *report, ahead=ahead)
        self.old_requests.append(worker.last)
        reply: NextShardReply = copy.deepcopy(self.tell(worker.last))
        worker.reply, worker.blurred = reply, False
        worker.shard, worker.offset = reply.shard, 0
        if reply.shard:
            worker.offset = self.ps.progress(reply.shard)
            assert worker.offset >= reply.shard.offset or self.failures(name)
            if reply.shard.attempt == 1 and not reply.shard.offset and reply.shard.id != worker.begun:
                assert worker.offset == 0, "the trainer asks no record of a first attempt"
            worker.begun = reply.shard.id
        worker.ahead = reply.ahead
        return reply

    def failures(self, name: str) -> int:
        assert self.ledger.state.workers[name].lease is not None
        return self.ledger.state.workers[name].lease.failures

    # what workers do

    @precondition(lambda self: len(self.workers) < 4)
    @rule(ahead=st.booleans())
    def join(self, ahead: bool) -> None:
        self.workers[f"worker-{self.pods}"] = WorkerModel()
        self.request(f"worker-{self.pods}", None, ahead)
        self.pods += 1

    @precondition(lambda self: self.workers)
    @rule(choice=st.integers(0, 3), batches=st.integers(1, 6))
    def train(self, choice: int, batches: int) -> None:
        _, worker = self.pick(choice)
        if worker.shard:
            end = min(worker.offset + batches * self.data.batch_size, worker.shard.length)
            self.ps.push(worker.shard, worker.offset, end)
            worker.offset = end

    @precondition(lambda self: self.workers)
    @rule(choice=st.integers(0, 3))
    def heartbeat(self, choice: int) -> None:
        name, worker = self.pick(choice)
        if worker.shard:
            shard = worker.shard
            answer = self.tell(heartbeat(name, shard.id, shard.attempt, worker.offset)).answer
            if answer == "stale":
                worker.shard = None

    @precondition(lambda self: self.workers)
    @rule(choice=st.integers(0, 3), ahead=st.booleans())
    def finish(self, choice: int, ahead: bool) -> None:
        name, worker = self.pick(choice)
        if worker.shard:
            self.ps.push(worker.shard, worker.offset, worker.shard.length)
        promised, held = worker.ahead, self.ledger.state.workers.get(name)
        promised = promised if held is not None and held.ahead is not None else None
        reply = self.request(name, worker.shard, ahead)
        if promised is not None and not reply.stale:
            assert reply.shard == promised, "it goes on with what it has read"

    @precondition(lambda self: self.workers)
    @rule(choice=st.integers(0, 3))
    def repeat(self, choice: int) -> None:
        _, worker = self.pick(choice)
        if worker.last and worker.reply:
            reply = copy.deepcopy(self.tell(worker.last))
            assert reply.stale == worker.reply.stale
            assert worker.blurred or reply == worker.reply
            if worker.blurred:
                worker.reply, worker.shard, worker.blurred = reply, reply.shard, False
                worker.offset = self.ps.progress(reply.shard) if reply.shard else 0

    @precondition(lambda self: self.old_requests)
    @rule(choice=st.integers(0, 1000))
    def late_duplicate(self, choice: int) -> None:
        """A copy of an old request arrives again; nobody reads the reply. Its worker asks anew afterwards."""
        request = self.old_requests[choice % len(self.old_requests)]
        worker = self.workers.get(request.pod)
        if worker is None or worker.last != request:
            self.tell(request)
            if worker is not None:
                worker.blurred = True
            if worker is not None and worker.shard is None:
                self.request(request.pod, None)

    @precondition(lambda self: self.workers)
    @rule(choice=st.integers(0, 3), failure=st.booleans())
    def give_back(self, choice: int, failure: bool) -> None:
        name, worker = self.pick(choice)
        if worker.shard and worker.shard.attempt <= RELEASES_FREE:
            shard = worker.shard
            why = "bad row" if failure else None
            self.tell(release(name, shard.id, shard.attempt, worker.offset, why))
            worker.shard = None
            self.request(name, None)

    @precondition(lambda self: self.workers)
    @rule(choice=st.integers(0, 3), reached=st.integers(0, COLUMNS))
    def exit(self, choice: int, reached: int) -> None:
        """Killed, perhaps between its pushes of one batch to two servers."""
        name, worker = self.pick(choice)
        del self.workers[name]
        if worker.shard:
            end = min(worker.offset + self.data.batch_size, worker.shard.length)
            self.ps.push(worker.shard, worker.offset, end, reached)
            self.zombies.append((name, worker.shard))
        self.tell(pod_exited(name))

    @precondition(lambda self: self.zombies)
    @rule(choice=st.integers(0, 20))
    def zombie_reports(self, choice: int) -> None:
        name, shard = self.zombies[choice % len(self.zombies)]
        assert self.tell(heartbeat(name, shard.id, shard.attempt, shard.length)).answer == "unknown"
        assert self.tell(next_shard(name, "z", shard.id, shard.attempt)).answer == "unknown"

    @precondition(lambda self: self.workers)
    @rule(choice=st.integers(0, 3), slowdown=st.floats(1, 20))
    def straggle(self, choice: int, slowdown: float) -> None:
        self.tell(straggler(self.pick(choice)[0], slowdown))

    # what time and faults do

    @rule(seconds=st.integers(1, 14))
    def silence(self, seconds: int) -> None:
        """Some leases expire; their holders go on unaware."""
        for _ in range(seconds):
            self.now += 1
            self.tell(Tick())

    @rule()
    def take_over(self) -> None:
        """Another replica loads the snapshot."""
        document = STATE.dump_json(self.ledger.state)
        self.ledger = ShardLedger(STATE.validate_json(document), self.config())
        assert STATE.dump_json(self.ledger.state) == document

    @rule()
    def save_frozen(self) -> None:
        """One mark, while pushes are frozen."""
        mark = self.tell(mark_ledger("frozen"))
        self.images = None
        self.checkpoint = (BOOK.dump_json(mark.book), copy.deepcopy(self.ps.columns), list(self.abandoned))

    @rule()
    def begin_images(self) -> None:
        self.requests += 1
        self.images = Images(f"m{self.requests}", list(self.abandoned))
        self.tell(mark_ledger(self.images.mark))

    @precondition(lambda self: self.images)
    @rule()
    def copy_a_column(self) -> None:
        assert self.images is not None
        copied = self.images.columns
        copied.append(copy.deepcopy(self.ps.columns[len(copied)]))
        if len(copied) == COLUMNS:
            mark = self.tell(mark_ledger("second", after=self.images.mark))
            self.checkpoint = (BOOK.dump_json(mark.book), copied, self.images.abandoned)
            self.images = None

    @precondition(lambda self: self.checkpoint and not self.completed)
    @rule()
    def lose_a_ps(self) -> None:
        """Parameters and books go back; every worker sees new servers and asks anew before it pushes again."""
        assert self.checkpoint is not None
        document, columns, abandoned = self.checkpoint
        self.ps.columns = copy.deepcopy(columns)
        self.abandoned = list(abandoned)
        self.images = None
        self.tell(LedgerRestored(BOOK.validate_json(document)))
        for name, worker in self.workers.items():
            self.request(name, worker.shard)

    # what must hold

    @invariant()
    def books_balance(self) -> None:
        book = self.ledger.state.book
        assert book is not None
        workers = self.ledger.state.workers.values()
        leased = [shard for worker in workers for shard in (worker.lease, worker.ahead) if shard]
        total = self.data.samples * self.epochs
        assert (
            book.samples_done + book.samples_abandoned + sum(shard.length for shard in leased) + book.samples_waiting
            == total
        )
        held = [(s.epoch, s.start, s.length) for s in (*leased, *book.requeued)]
        if book.remainder:
            held.append((book.remainder.epoch, book.remainder.start, book.remainder.length))
        held.sort()
        for (epoch, start, length), (epoch_2, start_2, _) in pairwise(held):
            assert epoch < epoch_2 or start + length <= start_2, "two holders of one sample"

    @invariant()
    def nothing_is_repeated(self) -> None:
        assert all(times == 1 for column in self.ps.columns for times in column.applied.values())

    @invariant()
    def the_audit_proves_it(self) -> None:
        """At every moment: what is complete by the books, plus what the columns have of the rest, and nothing else."""
        told = audited(self.ledger)
        assert self.tell(AUDIT).ledger.samples_waiting == told.book.samples_waiting
        rest = [(s.id, 0) for s in (*told.shards, *told.book.requeued)]
        rest += [(entry.shard, entry.offset) for entry in told.book.given_up]
        done = told.book.samples_before + told.book.samples_done
        assert not self.proof(done, told.book.fingerprint, rest).faults
        for epoch in epochs_of(told.book, told.shards):
            assert epoch.waiting + epoch.in_flight + epoch.given_up + epoch.done == self.data.samples
            assert min(epoch.waiting, epoch.in_flight, epoch.given_up, epoch.done) >= 0

    def proof(self, samples: int, fingerprint: int, rest: list[tuple[int, int]]) -> Proof:
        counted = [Counted((i,), c.samples, c.fingerprint) for i, c in enumerate(self.ps.columns)]
        applied = [
            Applied(shard, (i,), column.progress.get(shard, 0), known)
            for shard, known in rest
            for i, column in enumerate(self.ps.columns)
        ]
        return prove(samples, fingerprint, COLUMNS, counted, applied)

    def teardown(self) -> None:
        """Two calm workers finish the job: every sample once, except those that are named as abandoned."""
        if not hasattr(self, "ledger"):
            return
        for name in list(self.workers):
            self.tell(pod_exited(name))
            del self.workers[name]
        self.workers = {"worker-9990": WorkerModel(), "worker-9991": WorkerModel()}
        for _ in range(5000):
            answers: list[str] = []
            for name, worker in self.workers.items():
                if worker.shard:
                    self.ps.push(worker.shard, worker.offset, worker.shard.length)
                answers.append(self.request(name, worker.shard).answer)
            if answers == ["end", "end"]:
                break
        every = {(epoch, sample) for epoch in range(self.epochs) for sample in range(self.data.samples)}
        named = {
            (shard.epoch, sample)
            for shard in self.abandoned
            for sample in range(shard.start + shard.offset, shard.start + shard.length)
        }
        for column in self.ps.columns:
            assert set(column.applied) | named == every
        assert len(self.completed) == 1
        told = self.completed[0]
        assert (told.samples, told.samples_abandoned) == (len(every) - len(named), len(named))
        assert told.books is not None
        rest = [(entry.shard, entry.offset) for entry in told.books.given_up]
        assert not self.proof(told.samples, int(told.books.fingerprint, 16), rest).faults
        assert {(e.epoch, s) for e in told.books.given_up for s in range(e.start, e.start + e.length)} == named


Books.TestCase.settings = settings(max_examples=300, stateful_step_count=60)
TestBooks = Books.TestCase

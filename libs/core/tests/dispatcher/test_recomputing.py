"""Columns that come back from a checkpoint get what they lack, and every column has every sample once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_builders import (
    AUDIT,
    checkpoint_flushed,
    columns_restored,
    heartbeat,
    mark_ledger,
    parameters_lost,
    pod_exited,
    release,
    straggler,
)
from ledger_harness import LedgerHarness
from pydantic import TypeAdapter
from stretto_core.dispatcher import recomputing
from stretto_core.dispatcher.audit import Applied, Counted, epochs_of, prove
from stretto_core.dispatcher.book import Book, fingerprint_of
from stretto_core.dispatcher.events import LedgerRestored
from stretto_core.dispatcher.source import DataSpec
from stretto_core.dispatcher.state import LedgerState
from stretto_messages.books import partly_done
from stretto_messages.dispatcher import JobCompleted, JobProgressed, NextShard, RecomputationDecided
from stretto_messages.values import Shard

STATE = TypeAdapter(LedgerState)
COLUMNS = 6


def flushed(harness: LedgerHarness, name: str) -> None:
    """Take a checkpoint of this instant."""
    harness.tell(mark_ledger(f"first.{name}", checkpoint=name))
    harness.tell(mark_ledger(f"second.{name}", after=f"first.{name}"))
    harness.tell(checkpoint_flushed(name))


def lost_and_back(harness: LedgerHarness, version: int, name: str = "c1") -> None:
    """Columns are lost, and come back from a checkpoint."""
    harness.tell(parameters_lost(version))
    harness.tell(columns_restored(version, name))


def test_shards_that_ended_since_the_checkpoint_come_again_first_under_their_ids() -> None:
    harness = LedgerHarness(DataSpec(800, 10, 8))
    before = harness.lease("worker-0")
    returned = harness.lease("worker-1")
    first = harness.lease("worker-0", before)
    flushed(harness, "c1")
    second = harness.lease("worker-0", first)
    third = harness.lease("worker-0", second)
    harness.tell(pod_exited("worker-1"))
    lost_and_back(harness, 4)
    (decided,) = harness.said(RecomputationDecided)
    assert (decided.granted, decided.shards, decided.samples, decided.checkpoint) == (True, 2, 160, "c1")
    assert harness.said(JobProgressed)[-1].samples_recomputed == 160
    assert harness.audit().book.samples_done == 80, "each sample counts once"
    again = [harness.lease(f"worker-{n}") for n in (2, 3, 4)]
    assert [(s.id, s.start, s.length, s.attempt) for s in again] == [
        (first.id, first.start, 80, 2),
        (second.id, second.start, 80, 2),
        (returned.id, returned.start, 80, 2),
    ]
    held = harness.lease("worker-0")
    assert (held.id, held.attempt) == (third.id, 2), "the worker keeps its shard and asks how far it is"
    books = harness.tell(AUDIT).ledger
    assert books.books.samples_recomputed == 160


@pytest.mark.parametrize("samples", [800, 1600])
def test_columns_of_the_checkpoint_that_a_job_started_from_lack_all_that_ended_since(samples: int) -> None:
    """Method: the checkpoint of a job on the same data, and on other data, before the job has one of its own."""
    donor = LedgerHarness(DataSpec(800, 10, 8))
    before = donor.lease("worker-0")
    donor.lease("worker-0", before)
    mark = donor.tell(mark_ledger("m"))
    harness = LedgerHarness(DataSpec(samples, 10, 8))
    harness.tell(LedgerRestored(mark.book, "other-7", 1))
    first = harness.lease("worker-0")
    second = harness.lease("worker-0", first)
    lost_and_back(harness, 4, "other-7")
    (decided,) = harness.said(RecomputationDecided)
    assert (decided.granted, decided.shards, decided.samples) == (True, 1, 80)
    again = harness.lease("worker-1")
    assert (again.id, again.attempt) == (first.id, first.attempt + 1)
    assert harness.lease("worker-0").id == second.id


def test_a_completion_that_overtook_the_loss_is_stale() -> None:
    """Goal: no shard counts as done that restored columns lack. Method: its report comes when they are back."""
    harness = LedgerHarness(DataSpec(800, 10, 8))
    shard = harness.lease("worker-0")
    flushed(harness, "c1")
    lost_and_back(harness, 2)
    reply = harness.next("worker-0", shard)
    assert reply.stale
    assert reply.servers_version == 2, "the worker waits for the list without the lost server, which may serve on"
    assert (reply.shard.id, reply.shard.attempt) == (shard.id, 2)
    assert harness.tell(heartbeat("worker-0", shard.id, 1, 80)).answer == "stale"


def test_a_job_does_not_complete_while_columns_are_lost_and_a_completed_one_opens_again() -> None:
    harness = LedgerHarness(DataSpec(160, 10, 8))
    first = harness.lease("worker-0")
    flushed(harness, "c1")
    second = harness.lease("worker-0", first)
    harness.tell(parameters_lost(2))
    again = harness.lease("worker-0")
    assert harness.next("worker-0", again).answer == "wait", "every sample is done, and some columns are lost"
    assert not harness.said(JobCompleted)
    harness.tell(columns_restored(2, "c1"))
    shards = [harness.lease("worker-0")]
    shards.append(harness.lease("worker-0", shards[0]))
    assert {shard.id for shard in shards} == {first.id, second.id}
    assert harness.next("worker-0", shards[1]).answer == "end"
    harness.tell(parameters_lost(3))
    assert harness.ledger.ticking
    harness.tell(columns_restored(3, "c1"))
    for _ in range(2):
        shards.append(harness.lease("worker-0", shards[-1] if len(shards) > 2 else None))
    assert harness.next("worker-0", shards[-1]).answer == "end"
    completed = harness.said(JobCompleted)
    assert [fact.samples for fact in completed] == [160, 160]
    assert completed[-1].books.samples_recomputed == 320


def test_nothing_that_a_checkpoint_may_need_is_forgotten() -> None:
    harness = LedgerHarness(DataSpec(100_000, 10, 1), forget_after_s=5)
    flushed(harness, "c1")
    shard, seen = None, list[int]()
    for _ in range(30):
        harness.now += 1
        reply = harness.next("worker-0", shard)
        seen += reply.forget
        shard = reply.shard
    assert not seen
    flushed(harness, "c2")
    harness.now += 5
    assert harness.next("worker-0", shard).forget == tuple(range(29))


def test_recomputed_shards_are_forgotten_too() -> None:
    harness = LedgerHarness(DataSpec(100_000, 10, 1), forget_after_s=5)
    flushed(harness, "c1")
    shard = harness.lease("worker-0", harness.lease("worker-0"))
    lost_and_back(harness, 2)
    held = harness.lease("worker-0")
    assert (held.id, held.attempt) == (shard.id, 2)
    shard = harness.lease("worker-0", held)
    assert (shard.id, shard.attempt) == (0, 2)
    harness.lease("worker-0", shard)
    flushed(harness, "c2")
    harness.now += 6
    forgotten = harness.next("worker-1").forget
    assert forgotten == (0,), "an earlier holder of the other one may still push"


@pytest.mark.parametrize("checkpoint", ["", "c0", "c2"])
def test_the_ledger_says_so_when_it_does_not_know_what_columns_lack(checkpoint: str) -> None:
    harness = LedgerHarness(DataSpec(800, 10, 8))
    if checkpoint:
        flushed(harness, checkpoint)
    done = harness.lease("worker-0", harness.lease("worker-0"))
    lost_and_back(harness, 2)
    (decided,) = harness.said(RecomputationDecided)
    assert not decided.granted
    assert "since checkpoint c1 are not all known" in decided.reason
    assert harness.audit().book.samples_done == 80
    assert harness.next("worker-0", done).stale
    assert harness.ledger.state.loss == 2


def test_a_loss_without_columns_costs_nothing_and_an_earlier_one_is_not_answered() -> None:
    harness = LedgerHarness(DataSpec(800, 10, 8))
    harness.lease("worker-0", harness.lease("worker-0"))
    harness.tell(parameters_lost(2))
    harness.tell(parameters_lost(3))
    harness.tell(columns_restored(2, "c1"))
    assert not harness.said(RecomputationDecided)
    harness.tell(columns_restored(3, "c1", columns=0))
    (decided,) = harness.said(RecomputationDecided)
    assert (decided.granted, decided.samples) == (True, 0)
    assert harness.audit().book.samples_done == 80


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputing, "ENDED_MAX", 50)
    harness = LedgerHarness(DataSpec(100_000, 10, 1))
    flushed(harness, "c1")
    shard = None
    for step in range(60):
        shard = harness.lease("worker-0", shard)
        if step == 40:
            harness.tell(mark_ledger("first.c2", checkpoint="c2"))
            harness.tell(mark_ledger("second.c2", after="first.c2"))
    ended = harness.ledger.state.ended
    assert (ended.checkpoint, len(ended.shards), ended.marks) == ("", 50, {"c2": 40})
    assert [shard.id for shard in harness.ledger.state.finished] == list(range(9))
    harness.tell(checkpoint_flushed("c2"))
    assert (ended.checkpoint, len(ended.shards)) == ("c2", 19)


@pytest.mark.proof
def test_the_document_of_a_full_memory_stays_below_what_the_bus_takes() -> None:
    harness = LedgerHarness(DataSpec(10**9, 512, 1))
    flushed(harness, "c1")
    shard = None
    for _ in range(recomputing.ENDED_MAX + 10):
        shard = harness.lease("worker-0", shard)
        harness.facts.clear()
    assert len(STATE.dump_json(harness.ledger.state)) < 2_000_000


# any order of things -----------------------------------------------------------------------------------------------


@dataclass
class Column:
    """Records of one column for each shard, with the counters that it keeps, as at a parameter server.

    ``applied``: how often each sample of each epoch was.
    """

    records: dict[int, int] = field(default_factory=dict[int, int])
    applied: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    samples: int = 0
    fingerprint: int = 0

    def push(self, shard: Shard, start: int, stop: int) -> bool:
        """Apply a batch unless it is there; False for a gap before it."""
        has = self.records.get(shard.id, 0)
        assert has <= start or has >= stop, "a batch is applied whole"
        if has < start:
            return False
        if has == start:
            self.records[shard.id] = stop
            self.applied.update((shard.epoch, sample) for sample in range(shard.start + start, shard.start + stop))
            self.samples += stop - start
            self.fingerprint += fingerprint_of(shard.id, stop) - fingerprint_of(shard.id, start)
        return True


@dataclass
class Held:
    """A worker's lease and how far the worker believes to be; -1: it waits for all columns to say so."""

    shard: Shard
    offset: int


class Play:
    """Workers, columns, checkpoints and losses around one ledger."""

    def __init__(self, data: DataSpec, epochs: int) -> None:
        times = {"forget_after_s": 3.0, "lease_timeout_s": 10.0, "deaf_after_s": 4.0}
        self.harness, self.data, self.epochs = LedgerHarness(data, epochs, **times), data, epochs
        self.asked, self.begun = list[NextShard](), set[int]()
        self.columns = [Column() for _ in range(COLUMNS)]
        self.held: dict[str, Held] = {}
        self.lengths: dict[int, int] = {}
        self.forgotten: set[int] = set()
        self.images: dict[int, Column] = {}
        self.complete: tuple[str, list[Column], Book] | None = None
        self.taking = ""
        self.lost: set[int] = set()
        self.version = 1
        self.number = 0
        self.generation = 0

    def worker(self, value: int) -> str:
        """The pods of an earlier life of the job are gone."""
        return f"worker-{self.generation * 3 + value % 3}"

    def ask(self, value: int, report: bool) -> None:
        """Ask for a shard. With ``report``, a worker that has pushed its whole shard completes it."""
        name = self.worker(value)
        self.resume(name)
        held = self.held.pop(name, None)
        whole = held is not None and held.offset == held.shard.length
        reply = self.harness.next(name, held.shard if held and report and whole else None, ahead=value >= 16)
        self.asked.append(self.harness.asked)
        for shard in reply.forget:
            for column in range(COLUMNS):
                if column not in self.lost:
                    assert self.columns[column].records[shard] == self.lengths[shard]
            self.forgotten.add(shard)
        if reply.shard is not None:
            assert reply.shard.id not in self.forgotten
            self.lengths[reply.shard.id] = reply.shard.length
            fresh = reply.shard.attempt == 1 and not reply.shard.offset
            if fresh and reply.shard.id not in self.begun and not self.lost:
                assert self.progress(reply.shard.id) == 0, "the trainer asks no record of a first attempt"
            self.begun.add(reply.shard.id)
            self.held[name] = Held(reply.shard, 0 if fresh else -1)
            self.resume(name)
        if reply.ahead is not None:
            assert reply.ahead.id not in self.forgotten
            assert reply.ahead.attempt > 1 or not any(reply.ahead.id in column.records for column in self.columns)

    def resume(self, name: str) -> Held | None:
        """Return the lease of a worker, once it knows where to go on."""
        held = self.held.get(name)
        if held is not None and held.offset < 0 and not self.lost:
            held.offset = self.progress(held.shard.id)
        return held if held is not None and held.offset >= 0 else None

    def progress(self, shard: int) -> int:
        return min(column.records.get(shard, 0) for column in self.columns)

    def push(self, value: int, torn: bool) -> None:
        """Push the next batch to all columns; ``torn``: the worker dies in the middle of it."""
        name = self.worker(value)
        held = self.resume(name)
        if held is None or held.offset == held.shard.length or self.lost:
            return
        shard, stop = held.shard, min(held.offset + self.data.batch_size, held.shard.length)
        assert shard.id not in self.forgotten
        order = [(value + column) % COLUMNS for column in range(COLUMNS)]
        pushed = [self.columns[column].push(shard, held.offset, stop) for column in order[: 3 if torn else COLUMNS]]
        if torn:
            del self.held[name]
            self.harness.tell(pod_exited(name))
            assert self.harness.tell(heartbeat(name, shard.id, shard.attempt, shard.length)).answer == "unknown"
            assert self.harness.next(name, shard).answer == "unknown", "a zombie"
            self.harness.ledger.state.exited.clear()  # its successor has another name, which the model does not give it
        elif all(pushed):
            held.offset = stop
        else:
            held.offset = self.progress(shard.id)

    def beat(self, value: int) -> None:
        """Say how far a worker is. A worker whose lease went to another drops it."""
        held = self.resume(name := self.worker(value))
        if held is not None:
            beat = heartbeat(name, held.shard.id, held.shard.attempt, max(held.offset, held.shard.offset))
            if self.harness.tell(beat).answer == "stale":
                del self.held[name]

    def give_back(self, value: int) -> None:
        held = self.held.pop(self.worker(value), None)
        if held is not None and held.shard.attempt < 8:
            failure = "torn row" if held.shard.id % 3 == 0 else None
            offset = held.shard.offset if held.offset < 0 else min(held.offset, self.progress(held.shard.id))
            self.harness.tell(release(self.worker(value), held.shard.id, held.shard.attempt, offset, failure))

    def checkpoint(self, value: int) -> None:
        """Go one step further with a checkpoint: mark, copy half of the columns twice, mark, flush."""
        if self.lost:
            return
        if not self.taking:
            self.number += 1
            self.taking, self.images = f"c{self.number}", {}
            self.harness.tell(mark_ledger(f"first.{self.taking}", checkpoint=self.taking))
        elif len(self.images) < COLUMNS:
            for column in range(len(self.images), len(self.images) + COLUMNS // 2):
                self.images[column] = deepcopy(self.columns[column])
        else:
            mark = self.harness.tell(mark_ledger(f"second.{self.taking}", after=f"first.{self.taking}"))
            self.harness.tell(checkpoint_flushed(self.taking))
            self.complete = self.taking, [self.images[column] for column in range(COLUMNS)], deepcopy(mark.book)
            self.taking = ""

    def lose(self, value: int) -> None:
        """Lose some columns; the images of checkpoints are of servers that survive or not, so they are dropped."""
        if self.complete is None:
            return
        lost = {column for column in range(COLUMNS) if value >> column & 1} or {value % COLUMNS}
        if len(self.lost | lost) == COLUMNS:
            return
        self.taking = ""
        self.lost |= lost
        self.version += 1
        self.harness.tell(parameters_lost(self.version))

    def restore(self) -> None:
        if not self.lost or self.complete is None:
            return
        name, images, _ = self.complete
        for column in self.lost:
            self.columns[column] = deepcopy(images[column])
            for shard in self.forgotten:
                assert images[column].records[shard] == self.lengths[shard]
        self.lost = set()
        self.harness.tell(columns_restored(self.version, name))
        assert self.harness.said(RecomputationDecided)[-1].granted

    def go_back(self) -> None:
        """Everything goes back, as when the last server is lost; all pods are replaced."""
        if self.complete is None:
            return
        name, images, book = self.complete
        self.columns = deepcopy(images)
        self.lost, self.taking = set(), ""
        self.forgotten = {shard for shard in self.forgotten if images[0].records.get(shard) == self.lengths[shard]}
        for worker in list(self.harness.ledger.state.workers):
            self.harness.tell(pod_exited(worker))
        self.generation += 1
        self.held.clear()
        self.harness.tell(LedgerRestored(deepcopy(book), name))

    def take_over(self) -> None:
        """Another replica loads the snapshot."""
        document = STATE.dump_json(self.harness.ledger.state)
        self.harness.ledger.state = STATE.validate_json(document)
        assert STATE.dump_json(self.harness.ledger.state) == document

    def finish(self) -> None:
        """Calm workers train whatever is left."""
        self.restore()
        for _ in range(3000):
            if self.harness.ledger.state.closed:
                return
            self.harness.pass_time(1)
            for value in range(3):
                held = self.resume(self.worker(value))
                if held is not None and held.offset < held.shard.length:
                    self.push(value, torn=False)
                else:
                    self.ask(value, report=True)
        raise AssertionError(self.harness.audit())

    def proof(self) -> None:
        """Every column has every sample of the books, once, and no other."""
        completed = self.harness.said(JobCompleted)[-1]
        books = completed.books
        assert books is not None
        every = {(epoch, sample) for epoch in range(self.epochs) for sample in range(self.data.samples)}
        given_up = {(e.epoch, sample) for e in books.given_up for sample in range(e.start, e.start + e.length)}
        assert (completed.samples, completed.samples_abandoned) == (len(every) - len(given_up), len(given_up))
        for column in self.columns:
            assert set(column.applied.values()) <= {1}, "a sample was repeated"
            assert column.applied.keys() | given_up == every, "a sample was lost"
        known = dict(partly_done(books))
        applied = [
            Applied(shard, (number,), column.records[shard], known[shard])
            for number, column in enumerate(self.columns)
            for shard in known
            if shard in column.records
        ]
        proof = prove(completed.samples, int(books.fingerprint, 16), COLUMNS, self.counted(), applied, books.unproven)
        assert proof.faults == ()

    def counted(self) -> list[Counted]:
        return [Counted((number,), c.samples, c.fingerprint % 2**64) for number, c in enumerate(self.columns)]

    def audit(self) -> None:
        """At every moment: what is complete by the books, plus what the columns have of the rest, and nothing else."""
        told = self.harness.audit()
        assert self.harness.tell(AUDIT).ledger.samples_waiting == told.book.samples_waiting
        rest = {shard.id: 0 for shard in (*told.shards, *told.book.requeued)}
        rest |= {entry.shard: entry.offset for entry in told.book.given_up}
        applied = [
            Applied(shard, (number,), column.records.get(shard, 0), known)
            for shard, known in rest.items()
            for number, column in enumerate(self.columns)
        ]
        done = told.book.samples_before + told.book.samples_done
        assert not prove(done, told.book.fingerprint, COLUMNS, self.counted(), applied).faults
        for epoch in epochs_of(told.book, told.shards):
            assert epoch.waiting + epoch.in_flight + epoch.given_up + epoch.done == self.data.samples
            assert min(epoch.waiting, epoch.in_flight, epoch.given_up, epoch.done) >= 0


ACTIONS: tuple[tuple[float, Callable[[Play, int], None]], ...] = (
    (60, lambda play, value: play.push(value, torn=False)),
    (2, lambda play, value: play.push(value, torn=True)),
    (30, lambda play, value: play.ask(value, report=True)),
    (2, lambda play, value: play.ask(value, report=False)),
    (4, Play.give_back),
    (4, Play.beat),
    (1, lambda play, value: play.harness.tell(straggler(play.worker(value), 1.0 + value / 4))),
    (
        2,
        lambda play, value: [play.harness.tell(request) for request in play.asked[-1 - value :: 64][:1]],
    ),  # a late copy
    (12, Play.checkpoint),
    (2, Play.lose),
    (4, lambda play, value: play.restore()),
    (0.3, lambda play, value: play.go_back()),
    (4, lambda play, value: play.harness.pass_time(value % 4)),
    (0.5, lambda play, value: play.harness.pass_time(14)),  # leases expire; their holders go on unaware
    (1, lambda play, value: play.take_over()),
)


SMALL = st.builds(
    DataSpec, st.integers(1, 120), st.integers(1, 7), st.integers(1, 6), st.booleans(), st.integers(0, 99)
)


@pytest.mark.proof
@settings(max_examples=120)
@given(st.integers(0, 2**32), st.integers(0, 700), st.just(DataSpec(1500, 10, 3)) | SMALL, st.integers(1, 3))
def test_every_column_ends_with_every_sample_once_whichever_columns_are_lost(
    seed: int, steps: int, data: DataSpec, epochs: int
) -> None:
    """Goal: any order of leases, pushes, reports, deaths, checkpoints, losses and returns leaves the books exact.

    Method: columns keep records and counters as servers do. Reports may come long after the last push, a worker may
    die between two columns, images are copied one after the other, and another loss may come before the return. A
    generator of its own draws the steps: what matters lies behind a checkpoint, far from the beginning.
    """
    dice = random.Random(seed)
    play = Play(data, epochs)
    weights, actions = zip(*ACTIONS, strict=True)
    for action in dice.choices(actions, weights, k=steps):
        action(play, dice.randrange(64))
        if play.version == 1:  # later the books count samples that columns still lack
            play.audit()
    play.finish()
    play.proof()

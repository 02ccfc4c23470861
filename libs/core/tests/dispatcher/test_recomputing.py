"""Columns that come back from a checkpoint get what they lack, and every column has every sample once."""

from __future__ import annotations

import random
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
)
from ledger_harness import LedgerHarness
from pydantic import TypeAdapter
from stretto_core.dispatcher import recomputing
from stretto_core.dispatcher.audit import Applied, Counted, prove
from stretto_core.dispatcher.book import Book, fingerprint_of
from stretto_core.dispatcher.events import LedgerRestored
from stretto_core.dispatcher.source import DataSpec
from stretto_core.dispatcher.state import LedgerState
from stretto_messages.books import partly_done
from stretto_messages.dispatcher import JobCompleted, JobProgressed, RecomputationDecided
from stretto_messages.values import Shard

STATE = TypeAdapter(LedgerState)
COLUMNS = 6
BATCH = 10
SAMPLES = 1500


def flushed(harness: LedgerHarness, name: str) -> None:
    """Take a checkpoint of this instant."""
    harness.tell(mark_ledger(f"first.{name}", checkpoint=name))
    harness.tell(mark_ledger(f"second.{name}", after=f"first.{name}"))
    harness.tell(checkpoint_flushed(name))


def test_shards_that_ended_since_the_checkpoint_come_again_first_under_their_ids() -> None:
    harness = LedgerHarness(DataSpec(800, 10, 8))
    before = harness.lease("worker-0")
    returned = harness.lease("worker-1")
    first = harness.lease("worker-0", before)
    flushed(harness, "c1")
    second = harness.lease("worker-0", first)
    third = harness.lease("worker-0", second)
    harness.tell(pod_exited("worker-1"))
    harness.tell(parameters_lost(4))
    harness.tell(columns_restored(4, "c1"))
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
    harness.tell(parameters_lost(4))
    harness.tell(columns_restored(4, "other-7"))
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
    harness.tell(parameters_lost(2))
    harness.tell(columns_restored(2, "c1"))
    reply = harness.next("worker-0", shard)
    assert reply.stale
    assert reply.servers_version == 2, "the worker waits for the list without the lost server, which may serve on"
    assert reply.shard is not None
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
    harness.tell(parameters_lost(2))
    harness.tell(columns_restored(2, "c1"))
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
    harness.tell(parameters_lost(2))
    harness.tell(columns_restored(2, "c1"))
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
    """Records of one column for each shard, with the counters that it keeps, as at a parameter server."""

    records: dict[int, int] = field(default_factory=dict[int, int])
    samples: int = 0
    fingerprint: int = 0

    def push(self, shard: int, start: int, stop: int) -> bool:
        """Apply a batch unless it is there; False for a gap before it."""
        has = self.records.get(shard, 0)
        assert has <= start or has >= stop, "a batch is applied whole"
        if has < start:
            return False
        if has == start:
            self.records[shard] = stop
            self.samples += stop - start
            self.fingerprint += fingerprint_of(shard, stop) - fingerprint_of(shard, start)
        return True


@dataclass
class Held:
    """A worker's lease and how far the worker believes to be; -1: it waits for all columns to say so."""

    shard: Shard
    offset: int


class Play:
    """Workers, columns, checkpoints and losses around one ledger."""

    def __init__(self) -> None:
        self.harness = LedgerHarness(DataSpec(SAMPLES, BATCH, 3), forget_after_s=3)
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
        for shard in reply.forget:
            for column in range(COLUMNS):
                if column not in self.lost:
                    assert self.columns[column].records[shard] == self.lengths[shard]
            self.forgotten.add(shard)
        if reply.shard is not None:
            assert reply.shard.id not in self.forgotten
            self.lengths[reply.shard.id] = reply.shard.length
            fresh = reply.shard.attempt == 1 and not reply.shard.offset
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
        shard, stop = held.shard.id, min(held.offset + BATCH, held.shard.length)
        assert shard not in self.forgotten
        order = [(value + column) % COLUMNS for column in range(COLUMNS)]
        pushed = [self.columns[column].push(shard, held.offset, stop) for column in order[: 3 if torn else COLUMNS]]
        if torn:
            del self.held[name]
            self.harness.tell(pod_exited(name))
            self.harness.ledger.state.exited.clear()  # its successor has another name, which the model does not give it
        elif all(pushed):
            held.offset = stop
        else:
            held.offset = self.progress(shard)

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
        assert completed.samples + completed.samples_abandoned == SAMPLES
        known = dict(partly_done(books))
        applied = [
            Applied(shard, (number,), column.records[shard], known[shard])
            for number, column in enumerate(self.columns)
            for shard in known
            if shard in column.records
        ]
        counted = [
            Counted((number,), column.samples, column.fingerprint % 2**64) for number, column in enumerate(self.columns)
        ]
        proof = prove(completed.samples, int(books.fingerprint, 16), COLUMNS, counted, applied, books.unproven)
        assert proof.faults == ()


WEIGHTS = {
    "push": 60,
    "ask": 30,
    "checkpoint": 12,
    "time": 4,
    "again": 2,
    "torn": 2,
    "back": 4,
    "lose": 2,
    "restore": 4,
    "snapshot": 1,
    "return": 0.3,
}


def step(play: Play, kind: str, value: int) -> None:
    match kind:
        case "ask" | "again":
            play.ask(value, report=kind == "ask")
        case "push" | "torn":
            play.push(value, torn=kind == "torn")
        case "back":
            play.give_back(value)
        case "checkpoint":
            play.checkpoint(value)
        case "lose":
            play.lose(value)
        case "restore":
            play.restore()
        case "return":
            play.go_back()
        case "time":
            play.harness.pass_time(value % 4)
        case _:
            play.harness.ledger.state = STATE.validate_json(STATE.dump_json(play.harness.ledger.state))


@pytest.mark.proof
@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(0, 700))
def test_every_column_ends_with_every_sample_once_whichever_columns_are_lost(seed: int, steps: int) -> None:
    """Goal: any order of leases, pushes, reports, deaths, checkpoints, losses and returns leaves the books exact.

    Method: columns keep records and counters as servers do. Reports may come long after the last push, a worker may
    die between two columns, images are copied one after the other, and another loss may come before the return. A
    generator of its own draws the steps: what matters lies behind a checkpoint, far from the beginning.
    """
    dice = random.Random(seed)
    play = Play()
    for kind in dice.choices(list(WEIGHTS), list(WEIGHTS.values()), k=steps):
        step(play, kind, dice.randrange(64))
    play.finish()
    play.proof()

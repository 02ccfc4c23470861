"""Marks of checkpoints, and going back to them."""

import time
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_builders import heartbeat, job_cancelled, mark_ledger, next_shard, pod_exited, release, straggler
from ledger_harness import LedgerHarness
from pydantic import TypeAdapter
from stretto_core.dispatcher.book import Book
from stretto_core.dispatcher.book import Shard as DispatcherShard
from stretto_core.dispatcher.events import LedgerRestored
from stretto_core.dispatcher.source import DataSpec, LedgerError, Source
from stretto_core.dispatcher.state import LedgerState
from stretto_messages.dispatcher import JobCompleted, JobProgressed, LedgerReturn
from stretto_messages.values import Shard


def test_restore_takes_books_back_and_never_reuses_an_id_or_attempt() -> None:
    harness = LedgerHarness(DataSpec(400, 10, 8))
    first = harness.lease("worker-0")
    second = harness.lease("worker-1")
    harness.tell(heartbeat("worker-1", second.id, 1, 30))
    mark = harness.tell(mark_ledger("m"))
    assert mark.samples_done == 30
    document = TypeAdapter(type(mark.book)).dump_json(mark.book)
    later = harness.lease("worker-0", first)
    told = len(harness.said(JobProgressed))
    harness.tell(LedgerRestored(TypeAdapter(type(mark.book)).validate_json(document)))
    (progress,) = harness.said(JobProgressed)[told:]  # at once, not with the next lease
    assert progress.samples_done == 30
    reply = harness.next("worker-0", later)
    assert reply.stale
    assert (reply.shard.id, reply.shard.attempt) == (first.id, 2)
    again = harness.lease("worker-1", second)
    assert (again.id, again.attempt, again.offset) == (second.id, 2, 30)
    fresh = harness.lease("worker-2")
    assert fresh.id > later.id
    assert (fresh.start, fresh.length) == (later.start, later.length)


def test_images_between_two_marks_get_every_shard_of_the_meantime_under_its_id() -> None:
    harness = LedgerHarness(DataSpec(800, 10, 8))
    before, spanning = harness.lease("worker-0"), harness.lease("worker-1")
    during = harness.lease("worker-0", before)
    harness.tell(mark_ledger("c1"))
    after = harness.lease("worker-0", during)
    harness.tell(heartbeat("worker-0", after.id, 1, 70))
    harness.tell(straggler("worker-0", 4.0))
    small = harness.lease("worker-0", after)
    assert small.length == 20
    harness.tell(heartbeat("worker-0", small.id, 1, 10))
    harness.lease("worker-1", spanning)
    mark = harness.tell(mark_ledger("c2", after="c1"))
    assert mark.samples_done == 80
    assert mark.book.shards_done == 1
    listed = {(s.id, s.start, s.length, s.offset) for s in mark.book.requeued}
    assert {(s.id, s.start, s.length, 0) for s in (spanning, during, after, small)} <= listed
    harness.lease("worker-0", small)
    harness.tell(LedgerRestored(mark.book))
    again = [harness.lease(f"worker-{n}") for n in range(10, 15)]
    assert {(s.id, s.start, s.length) for s in again} == {(i, start, length) for i, start, length, _ in listed}
    assert all(shard.attempt == 2 for shard in again)


def test_leases_name_the_return_that_the_books_come_from() -> None:
    """Goal: no worker pushes a lease of other books. Method: a lease of before, its remembered reply, leases after."""
    harness = LedgerHarness(DataSpec(1000, 10, 1))
    mark = harness.tell(mark_ledger("c1"))
    before = harness.tell(next_shard("worker-0", "w.1"))
    assert (before.answer, before.lineage) == ("shard", 0)
    harness.tell(LedgerRestored(mark.book, lineage=7))
    again = harness.tell(next_shard("worker-0", "w.1"))
    assert (again.lineage, again.shard.id) == (7, before.shard.id + 1)
    assert harness.tell(next_shard("worker-0", "w.2")) == again
    document = TypeAdapter(LedgerState).dump_json(harness.ledger.state)
    assert TypeAdapter(LedgerState).validate_json(document).lineage == 7


def test_a_second_mark_of_another_or_too_old_first_one_is_refused() -> None:
    harness = LedgerHarness(DataSpec(100_000, 10, 1))
    harness.tell(mark_ledger("c1"))
    harness.tell(mark_ledger("c2"))
    with pytest.raises(LedgerError, match="after is 'c1'; give the id of the last mark"):
        harness.tell(mark_ledger("c3", after="c1"))
    shard = None
    for _ in range(1100):
        shard = harness.lease("worker-0", shard)
    with pytest.raises(LedgerError, match="mark anew"):
        harness.tell(mark_ledger("c3", after="c2"))


def test_records_are_kept_while_a_checkpoint_is_taken() -> None:
    harness = LedgerHarness(DataSpec(100_000, 10, 1), forget_after_s=5)
    harness.tell(mark_ledger("c1"))
    shard = None
    for _ in range(30):
        harness.now += 1
        reply = harness.next("worker-0", shard)
        shard = reply.shard
        assert not reply.forget
    harness.tell(mark_ledger("c2", after="c1"))
    assert len(harness.next("worker-0", shard).forget or []) > 20


def test_a_checkpoint_of_other_data_only_keeps_ids_apart() -> None:
    donor = LedgerHarness(DataSpec(400, 10, 8))
    for worker in range(3):
        donor.lease(f"worker-{worker}")
    harness = LedgerHarness(DataSpec(240, 10, 8))
    harness.tell(LedgerRestored(donor.tell(mark_ledger("m")).book))
    assert harness.lease("worker-0").id == 3
    more_epochs = LedgerHarness(DataSpec(400, 10, 8), epochs=5)
    more_epochs.tell(LedgerRestored(donor.tell(mark_ledger("m")).book))
    assert more_epochs.lease("worker-0").id == 0


def test_a_completed_job_is_reopened_by_a_restore_and_completes_again() -> None:
    harness = LedgerHarness(DataSpec(160, 10, 8))
    first = harness.lease("worker-0")
    mark = harness.tell(mark_ledger("m"))
    second = harness.lease("worker-0", first)
    assert harness.next("worker-0", second).answer == "end"
    assert len(harness.said(JobCompleted)) == 1
    harness.tell(pod_exited("worker-0"))
    harness.tell(LedgerRestored(mark.book))
    assert harness.ledger.ticking
    shard = harness.lease("worker-1")
    shard = harness.lease("worker-1", shard)
    assert harness.next("worker-1", shard).answer == "end"
    assert [fact.samples for fact in harness.said(JobCompleted)] == [160, 160]


def test_a_restore_to_the_end_completes_at_once_and_a_cancelled_job_stays_closed() -> None:
    harness = LedgerHarness(DataSpec(80, 10, 8))
    assert harness.next("worker-0", harness.lease("worker-0")).answer == "end"
    mark = harness.tell(mark_ledger("m"))
    harness.tell(LedgerRestored(mark.book))
    assert len(harness.said(JobCompleted)) == 2
    harness.tell(job_cancelled("alice"))
    harness.tell(LedgerRestored(mark.book))
    assert harness.ledger.state.closed == "cancelled by alice"
    assert len(harness.said(JobCompleted)) == 2


def test_a_completed_job_tells_no_more_progress() -> None:
    harness = LedgerHarness(DataSpec(80, 10, 8))
    assert harness.next("worker-0", harness.lease("worker-0")).answer == "end"
    told = len(harness.said(JobProgressed))
    for _ in range(3):  # whoever closed the job with its completion takes progress for a job that was reopened
        harness.now += 10
        assert harness.next("worker-1").answer == "end"
        assert harness.tell(heartbeat("worker-1", 0, 1, 80)).answer == "stale"
    assert len(harness.said(JobProgressed)) == told


@given(
    st.lists(st.sampled_from(["worker-0", "worker-1", "worker-2", "torn"]), max_size=40),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_a_return_says_how_many_samples_it_gains_and_undoes(asked: list[str], marked: int, kept: int) -> None:
    """Goal: the numbers are those of the sets of samples, whether the ledger is ahead of the checkpoint or behind it.

    Method: workers complete shards in any order, and some shards are given up. The checkpoint is of one moment, the
    ledger that returns to it of another one, as after a restoration from a backup.
    """
    harness = LedgerHarness(DataSpec(1600, 10, 4))
    held: dict[str, Shard] = {}
    done: list[dict[int, int]] = [{}]
    states: list[LedgerState] = []
    marks: list[Book] = []
    for step in range(max(len(asked), marked, kept) + 1):
        worker = asked[step] if step < len(asked) else "worker-0"
        states.append(deepcopy(harness.ledger.state))
        marks.append(harness.tell(mark_ledger(f"m{step}")).book)
        done.append(dict(done[-1]))
        if worker != "torn":
            if worker in held:
                done[-1][held[worker].id] = held[worker].length
            reply = harness.next(worker, held.pop(worker, None))
            if reply.shard is not None:
                held[worker] = reply.shard
        elif "worker-1" in held:
            torn = held.pop("worker-1")
            for attempt in (1, 2, 3):
                harness.tell(release("worker-1", torn.id, attempt, 10, failure="torn"))
                if attempt < 3:
                    assert harness.lease("worker-1").id == torn.id
            done[-1][torn.id] = 10
    harness.ledger.state = states[kept]
    ledger, checkpoint = done[kept], done[marked]
    harness.tell(LedgerRestored(marks[marked], "ckpt-1"))
    gained = sum(max(0, samples - ledger.get(shard, 0)) for shard, samples in checkpoint.items())
    undone = sum(max(0, samples - checkpoint.get(shard, 0)) for shard, samples in ledger.items())
    told = [fact.returned for fact in harness.said(JobProgressed) if fact.returned is not None]
    assert told == [
        LedgerReturn(
            checkpoint="ckpt-1", samples_before=sum(ledger.values()), samples_gained=gained, samples_undone=undone
        )
    ]


def test_a_mark_of_very_many_shards_is_compared_at_once() -> None:
    """A mark comes back from where the job's own code can write: all jobs would wait while it is compared."""
    spec = DataSpec(10**9, 10, 8)
    books = [Book(Source.begin(spec, 1), next_id=10**6 + number) for number in range(2)]
    for number, book in enumerate(books):
        book.requeued += [DispatcherShard(2 * index + number, 1, 0, 80 * index, 80) for index in range(50_000)]
    began_s = time.process_time()
    gained, undone = books[0].compared_with(books[1])
    assert (undone, gained) == books[1].compared_with(books[0]) == (4_000_000, 4_000_000)
    assert time.process_time() - began_s < 1.0

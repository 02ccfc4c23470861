"""Marks of checkpoints, and going back to them."""

import pytest
from ledger_builders import heartbeat, job_cancelled, mark_ledger, pod_exited, straggler
from ledger_desk import Desk
from pydantic import TypeAdapter
from stretto_core.dispatcher import DataSpec, LedgerError, LedgerRestored
from stretto_messages.dispatcher import JobCompleted, JobProgressed


def test_restore_takes_books_back_and_never_reuses_an_id_or_attempt() -> None:
    desk = Desk(DataSpec(400, 10, 8))
    first = desk.lease("worker-0")
    second = desk.lease("worker-1")
    desk.tell(heartbeat("worker-1", second.id, 1, 30))
    mark = desk.tell(mark_ledger("m"))
    assert mark.samples_done == 30
    document = TypeAdapter(type(mark.book)).dump_json(mark.book)
    later = desk.lease("worker-0", first)
    told = len(desk.said(JobProgressed))
    desk.tell(LedgerRestored(TypeAdapter(type(mark.book)).validate_json(document)))
    (progress,) = desk.said(JobProgressed)[told:]  # at once, not with the next lease
    assert progress.samples_done == 30
    reply = desk.next("worker-0", later)
    assert reply.stale
    assert reply.shard is not None
    assert (reply.shard.id, reply.shard.attempt) == (first.id, 2)
    again = desk.lease("worker-1", second)
    assert (again.id, again.attempt, again.offset) == (second.id, 2, 30)
    fresh = desk.lease("worker-2")
    assert fresh.id > later.id
    assert (fresh.start, fresh.length) == (later.start, later.length)


def test_images_between_two_marks_get_every_shard_of_the_meantime_under_its_id() -> None:
    desk = Desk(DataSpec(800, 10, 8))
    before, spanning = desk.lease("worker-0"), desk.lease("worker-1")
    during = desk.lease("worker-0", before)
    desk.tell(mark_ledger("c1"))
    after = desk.lease("worker-0", during)
    desk.tell(heartbeat("worker-0", after.id, 1, 70))
    desk.tell(straggler("worker-0", 4.0))
    small = desk.lease("worker-0", after)
    assert small.length == 20
    desk.tell(heartbeat("worker-0", small.id, 1, 10))
    desk.lease("worker-1", spanning)
    mark = desk.tell(mark_ledger("c2", after="c1"))
    assert mark.samples_done == 80
    assert mark.book.shards_done == 1
    listed = {(s.id, s.start, s.length, s.offset) for s in mark.book.requeued}
    assert {(s.id, s.start, s.length, 0) for s in (spanning, during, after, small)} <= listed
    desk.lease("worker-0", small)
    desk.tell(LedgerRestored(mark.book))
    again = [desk.lease(f"worker-{n}") for n in range(10, 15)]
    assert {(s.id, s.start, s.length) for s in again} == {(i, start, length) for i, start, length, _ in listed}
    assert all(shard.attempt == 2 for shard in again)


def test_a_second_mark_of_another_or_too_old_first_one_is_refused() -> None:
    desk = Desk(DataSpec(100_000, 10, 1))
    desk.tell(mark_ledger("c1"))
    desk.tell(mark_ledger("c2"))
    with pytest.raises(LedgerError, match="after is 'c1'; give the id of the last mark"):
        desk.tell(mark_ledger("c3", after="c1"))
    shard = None
    for _ in range(1100):
        shard = desk.lease("worker-0", shard)
    with pytest.raises(LedgerError, match="mark anew"):
        desk.tell(mark_ledger("c3", after="c2"))


def test_records_are_kept_while_a_checkpoint_is_taken() -> None:
    desk = Desk(DataSpec(100_000, 10, 1), forget_after_s=5)
    desk.tell(mark_ledger("c1"))
    shard = None
    for _ in range(30):
        desk.now += 1
        reply = desk.next("worker-0", shard)
        shard = reply.shard
        assert not reply.forget
    desk.tell(mark_ledger("c2", after="c1"))
    assert len(desk.next("worker-0", shard).forget or []) > 20


def test_a_checkpoint_of_other_data_only_keeps_ids_apart() -> None:
    donor = Desk(DataSpec(400, 10, 8))
    for worker in range(3):
        donor.lease(f"worker-{worker}")
    desk = Desk(DataSpec(240, 10, 8))
    desk.tell(LedgerRestored(donor.tell(mark_ledger("m")).book))
    assert desk.lease("worker-0").id == 3
    more_epochs = Desk(DataSpec(400, 10, 8), epochs=5)
    more_epochs.tell(LedgerRestored(donor.tell(mark_ledger("m")).book))
    assert more_epochs.lease("worker-0").id == 0


def test_a_completed_job_is_reopened_by_a_restore_and_completes_again() -> None:
    desk = Desk(DataSpec(160, 10, 8))
    first = desk.lease("worker-0")
    mark = desk.tell(mark_ledger("m"))
    second = desk.lease("worker-0", first)
    assert desk.next("worker-0", second).answer == "end"
    assert len(desk.said(JobCompleted)) == 1
    desk.tell(pod_exited("worker-0"))
    desk.tell(LedgerRestored(mark.book))
    assert desk.ledger.ticking
    shard = desk.lease("worker-1")
    shard = desk.lease("worker-1", shard)
    assert desk.next("worker-1", shard).answer == "end"
    assert [fact.samples for fact in desk.said(JobCompleted)] == [160, 160]


def test_a_restore_to_the_end_completes_at_once_and_a_cancelled_job_stays_closed() -> None:
    desk = Desk(DataSpec(80, 10, 8))
    assert desk.next("worker-0", desk.lease("worker-0")).answer == "end"
    mark = desk.tell(mark_ledger("m"))
    desk.tell(LedgerRestored(mark.book))
    assert len(desk.said(JobCompleted)) == 2
    desk.tell(job_cancelled("alice"))
    desk.tell(LedgerRestored(mark.book))
    assert desk.ledger.state.closed == "cancelled by alice"
    assert len(desk.said(JobCompleted)) == 2


def test_a_completed_job_tells_no_more_progress() -> None:
    desk = Desk(DataSpec(80, 10, 8))
    assert desk.next("worker-0", desk.lease("worker-0")).answer == "end"
    told = len(desk.said(JobProgressed))
    for _ in range(3):  # whoever closed the job with its completion takes progress for a job that was reopened
        desk.now += 10
        assert desk.next("worker-1").answer == "end"
        assert desk.tell(heartbeat("worker-1", 0, 1, 80)).answer == "stale"
    assert len(desk.said(JobProgressed)) == told

"""The ledger of a job that runs a program: samples that reach it twice are counted, and never more than a shard."""

from ledger_builders import heartbeat, pod_exited, release
from ledger_harness import DATA, LedgerHarness
from stretto_messages.dispatcher import JobCompleted


def begun(runs_program: bool = True) -> LedgerHarness:
    return LedgerHarness(DATA, runs_program=runs_program)


def repeated(harness: LedgerHarness) -> int:
    return harness.ledger.state.samples_recomputed


def test_a_lost_worker_may_have_trained_what_lies_behind_its_last_heartbeat() -> None:
    harness = begun()
    shard = harness.lease("worker-0")
    harness.tell(heartbeat("worker-0", shard.id, shard.attempt, 30))
    harness.tell(pod_exited("worker-0", role="worker", reason="killed"))
    assert repeated(harness) == shard.length - 30
    again = harness.lease("worker-1")
    assert (again.id, again.offset) == (shard.id, 30), "what was passed does not come again"


def test_a_program_that_says_how_far_it_was_repeats_a_batch_at_most() -> None:
    harness = begun()
    shard = harness.lease("worker-0")
    harness.tell(release("worker-0", shard.id, shard.attempt, 20))
    assert repeated(harness) == 0
    shard = harness.lease("worker-0")
    harness.tell(release("worker-0", shard.id, shard.attempt, 50, "the program ended with status 1"))
    assert repeated(harness) == DATA.batch_size


def test_the_books_of_the_end_have_the_sum_and_models_have_none() -> None:
    for runs_program in (True, False):
        harness = begun(runs_program)
        lost = harness.lease("worker-0")
        harness.tell(pod_exited("worker-0", role="worker", reason="killed"))
        shard = None
        while (reply := harness.next("worker-1", shard)).answer == "shard":
            shard = reply.shard
        (completed,) = harness.said(JobCompleted)
        assert completed.samples == DATA.samples
        assert completed.books is not None
        assert completed.books.samples_recomputed == (lost.length if runs_program else 0)

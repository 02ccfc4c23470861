"""A worker holds the shard after its lease: when it gets one, what becomes of it, and what its attempt means."""

import json
from dataclasses import replace

import pytest
from ledger_builders import (
    AUDIT,
    columns_restored,
    evaluation,
    mark_ledger,
    next_shard,
    parameters_lost,
    pod_exited,
    release,
    straggler,
)
from ledger_harness import LedgerHarness
from pydantic import TypeAdapter
from stretto_core.dispatcher.evaluating import HeldOut
from stretto_core.dispatcher.events import LedgerRestored
from stretto_core.dispatcher.machine import ShardLedger
from stretto_core.dispatcher.source import DataSpec
from stretto_core.dispatcher.state import LedgerState
from stretto_messages.dispatcher import ShardLeased, ShardRequeued
from stretto_messages.values import Shard

STATE = TypeAdapter(LedgerState)


def ahead_of(harness: LedgerHarness, worker: str = "worker-0") -> int | None:
    held = harness.ledger.state.workers[worker].ahead
    return held.id if held is not None else None


def test_a_completion_leases_the_shard_ahead_as_it_was_promised() -> None:
    harness = LedgerHarness()
    first, second = harness.two("worker-0")
    again, third = harness.two("worker-0", first)
    assert again == second
    assert [fact.shard.id for fact in harness.said(ShardLeased)] == [first.id, second.id], "only what is trained"
    assert harness.two("worker-0") == (second, third), "asked again without completing"
    assert harness.next("worker-0").ahead is None, "not to a worker that does not ask"
    assert harness.next("worker-0", second).shard == third, "which still gets what it holds"


def test_a_shard_ahead_is_given_while_more_than_two_wait_for_each_worker() -> None:
    harness = LedgerHarness(DataSpec(560, 10, 8))  # seven shards
    harness.lease("worker-1")
    first = harness.next("worker-0", ahead=True)
    assert first.ahead is not None, "five are left for two workers"
    second = harness.next("worker-0", first.shard, ahead=True)
    assert second.shard == first.ahead
    assert second.ahead is None, "four are left"


@pytest.mark.parametrize("why", ["pod-exited", "lease-expired", "released", "failed"])
def test_whoever_loses_its_lease_loses_the_shard_ahead_and_nobody_spent_an_attempt_on_it(why: str) -> None:
    harness = LedgerHarness(lease_timeout_s=10)
    lease, ahead = harness.two("worker-0")
    match why:
        case "pod-exited":
            harness.tell(pod_exited("worker-0"))
        case "lease-expired":
            harness.pass_time(12)
        case _:
            failure = "bad row" if why == "failed" else None
            harness.tell(release("worker-0", lease.id, lease.attempt, 0, failure))
    (requeued,) = harness.said(ShardRequeued)
    assert (requeued.shard.id, requeued.reason) == (lease.id, why)
    assert harness.ledger.state.requeued_total == 1, "nobody began the other one"
    waiting = [each.shard for each in harness.tell(AUDIT).ledger.open if not each.pod]
    assert sorted(waiting, key=lambda each: each.id) == [replace(lease, offset=0), ahead]
    again = harness.lease("worker-1")
    assert (again.id, again.attempt) == (lease.id, 2)
    assert harness.lease("worker-2") == ahead, "its holder asks for no record: a first attempt"


def test_records_of_a_shard_that_was_only_held_ahead_are_forgotten_like_any_other() -> None:
    harness = LedgerHarness(DataSpec(100_000, 10, 1), forget_after_s=5)
    _, ahead = harness.two("worker-0")
    harness.tell(pod_exited("worker-0"))
    lost = harness.lease("worker-1")
    held = harness.lease("worker-1", lost)
    assert held == ahead
    shard = harness.lease("worker-1", held)
    harness.now += 6
    assert harness.next("worker-1", shard).forget == (ahead.id,)


def test_a_straggler_holds_nothing_ahead() -> None:
    harness = LedgerHarness(DataSpec(10_000, 10, 8))
    lease, ahead = harness.two("worker-0")
    harness.tell(straggler("worker-0", 1.1))
    assert harness.lease("worker-0") == lease, "alone, it keeps its lease"
    assert harness.lease("worker-1") == ahead
    reply = harness.next("worker-0", lease, ahead=True)
    assert reply.ahead is None
    harness.tell(straggler("worker-0", 1.0))
    assert harness.next("worker-0", reply.shard, ahead=True).ahead is not None


def test_the_books_and_marks_list_it() -> None:
    harness = LedgerHarness()
    lease, ahead = harness.two("worker-0")
    books = harness.tell(AUDIT).ledger
    assert [(each.pod, each.shard.id) for each in books.open] == [("worker-0", lease.id), ("worker-0", ahead.id)]
    assert (books.epochs[0].in_flight, books.samples_waiting) == (160, 840)
    mark = harness.tell(mark_ledger("m")).book
    assert [shard.id for shard in mark.requeued] == [lease.id, ahead.id]


def test_a_return_to_a_checkpoint_never_leases_under_an_attempt_that_was_promised() -> None:
    """The trainer takes a lease for the promised one by id and attempt; its parameters are others by then."""
    harness = LedgerHarness()
    lease, ahead = harness.two("worker-0")
    harness.tell(LedgerRestored(harness.tell(mark_ledger("m")).book, "c1", 1))
    reply = harness.next("worker-0", lease, ahead=True)
    assert reply.stale
    assert (reply.shard.id, reply.shard.attempt) == (lease.id, 2)
    assert (reply.ahead.id, reply.ahead.attempt) == (ahead.id, 2)


def test_a_loss_of_columns_leaves_the_promise_and_trusts_no_offset() -> None:
    harness = LedgerHarness()
    first, second = harness.lease("worker-1"), harness.lease("worker-2")
    harness.tell(release("worker-1", first.id, 1, 50))
    harness.tell(release("worker-2", second.id, 1, 30))
    lease, ahead = harness.two("worker-0")
    assert [(each.id, each.attempt, each.offset) for each in (lease, ahead)] == [(0, 2, 50), (1, 2, 30)]
    harness.tell(parameters_lost(2))
    again, promised = harness.two("worker-0")
    assert (again.id, again.attempt, again.offset) == (0, 3, 0)
    assert (promised.id, promised.attempt, promised.offset) == (ahead.id, ahead.attempt, 0)
    harness.tell(columns_restored(2, "", columns=0))
    assert harness.next("worker-0", again).shard == promised


def test_held_out_shards_come_between_and_are_never_held_ahead() -> None:
    harness = LedgerHarness(DataSpec(8000, 10, 8), held_out=HeldOut(samples=160, every=80, start=8000))
    first, ahead = harness.two("worker-0")
    reply = harness.next("worker-0", first, ahead=True)
    assert (reply.shard.kind, reply.ahead) == ("evaluate", ahead)
    part: Shard = reply.shard
    harness.requests += 1
    found = evaluation(part.length, 1.0, (0,), (part.length,))
    reply = harness.tell(next_shard("worker-0", f"r{harness.requests}", part.id, part.attempt, found, ahead=True))
    assert reply.shard.kind == "evaluate"
    assert reply.ahead == ahead
    harness.tell(release("worker-0", reply.shard.id, reply.shard.attempt, 0))
    assert ahead_of(harness) is None
    assert harness.lease("worker-1").kind == "evaluate"
    assert harness.lease("worker-2") == ahead


def test_a_snapshot_of_before_holds_nothing_ahead() -> None:
    harness = LedgerHarness()
    lease = harness.lease("worker-0")
    document = STATE.dump_python(harness.ledger.state, mode="json")
    del document["workers"]["worker-0"]["ahead"], document["workers"]["worker-0"]["reply"]["ahead"]
    harness.ledger = ShardLedger(STATE.validate_json(json.dumps(document)))
    assert harness.two("worker-0")[0] == lease

"""Answers of one ledger, case by case. For the books under random schedules see test_books.py."""

import json

import pytest
from ledger_builders import JOB, heartbeat, job_cancelled, mark_ledger, next_shard, pod_exited, release, straggler
from ledger_desk import Desk
from pydantic import TypeAdapter
from stretto_core.dispatcher import DataSpec, LedgerError, LedgerState, Shard, ShardLedger, fingerprint_of
from stretto_core.machine import Reply, Tick
from stretto_messages.books import CompletedBooks, GivenUp
from stretto_messages.dispatcher import (
    JobCompleted,
    JobProgressed,
    NextShardReply,
    ShardAbandoned,
    ShardCompleted,
    ShardLeased,
    ShardRequeued,
)


def test_unknown_waiting_and_ended_are_told_apart() -> None:
    assert ShardLedger().handle(next_shard("worker-0", "a"), 1.0) == [Reply(NextShardReply(job=JOB, answer="unknown"))]
    desk = Desk(DataSpec(80, 10, 8))
    shard = desk.lease("worker-0")
    reply = desk.next("worker-1")
    assert (reply.answer, reply.wait_s) == ("wait", 0.5)
    assert desk.next("worker-0", shard).answer == "end"
    assert desk.next("worker-1").answer == "end"
    (completed,) = desk.said(JobCompleted)
    assert (completed.samples, completed.samples_abandoned, completed.epochs) == (80, 0, 1)
    assert (completed.shards, completed.requeued, completed.started_at_s) == (1, 0, 1000.0)
    assert completed.books == CompletedBooks(fingerprint=f"{fingerprint_of(0, 80):016x}")


def test_every_sample_of_every_epoch_once() -> None:
    desk = Desk(DataSpec(995, 10, 8, seed=1), epochs=3)
    seen: list[tuple[int, int]] = []
    shard = None
    while (reply := desk.next("worker-0", shard)).shard:
        shard = reply.shard
        assert shard.start % 10 == 0
        seen += [(shard.epoch, sample) for sample in range(shard.start, shard.start + shard.length)]
    assert sorted(seen) == [(epoch, sample) for epoch in range(3) for sample in range(995)]
    assert seen != sorted(seen)
    assert desk.said(JobProgressed)[-1].samples_done == 2985


def test_a_repeated_request_gets_the_same_reply() -> None:
    desk = Desk()
    request = next_shard("worker-0", "a")
    first = desk.tell(request)
    assert desk.tell(request) == first
    assert len(desk.said(ShardLeased)) == 1


def test_a_request_without_completion_gets_the_open_lease_again() -> None:
    desk = Desk()
    assert desk.lease("worker-0") == desk.lease("worker-0")


def test_exit_requeues_the_rest_at_once_and_the_name_is_refused() -> None:
    desk = Desk()
    shard = desk.lease("worker-0")
    desk.tell(heartbeat("worker-0", shard.id, 1, 30))
    desk.tell(pod_exited("worker-0"))
    again = desk.lease("worker-1")
    assert (again.id, again.start, again.length) == (shard.id, shard.start, shard.length)
    assert (again.attempt, again.offset) == (2, 30)
    assert desk.said(ShardRequeued)[0].reason == "pod-exited"
    assert desk.next("worker-0", shard).answer == "unknown"
    assert desk.tell(heartbeat("worker-0", shard.id, 1, 40)).answer == "unknown"


def test_a_zombie_cannot_complete_somebody_elses_lease() -> None:
    desk = Desk(lease_timeout_s=10)
    shard = desk.lease("worker-0")
    desk.pass_time(12)
    assert desk.said(ShardRequeued)[0].reason == "lease-expired"
    again = desk.lease("worker-1")
    assert again.id == shard.id
    assert desk.tell(heartbeat("worker-0", shard.id, 1, 80)).answer == "stale"
    reply = desk.next("worker-0", shard)
    assert reply.stale
    assert reply.shard is not None
    assert reply.shard.id != shard.id
    assert desk.said(ShardCompleted) == []
    assert not desk.next("worker-1", again).stale


def test_heartbeats_keep_a_lease() -> None:
    desk = Desk(lease_timeout_s=10)
    shard = desk.lease("worker-0")
    for _ in range(10):
        desk.pass_time(5)
        assert desk.tell(heartbeat("worker-0", shard.id, 1, 10)).answer == "ok"
    assert desk.said(ShardRequeued) == []


def test_an_outage_of_the_ledger_expires_nobody() -> None:
    desk = Desk(lease_timeout_s=10)
    shard = desk.lease("worker-0")
    desk.pass_time(3)
    desk.now += 300
    desk.tell(Tick())
    desk.pass_time(6)
    assert desk.said(ShardRequeued) == []
    assert not desk.next("worker-0", shard).stale
    desk.pass_time(12)
    assert len(desk.said(ShardRequeued)) == 1


def test_a_leaving_worker_gives_its_shard_back() -> None:
    desk = Desk()
    shard = desk.lease("worker-0")
    assert desk.tell(release("worker-0", shard.id, 1, 50)).answer == "ok"
    assert desk.tell(release("worker-0", shard.id, 1, 50)).answer == "stale"
    again = desk.lease("worker-1")
    assert (again.id, again.attempt, again.offset) == (shard.id, 2, 50)


def test_data_that_always_fail_are_abandoned_by_name_and_the_job_goes_on() -> None:
    desk = Desk(DataSpec(160, 10, 8))
    shard = desk.lease("worker-0")
    for attempt in (1, 2, 3):
        desk.tell(release("worker-0", shard.id, attempt, 20, failure="row 24: not a number"))
        shard = desk.lease("worker-0")
    abandoned = desk.said(ShardAbandoned)
    assert len(abandoned) == 1
    assert abandoned[0].shard.id != shard.id
    assert "row 24" in abandoned[0].reason
    assert desk.next("worker-0", shard).answer == "end"
    told = desk.said(JobCompleted)[0]
    assert (told.samples, told.samples_abandoned, told.shards, told.requeued) == (100, 60, 1, 2)
    start = abandoned[0].shard.start + 20
    reason = "failed 3 times, last in worker-0: row 24: not a number"
    given_up = GivenUp(shard=0, offset=20, epoch=0, start=start, length=60, reason=reason)
    assert told.books.given_up == (given_up,)
    assert int(told.books.fingerprint, 16) == (fingerprint_of(0, 20) + fingerprint_of(1, 80)) % 2**64


def test_losing_pods_never_abandons_data() -> None:
    desk = Desk(DataSpec(80, 10, 8))
    for pod in range(50):
        shard = desk.lease(f"worker-{pod}")
        desk.tell(pod_exited(f"worker-{pod}"))
    assert desk.said(ShardAbandoned) == []
    assert desk.lease("worker-99").attempt == shard.attempt + 1 == 51


def test_a_worker_that_hangs_while_its_heart_beats_loses_its_shard_to_who_would_wait() -> None:
    desk = Desk(DataSpec(160, 10, 8), stuck_after_s=60.0)
    hangs, works = desk.lease("worker-0"), desk.lease("worker-1")

    def beat(seconds: int, offset: int, *done: int) -> None:
        for _ in range(seconds):
            desk.pass_time(1)
            desk.tell(heartbeat("worker-0", hangs.id, 1, offset))
            for part in done:
                desk.tell(heartbeat("worker-1", works.id, 1, part))

    beat(50, 10, 40)
    beat(100, 10, 40)
    assert not desk.said(ShardRequeued), "nobody trains: the parameters are away, not the worker"
    beat(2, 10, 50)
    taken = desk.said(ShardRequeued)[-1]
    assert (taken.shard.id, taken.shard.offset, taken.reason) == (hangs.id, 10, "lease-expired")
    assert desk.tell(heartbeat("worker-0", hangs.id, 1, 20)).answer == "stale"
    # at the end of the data the others wait, and that is enough
    desk = Desk(DataSpec(80, 10, 8), stuck_after_s=60.0)
    hangs = desk.lease("worker-0")
    while not desk.said(ShardRequeued):
        assert desk.next("worker-1").answer == "wait"
        beat(1, 10)
    assert desk.lease("worker-1").id == hangs.id


def test_of_a_snapshot_that_did_not_say_when_a_worker_got_on_an_outage_makes_nobody_hang() -> None:
    desk = Desk()
    shard = desk.lease("worker-0")
    desk.next("worker-1")
    desk.ledger.state.workers["worker-0"].moved_at_s = 0.0  # as migrated
    desk.now += 60
    desk.next("worker-1")  # the first word after an outage
    desk.pass_time(1)
    lease = desk.ledger.state.workers["worker-0"].lease
    assert lease is not None
    assert lease.id == shard.id


def test_a_straggler_gets_shards_that_take_it_as_long_as_its_peers() -> None:
    desk = Desk(DataSpec(10_000, 10, 8))
    shard = desk.lease("worker-0")
    desk.tell(straggler("worker-0", 3.9))
    shard = desk.lease("worker-0", shard)
    assert shard.length == 20
    rest = desk.lease("worker-1")
    assert (rest.start, rest.length) == (shard.start + 20, 60)
    desk.tell(heartbeat("worker-0", shard.id, 1, 10))
    desk.tell(straggler("worker-0", 1000.0))
    shard = desk.lease("worker-0", shard)
    assert shard.length == 10
    desk.tell(straggler("worker-0", 1.0))
    desk.lease("worker-1", rest)
    assert desk.lease("worker-0", shard).length == 80


def test_a_straggler_gives_back_what_its_peers_would_wait_for() -> None:
    desk = Desk(DataSpec(160, 10, 8))
    slow, fast = desk.lease("worker-0"), desk.lease("worker-1")
    desk.tell(heartbeat("worker-0", slow.id, 1, 20))
    desk.tell(straggler("worker-0", 8.0))
    taken = desk.said(ShardRequeued)[-1]
    assert (taken.shard.id, taken.shard.offset, taken.reason) == (slow.id, 20, "straggler")
    assert desk.tell(heartbeat("worker-0", slow.id, 1, 30)).answer == "stale"
    # it waits rather than get it back: a peer comes for it
    assert desk.next("worker-0").answer == "wait"
    again = desk.lease("worker-1", fast)
    assert (again.id, again.attempt, again.offset) == (slow.id, 2, 20)
    # a peer that falls silent is not waited for
    desk.tell(release("worker-1", again.id, 2, 30))
    assert desk.next("worker-0").answer == "wait"
    desk.pass_time(6)
    assert desk.lease("worker-0").id == slow.id


def test_a_straggler_keeps_what_is_a_shard_of_its_own_pace_or_nobody_elses_to_do() -> None:
    desk = Desk(DataSpec(160, 10, 8))
    slow = desk.lease("worker-0")
    desk.tell(straggler("worker-0", 8.0))  # alone
    assert desk.tell(heartbeat("worker-0", slow.id, 1, 70)).answer == "ok"
    desk.lease("worker-1")
    desk.tell(straggler("worker-0", 8.0))  # one batch is left
    assert desk.tell(heartbeat("worker-0", slow.id, 1, 70)).answer == "ok"
    assert not desk.said(ShardRequeued)


def test_a_straggler_is_spared_a_large_returned_shard_while_there_is_fresh_data() -> None:
    desk = Desk(DataSpec(160, 10, 8))
    slow = desk.lease("worker-0")
    large = desk.lease("worker-1")
    desk.tell(heartbeat("worker-0", slow.id, 1, 70))
    desk.tell(straggler("worker-0", 8.0))
    desk.tell(pod_exited("worker-1"))
    # nothing fresh is left: the straggler takes the returned shard after all
    assert desk.lease("worker-0", slow).id == large.id
    desk = Desk(DataSpec(240, 10, 8))
    slow, large = desk.lease("worker-0"), desk.lease("worker-1")
    desk.tell(heartbeat("worker-0", slow.id, 1, 70))
    desk.tell(straggler("worker-0", 8.0))
    desk.tell(pod_exited("worker-1"))
    assert desk.lease("worker-0", slow).length == 10
    assert desk.lease("worker-2").id == large.id


def test_an_offset_that_cannot_be_is_refused_and_changes_nothing() -> None:
    desk = Desk()
    shard = desk.lease("worker-0")
    with pytest.raises(LedgerError, match="offset is 81; give 0 to 80, the samples of shard 0"):
        desk.tell(heartbeat("worker-0", shard.id, 1, 81))
    with pytest.raises(LedgerError, match="offset is -1"):
        desk.tell(release("worker-0", shard.id, 1, -1))
    assert desk.lease("worker-0").offset == 0


@pytest.mark.parametrize(("away_s", "unchanged"), [(1.0, True), (300.0, False)])
def test_a_refused_report_is_not_heard(away_s: float, unchanged: bool) -> None:
    """It left a trace that no snapshot's cursor knows of: the owner and its heir then expired leases at other ticks."""
    desk = Desk()
    shard = desk.lease("worker-0")
    heard_at_s = desk.ledger.state.heard_at_s
    desk.now += away_s
    with pytest.raises(LedgerError) as refused:
        desk.tell(heartbeat("worker-0", shard.id, 1, 10**6))
    assert refused.value.unchanged == unchanged, "whoever excuses an absence is to be built again"
    assert desk.ledger.state.heard_at_s == heard_at_s


def test_a_closed_job_leases_nothing() -> None:
    desk = Desk()
    shard = desk.lease("worker-0")
    desk.tell(job_cancelled("alice"))
    assert desk.tell(heartbeat("worker-0", shard.id, 1, 10)).answer == "stale"
    assert desk.next("worker-0", shard).answer == "end"


def test_progress_at_most_every_two_seconds_with_its_rate() -> None:
    desk = Desk(DataSpec(100_000, 10, 1), epochs=2)
    shard = None
    for _ in range(400):  # 10 samples each 0.1 s
        shard = desk.lease("worker-0", shard)
        desk.now += 0.1
    told = desk.said(JobProgressed)
    assert 17 <= len(told) <= 20
    assert told[-1].samples_per_s == pytest.approx(100, rel=0.06)
    assert (told[-1].samples_total, told[-1].epoch, told[-1].shards_leased) == (200_000, 0, 1)


def test_records_are_forgotten_late_and_only_of_first_attempts() -> None:
    desk = Desk(DataSpec(100_000, 10, 1), forget_after_s=15)
    first = desk.lease("worker-0")
    lost = desk.lease("worker-1")
    desk.tell(pod_exited("worker-1"))
    shard = desk.lease("worker-0", first)
    assert shard.id == lost.id
    forgotten: list[int] = []
    for _ in range(40):
        desk.now += 1
        reply = desk.next("worker-0", shard)
        assert reply.shard is not None
        shard = reply.shard
        forgotten += reply.forget or []
    assert first.id in forgotten
    assert lost.id not in forgotten
    assert len(forgotten) == len(set(forgotten))
    assert max(forgotten) < shard.id - 13


def test_a_flood_of_tiny_shards_is_told_by_its_progress() -> None:
    desk = Desk(DataSpec(100_000, 10, 1), shard_facts_per_s=50)
    shard = None
    for _ in range(4000):  # a thousand a second
        shard = desk.lease("worker-0", shard)
        desk.now += 0.001
    assert 250 <= len(desk.said(ShardLeased)) + len(desk.said(ShardCompleted)) <= 320
    desk.tell(pod_exited("worker-0"))
    assert len(desk.said(ShardRequeued)) == 1
    assert desk.said(JobProgressed)[-1].samples_done > 15_000


def test_the_state_stays_small_whatever_the_dataset() -> None:
    desk = Desk(DataSpec(10**13, 512, 1), epochs=10_000)
    shards: dict[int, Shard] = {}
    for step in range(20_000):
        worker = step % 200
        shards[worker] = desk.lease(f"worker-{worker}", shards.get(worker))
        desk.facts.clear()
    document = TypeAdapter(LedgerState).dump_json(desk.ledger.state)
    assert len(document) < 200_000
    mark = desk.tell(mark_ledger("m")).book
    assert len(json.dumps(TypeAdapter(type(mark)).dump_python(mark))) < 40_000


def test_only_workers_lease_shards() -> None:
    desk = Desk()
    for request in (next_shard("ps-0", "r"), heartbeat("data-1", 0, 1, 0), release("ps-0", 0, 1, 0)):
        with pytest.raises(LedgerError, match=r"pod is '.*'; give the name of a worker; no other pod leases shards"):
            desk.tell(request)
    assert not desk.ledger.state.workers


def test_an_abandoned_shard_s_reason_fits_into_its_message() -> None:
    desk = Desk(DataSpec(160, 10, 8))
    shard = desk.lease("worker-0")
    for attempt in (1, 2, 3):
        desk.tell(release("worker-0", shard.id, attempt, 20, "x" * 2000))
        desk.lease("worker-0")
    (abandoned,) = desk.said(ShardAbandoned)
    assert len(abandoned.reason) == 2000

"""Answers of one ledger, case by case. For the books under random schedules see test_recomputing.py."""

import json

import pytest
from ledger_builders import AUDIT, JOB, heartbeat, mark_ledger, next_shard, pod_exited, release, straggler
from ledger_harness import LedgerHarness
from pydantic import TypeAdapter
from stretto_core.dispatcher.book import Shard, fingerprint_of
from stretto_core.dispatcher.machine import ShardLedger
from stretto_core.dispatcher.source import DataSpec, LedgerError
from stretto_core.dispatcher.state import RELEASES_FREE, RETURNS_RESERVE_S, WORKER_KEPT_S, LedgerState
from stretto_core.machine import Reply, Tick
from stretto_messages.actuator import JobFailed
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
from stretto_messages.profiler import StragglerCleared
from stretto_messages.values import WORKERS_MAX

STATE = TypeAdapter(LedgerState)


def test_unknown_waiting_and_ended_are_told_apart() -> None:
    assert ShardLedger().handle(next_shard("worker-0", "a"), 1.0) == [Reply(NextShardReply(job=JOB, answer="unknown"))]
    harness = LedgerHarness(DataSpec(80, 10, 8))
    shard = harness.lease("worker-0")
    reply = harness.next("worker-1")
    assert (reply.answer, reply.wait_s) == ("wait", 0.5)
    assert harness.next("worker-0", shard).answer == "end"
    assert harness.next("worker-1").answer == "end"
    (completed,) = harness.said(JobCompleted)
    assert (completed.samples, completed.samples_abandoned, completed.epochs) == (80, 0, 1)
    assert (completed.shards, completed.requeued, completed.started_at_s) == (1, 0, 1000.0)
    assert completed.books == CompletedBooks(fingerprint=f"{fingerprint_of(0, 80):016x}")


def test_a_job_that_failed_gives_nobody_a_shard_any_more() -> None:
    harness = LedgerHarness()
    shard = harness.lease("worker-0")
    harness.tell(JobFailed(job=JOB, reason="no room"))
    assert (harness.next("worker-0", shard).answer, harness.ledger.state.closed) == ("end", "failed: no room")
    for question in (mark_ledger("m"), AUDIT):
        (reply,) = ShardLedger().handle(question, 1.0)
        assert isinstance(reply, Reply)
        assert reply.body.answer == "unknown"


def test_a_repeated_request_gets_the_same_reply() -> None:
    harness = LedgerHarness()
    request = next_shard("worker-0", "a")
    first = harness.tell(request)
    assert harness.tell(request) == first
    assert len(harness.said(ShardLeased)) == 1


def test_exit_requeues_the_rest_at_once_and_the_name_is_refused() -> None:
    harness = LedgerHarness()
    shard = harness.lease("worker-0")
    harness.tell(heartbeat("worker-0", shard.id, 1, 30))
    harness.tell(pod_exited("worker-0"))
    again = harness.lease("worker-1")
    assert (again.id, again.start, again.length) == (shard.id, shard.start, shard.length)
    assert (again.attempt, again.offset) == (2, 30)
    assert harness.said(ShardRequeued)[0].reason == "pod-exited"
    assert harness.next("worker-0", shard).answer == "unknown"
    assert harness.tell(heartbeat("worker-0", shard.id, 1, 40)).answer == "unknown"


LARGE = DataSpec(10**12, 512, 16, True, 1)


def test_a_job_has_no_more_names_of_workers_than_a_plan_may_have_workers() -> None:
    """The name is a field of the request: one pod invents names, then its job's honest worker is served as before."""
    harness = LedgerHarness(LARGE)
    mine = harness.lease("worker-0")
    for number in range(1, WORKERS_MAX):
        harness.lease(f"worker-{number}")
    before = STATE.dump_json(harness.ledger.state)
    with pytest.raises(LedgerError, match="worker-99999999") as refused:
        harness.next("worker-99999999")
    assert (refused.value.field, refused.value.unchanged) == ("pod", True)
    assert STATE.dump_json(harness.ledger.state) == before
    assert harness.lease("worker-0", mine).id == WORKERS_MAX


@pytest.mark.proof
def test_names_that_are_long_gone_make_room_and_the_books_stay_exact() -> None:
    """Workers that are replaced for the whole life of a job never use the names up."""
    harness = LedgerHarness(LARGE)
    for number in range(WORKERS_MAX):
        harness.lease(f"worker-{number}")
    waited_s = 0
    while len(harness.ledger.state.workers) > 1:
        harness.now += 2.0  # the ledger hears of one worker only, so its own absence excuses nobody
        harness.lease("worker-1")
        harness.tell(Tick())
        waited_s += 2
        assert waited_s <= WORKER_KEPT_S + 60
    first = harness.lease("worker-99999999")
    assert first.attempt == 2, "what the invented names held is trained first"
    book = harness.audit().book
    assert len({shard.id for shard in book.requeued}) == len(book.requeued) == WORKERS_MAX - 2
    assert book.samples_waiting + 2 * first.length == book.samples_total


def test_leasing_and_releasing_without_end_publishes_a_bounded_number_of_facts() -> None:
    """A shard is trained once it may not be released at once; every return is counted all the same."""
    harness = LedgerHarness(LARGE, shard_facts_per_s=5.0)
    begun_s, released = harness.now, 0
    for _ in range(1000):
        harness.now += 0.01
        shard = harness.lease("worker-0")
        if shard.attempt > RELEASES_FREE:
            harness.next("worker-0", shard)
            continue
        harness.tell(release("worker-0", shard.id, shard.attempt, 0))
        released += 1
    told = [fact for kind in (ShardLeased, ShardCompleted, ShardRequeued) for fact in harness.said(kind)]
    assert released > 700
    assert harness.ledger.state.requeued_total == released
    assert 10 <= len(told) <= 5.0 * (2 + RETURNS_RESERVE_S + harness.now - begun_s)


def is_released(harness: LedgerHarness, shard: Shard) -> bool:
    try:
        return harness.tell(release("worker-0", shard.id, shard.attempt, 0)).answer == "ok"
    except LedgerError as refused:
        return not refused.unchanged


def test_a_shard_that_went_from_hand_to_hand_is_kept_for_a_while() -> None:
    harness = LedgerHarness()
    for _ in range(RELEASES_FREE):
        shard = harness.lease("worker-0")
        harness.tell(release("worker-0", shard.id, shard.attempt, 0))
    waits_s: list[int] = []
    while len(waits_s) < 8:
        shard, waited_s = harness.lease("worker-0"), 0
        while not is_released(harness, shard):
            assert harness.lease("worker-0") == shard, "it stays with its holder"
            harness.now += 1.0
            waited_s += 1
        waits_s.append(waited_s)
    assert waits_s == [1, 2, 4, 8, 16, 32, 60, 60]
    harness.tell(pod_exited("worker-0"))
    assert harness.next("worker-1").answer == "shard", "the end of its holder frees it at once"


def test_a_zombie_cannot_complete_somebody_elses_lease() -> None:
    harness = LedgerHarness(lease_timeout_s=10)
    shard = harness.lease("worker-0")
    harness.pass_time(12)
    assert harness.said(ShardRequeued)[0].reason == "lease-expired"
    again = harness.lease("worker-1")
    assert again.id == shard.id
    assert harness.tell(heartbeat("worker-0", shard.id, 1, 80)).answer == "stale"
    reply = harness.next("worker-0", shard)
    assert reply.stale
    assert reply.shard.id != shard.id
    assert harness.said(ShardCompleted) == []
    assert not harness.next("worker-1", again).stale


def test_an_outage_of_the_ledger_expires_nobody() -> None:
    harness = LedgerHarness(lease_timeout_s=10)
    shard = harness.lease("worker-0")
    harness.pass_time(3)
    harness.now += 300
    harness.tell(Tick())
    harness.pass_time(6)
    assert harness.said(ShardRequeued) == []
    assert not harness.next("worker-0", shard).stale
    harness.pass_time(12)
    assert len(harness.said(ShardRequeued)) == 1


def test_a_leaving_worker_gives_its_shard_back() -> None:
    harness = LedgerHarness()
    shard = harness.lease("worker-0")
    assert harness.tell(release("worker-0", shard.id, 1, 50)).answer == "ok"
    assert harness.tell(release("worker-0", shard.id, 1, 50)).answer == "stale"
    again = harness.lease("worker-1")
    assert (again.id, again.attempt, again.offset) == (shard.id, 2, 50)


def test_data_that_always_fail_are_abandoned_by_name_and_the_job_goes_on() -> None:
    harness = LedgerHarness(DataSpec(160, 10, 8))
    shard = harness.lease("worker-0")
    for attempt in (1, 2, 3):
        harness.tell(release("worker-0", shard.id, attempt, 20, failure="row 24: not a number"))
        shard = harness.lease("worker-0")
    abandoned = harness.said(ShardAbandoned)
    assert len(abandoned) == 1
    assert abandoned[0].shard.id != shard.id
    assert "row 24" in abandoned[0].reason
    assert harness.next("worker-0", shard).answer == "end"
    told = harness.said(JobCompleted)[0]
    assert (told.samples, told.samples_abandoned, told.shards, told.requeued) == (100, 60, 1, 2)
    start = abandoned[0].shard.start + 20
    reason = "failed 3 times, last in worker-0: row 24: not a number"
    given_up = GivenUp(shard=0, offset=20, epoch=0, start=start, length=60, reason=reason)
    assert told.books.given_up == (given_up,)
    assert int(told.books.fingerprint, 16) == (fingerprint_of(0, 20) + fingerprint_of(1, 80)) % 2**64


def test_losing_pods_never_abandons_data() -> None:
    harness = LedgerHarness(DataSpec(80, 10, 8))
    for pod in range(50):
        shard = harness.lease(f"worker-{pod}")
        harness.tell(pod_exited(f"worker-{pod}"))
    assert harness.said(ShardAbandoned) == []
    assert harness.lease("worker-99").attempt == shard.attempt + 1 == 51


def test_a_worker_that_hangs_while_its_heart_beats_loses_its_shard_to_who_would_wait() -> None:
    harness = LedgerHarness(DataSpec(160, 10, 8), stuck_after_s=60.0)
    hangs, works = harness.lease("worker-0"), harness.lease("worker-1")

    def beat(seconds: int, offset: int, *done: int) -> None:
        for _ in range(seconds):
            harness.pass_time(1)
            harness.tell(heartbeat("worker-0", hangs.id, 1, offset))
            for part in done:
                harness.tell(heartbeat("worker-1", works.id, 1, part))

    beat(50, 10, 40)
    beat(100, 10, 40)
    assert not harness.said(ShardRequeued), "nobody trains: the parameters are away, not the worker"
    beat(2, 10, 50)
    taken = harness.said(ShardRequeued)[-1]
    assert (taken.shard.id, taken.shard.offset, taken.reason) == (hangs.id, 10, "lease-expired")
    assert harness.tell(heartbeat("worker-0", hangs.id, 1, 20)).answer == "stale"
    # at the end of the data the others wait, and that is enough
    harness = LedgerHarness(DataSpec(80, 10, 8), stuck_after_s=60.0)
    hangs = harness.lease("worker-0")
    while not harness.said(ShardRequeued):
        assert harness.next("worker-1").answer == "wait"
        beat(1, 10)
    assert harness.lease("worker-1").id == hangs.id


def test_of_a_snapshot_that_did_not_say_when_a_worker_got_on_an_outage_makes_nobody_hang() -> None:
    harness = LedgerHarness()
    shard = harness.lease("worker-0")
    harness.next("worker-1")
    harness.ledger.state.workers["worker-0"].moved_at_s = 0.0  # as migrated
    harness.now += 60
    harness.next("worker-1")  # the first word after an outage
    harness.pass_time(1)
    lease = harness.ledger.state.workers["worker-0"].lease
    assert lease.id == shard.id


def test_a_straggler_gets_shards_that_take_it_as_long_as_its_peers() -> None:
    harness = LedgerHarness(DataSpec(10_000, 10, 8))
    shard = harness.lease("worker-0")
    harness.tell(straggler("worker-0", 3.9))
    shard = harness.lease("worker-0", shard)
    assert shard.length == 20
    rest = harness.lease("worker-1")
    assert (rest.start, rest.length) == (shard.start + 20, 60)
    harness.tell(heartbeat("worker-0", shard.id, 1, 10))
    harness.tell(straggler("worker-0", 1000.0))
    shard = harness.lease("worker-0", shard)
    assert shard.length == 10
    harness.tell(StragglerCleared(job=JOB, pod="worker-0"))
    harness.lease("worker-1", rest)
    assert harness.lease("worker-0", shard).length == 80


def test_a_straggler_gives_back_what_its_peers_would_wait_for() -> None:
    harness = LedgerHarness(DataSpec(160, 10, 8))
    slow, fast = harness.lease("worker-0"), harness.lease("worker-1")
    harness.tell(heartbeat("worker-0", slow.id, 1, 20))
    harness.tell(straggler("worker-0", 8.0))
    taken = harness.said(ShardRequeued)[-1]
    assert (taken.shard.id, taken.shard.offset, taken.reason) == (slow.id, 20, "straggler")
    assert harness.tell(heartbeat("worker-0", slow.id, 1, 30)).answer == "stale"
    # it waits rather than get it back: a peer comes for it
    assert harness.next("worker-0").answer == "wait"
    again = harness.lease("worker-1", fast)
    assert (again.id, again.attempt, again.offset) == (slow.id, 2, 20)
    # a peer that falls silent is not waited for
    harness.tell(release("worker-1", again.id, 2, 30))
    assert harness.next("worker-0").answer == "wait"
    harness.pass_time(6)
    assert harness.lease("worker-0").id == slow.id


def test_a_straggler_keeps_what_is_a_shard_of_its_own_pace_or_nobody_elses_to_do() -> None:
    harness = LedgerHarness(DataSpec(160, 10, 8))
    slow = harness.lease("worker-0")
    harness.tell(straggler("worker-0", 8.0))  # alone
    assert harness.tell(heartbeat("worker-0", slow.id, 1, 70)).answer == "ok"
    harness.lease("worker-1")
    harness.tell(straggler("worker-0", 8.0))  # one batch is left
    assert harness.tell(heartbeat("worker-0", slow.id, 1, 70)).answer == "ok"
    assert not harness.said(ShardRequeued)


def test_a_straggler_is_spared_a_large_returned_shard_while_there_is_fresh_data() -> None:
    harness = LedgerHarness(DataSpec(160, 10, 8))
    slow = harness.lease("worker-0")
    large = harness.lease("worker-1")
    harness.tell(heartbeat("worker-0", slow.id, 1, 70))
    harness.tell(straggler("worker-0", 8.0))
    harness.tell(pod_exited("worker-1"))
    # nothing fresh is left: the straggler takes the returned shard after all
    assert harness.lease("worker-0", slow).id == large.id
    harness = LedgerHarness(DataSpec(240, 10, 8))
    slow, large = harness.lease("worker-0"), harness.lease("worker-1")
    harness.tell(heartbeat("worker-0", slow.id, 1, 70))
    harness.tell(straggler("worker-0", 8.0))
    harness.tell(pod_exited("worker-1"))
    assert harness.lease("worker-0", slow).length == 10
    assert harness.lease("worker-2").id == large.id


def test_an_offset_that_cannot_be_is_refused_and_changes_nothing() -> None:
    harness = LedgerHarness()
    shard = harness.lease("worker-0")
    with pytest.raises(LedgerError, match="offset is 81; give 0 to 80, the samples of shard 0"):
        harness.tell(heartbeat("worker-0", shard.id, 1, 81))
    with pytest.raises(LedgerError, match="offset is -1"):
        harness.tell(release("worker-0", shard.id, 1, -1))
    assert harness.lease("worker-0").offset == 0


@pytest.mark.parametrize(("away_s", "unchanged"), [(1.0, True), (300.0, False)])
def test_a_refused_report_is_not_heard(away_s: float, unchanged: bool) -> None:
    """It left a trace that no snapshot's cursor knows of: the owner and its heir then expired leases at other ticks."""
    harness = LedgerHarness()
    shard = harness.lease("worker-0")
    heard_at_s = harness.ledger.state.heard_at_s
    harness.now += away_s
    with pytest.raises(LedgerError) as refused:
        harness.tell(heartbeat("worker-0", shard.id, 1, 10**6))
    assert refused.value.unchanged == unchanged, "whoever excuses an absence is to be built again"
    assert harness.ledger.state.heard_at_s == heard_at_s


def test_progress_at_most_every_two_seconds_with_its_rate() -> None:
    harness = LedgerHarness(DataSpec(100_000, 10, 1), epochs=2)
    shard = None
    for _ in range(400):  # 10 samples each 0.1 s
        shard = harness.lease("worker-0", shard)
        harness.now += 0.1
    told = harness.said(JobProgressed)
    assert 17 <= len(told) <= 20
    assert told[-1].samples_per_s == pytest.approx(100, rel=0.06)
    assert (told[-1].samples_total, told[-1].epoch, told[-1].shards_leased) == (200_000, 0, 1)


def test_of_many_ledgers_each_tells_less_often() -> None:
    """All 200 of a partition tell 10 times a second: each tells every 20 s."""
    harness, shard = LedgerHarness(DataSpec(100_000, 10, 1)), None
    for _ in range(101):
        shard = harness.lease("worker-0", shard)
        harness.tell(Tick(machines=200))
        harness.now += 1.0
    assert len(harness.said(JobProgressed)) == 5
    harness.tell(Tick(machines=1))
    harness.now += 2.0
    harness.lease("worker-0", shard)
    assert len(harness.said(JobProgressed)) == 6


def test_records_are_forgotten_late_and_only_of_first_attempts() -> None:
    harness = LedgerHarness(DataSpec(100_000, 10, 1), forget_after_s=15)
    first = harness.lease("worker-0")
    lost = harness.lease("worker-1")
    harness.tell(pod_exited("worker-1"))
    shard = harness.lease("worker-0", first)
    assert shard.id == lost.id
    forgotten: list[int] = []
    for _ in range(40):
        harness.now += 1
        reply = harness.next("worker-0", shard)
        assert reply.shard is not None
        shard = reply.shard
        forgotten += reply.forget or []
    assert first.id in forgotten
    assert lost.id not in forgotten
    assert len(forgotten) == len(set(forgotten))
    assert max(forgotten) < shard.id - 13


def test_a_flood_of_tiny_shards_is_told_by_its_progress() -> None:
    harness = LedgerHarness(DataSpec(100_000, 10, 1), shard_facts_per_s=50)
    shard = None
    for _ in range(4000):  # a thousand a second
        shard = harness.lease("worker-0", shard)
        harness.now += 0.001
    assert 250 <= len(harness.said(ShardLeased)) + len(harness.said(ShardCompleted)) <= 320
    harness.tell(pod_exited("worker-0"))
    assert len(harness.said(ShardRequeued)) == 1
    assert harness.said(JobProgressed)[-1].samples_done > 15_000


@pytest.mark.proof
def test_the_state_stays_small_whatever_the_dataset() -> None:
    harness = LedgerHarness(DataSpec(10**13, 512, 1), epochs=10_000)
    shards: dict[int, Shard] = {}
    for step in range(20_000):
        worker = step % 200
        shards[worker] = harness.lease(f"worker-{worker}", shards.get(worker))
        harness.facts.clear()
    document = TypeAdapter(LedgerState).dump_json(harness.ledger.state)
    assert len(document) < 200_000
    mark = harness.tell(mark_ledger("m")).book
    assert len(json.dumps(TypeAdapter(type(mark)).dump_python(mark))) < 40_000


def test_only_workers_lease_shards() -> None:
    harness = LedgerHarness()
    for request in (next_shard("ps-0", "r"), heartbeat("data-1", 0, 1, 0), release("ps-0", 0, 1, 0)):
        with pytest.raises(LedgerError, match=r"pod is '.*'; give the name of a worker; no other pod leases shards"):
            harness.tell(request)
    assert not harness.ledger.state.workers


def test_an_abandoned_shard_s_reason_fits_into_its_message() -> None:
    harness = LedgerHarness(DataSpec(160, 10, 8))
    shard = harness.lease("worker-0")
    for attempt in (1, 2, 3):
        harness.tell(release("worker-0", shard.id, attempt, 20, "x" * 2000))
        harness.lease("worker-0")
    (abandoned,) = harness.said(ShardAbandoned)
    assert len(abandoned.reason) == 2000

"""Data in named partitions that arrive while a job trains, go by priority, and end when they are closed."""

from collections import Counter

import pytest
from ledger_builders import arrival, data_arrived, mark_ledger
from ledger_harness import LedgerHarness
from pydantic import TypeAdapter
from stretto_core.dispatcher.audit import epochs_of
from stretto_core.dispatcher.book import Book, Shard
from stretto_core.dispatcher.events import LedgerRestored
from stretto_core.dispatcher.source import DataSpec, LedgerError
from stretto_core.dispatcher.state import LedgerState
from stretto_messages.dispatcher import JobCompleted
from stretto_messages.values import PARTITIONS_MAX

GROWING = DataSpec(0, 10, 8, shuffle=True, seed=3, growing=True)
STATE = TypeAdapter(LedgerState)


def drain(harness: LedgerHarness, worker: str = "worker-0", done: Shard | None = None) -> list[Shard]:
    """Train until there is nothing: the last one is reported as well."""
    shards: list[Shard] = []
    while (reply := harness.next(worker, done)).shard is not None:
        done = reply.shard
        shards.append(done)
    return shards


def covered(shards: list[Shard]) -> Counter[tuple[str, int]]:
    return Counter((s.partition, i) for s in shards for i in range(s.start, s.start + s.length))


def every(**partitions: int) -> Counter[tuple[str, int]]:
    return Counter({(name, i): 1 for name, samples in partitions.items() for i in range(samples)})


def test_a_growing_job_waits_until_it_is_closed_and_trains_every_sample_once() -> None:
    harness = LedgerHarness(GROWING)
    first = harness.next("worker-0")
    assert (first.answer, first.wait_s) == ("wait", 2.0)
    harness.tell(data_arrived((arrival("a", 805),)))
    shards = drain(harness)
    assert covered(shards) == every(a=805)
    assert shards[-1].length == 5  # whole blocks in a seeded order, then what is left over
    assert [s.start for s in shards[:-1]] != sorted(s.start for s in shards[:-1])
    assert harness.next("worker-0").answer == "wait"
    harness.tell(data_arrived((arrival("a", 1000), arrival("b", 100))))
    harness.tell(data_arrived((arrival("a", 900),)))  # an older word comes again
    harness.tell(data_arrived((), closed=True))
    harness.tell(data_arrived((arrival("a", 2000),)))  # too late
    assert not harness.said(JobCompleted)
    shards += drain(harness)
    assert covered(shards) == every(a=1000, b=100)
    assert harness.next("worker-0").answer == "end"
    (completed,) = harness.said(JobCompleted)
    assert (completed.samples, completed.samples_abandoned) == (1100, 0)


def test_a_job_that_is_closed_when_all_is_trained_completes_when_a_worker_asks() -> None:
    harness = LedgerHarness(GROWING, partitions=(arrival("a", 80),))
    drain(harness)
    harness.tell(data_arrived((), closed=True))
    assert not harness.said(JobCompleted)
    assert harness.next("worker-0").answer == "end"
    assert len(harness.said(JobCompleted)) == 1
    empty = LedgerHarness(GROWING)
    empty.tell(data_arrived((), closed=True))
    assert empty.next("worker-0").answer == "end"


def test_higher_priorities_come_first_and_equal_ones_are_mixed() -> None:
    harness = LedgerHarness(GROWING, partitions=(arrival("low", 800, -1), arrival("one", 8000), arrival("two", 2000)))
    begun = [harness.lease("worker-0").partition]
    shard = harness.lease("worker-0")
    for _ in range(49):
        shard = harness.lease("worker-0", shard)
        begun.append(shard.partition)
    assert Counter(begun)["two"] == pytest.approx(10, abs=6)  # in proportion to what is left
    harness.tell(data_arrived((arrival("urgent", 160, 5),)))
    nexts = [shard := harness.lease("worker-0", shard) for _ in range(2)]
    assert [s.partition for s in nexts] == ["urgent", "urgent"]
    harness.tell(data_arrived((arrival("low", 800, 9),)))  # its priority is changed
    rest = drain(harness, done=shard)
    assert {s.partition for s in rest[:10]} == {"low"}
    assert {s.partition for s in rest[10:]} == {"one", "two"}


def test_without_shuffle_partitions_follow_one_another_in_order() -> None:
    harness = LedgerHarness(
        DataSpec(0, 10, 8, shuffle=False, growing=True), partitions=(arrival("a", 200), arrival("b", 100))
    )
    assert [(s.partition, s.start) for s in drain(harness)] == [("a", 0), ("a", 80), ("a", 160), ("b", 0), ("b", 80)]


def test_what_has_arrived_since_a_checkpoint_stays_and_what_was_trained_since_comes_again() -> None:
    harness = LedgerHarness(GROWING, partitions=(arrival("a", 400), arrival("gone", 80, 1)))
    gone = harness.lease("worker-0")
    first = harness.lease("worker-0", gone)
    before = harness.lease("worker-0", first)
    document = TypeAdapter(Book).dump_json(harness.tell(mark_ledger("m")).book)
    later = drain(harness, done=before)
    harness.tell(data_arrived((arrival("a", 500), arrival("new", 30, 2)), closed=True))
    harness.tell(LedgerRestored(TypeAdapter(Book).validate_json(document)))
    again = drain(harness)
    assert len(later) == 3
    assert covered([gone, first, *again]) == every(a=500, gone=80, new=30)
    assert again[0].id == before.id
    assert again[1].partition == "new"
    (completed,) = harness.said(JobCompleted)
    assert completed.samples == 610


def test_a_job_that_goes_on_from_another_ones_checkpoint_of_the_same_partitions_trains_what_is_new() -> None:
    donor = LedgerHarness(GROWING, partitions=(arrival("monday", 160),))
    drain(donor)
    mark = donor.tell(mark_ledger("m")).book
    heir = LedgerHarness(GROWING, partitions=(arrival("monday", 160), arrival("tuesday", 80)))
    heir.tell(LedgerRestored(mark))
    assert covered(drain(heir)) == every(tuesday=80)
    # another seed says that the data are others
    other = LedgerHarness(DataSpec(0, 10, 8, seed=4, growing=True), partitions=(arrival("monday", 160),))
    other.tell(LedgerRestored(mark))
    assert covered(drain(other)) == every(monday=160)


def test_memory_grows_with_partitions_and_not_with_samples() -> None:
    harness = LedgerHarness(DataSpec(0, 1000, 100, growing=True))
    shard = None
    for day in range(300):
        harness.tell(data_arrived((arrival(f"day={day}", 10**5, 1) if day else arrival("day=0", 10**9),)))
        shard = harness.lease("worker-0", shard)
    size = len(STATE.dump_json(harness.ledger.state))
    harness.tell(data_arrived((arrival("day=0", 10**13),)))
    assert len(STATE.dump_json(harness.ledger.state)) - size < 20
    assert len(harness.ledger.state.book.source.spent) > 200
    # one that is spent is its name and its total, and grows again from there
    part = next(name for name in harness.ledger.state.book.source.spent)
    harness.tell(data_arrived((arrival(part, 10**5 + 10, 9),)))
    shard = harness.lease("worker-0", shard)
    assert (shard.partition, shard.start, shard.length) == (part, 10**5, 10)


def test_more_partitions_than_there_may_be_are_refused_and_change_nothing() -> None:
    harness = LedgerHarness(GROWING)
    harness.tell(data_arrived(tuple(arrival(f"p{n}", 10) for n in range(PARTITIONS_MAX))))
    state = STATE.dump_json(harness.ledger.state)
    with pytest.raises(LedgerError, match="partitions is 1001; give at most 1000 in all; add to one that there is"):
        harness.tell(data_arrived((arrival("p0", 90), arrival("more", 10))))
    assert STATE.dump_json(harness.ledger.state) == state


def test_the_books_of_growing_data_add_up_at_any_time() -> None:
    harness = LedgerHarness(GROWING, partitions=(arrival("a", 400), arrival("b", 100, 1)))
    assert epochs_of(harness.ledger.state.book, []) == []
    shard = harness.lease("worker-0")
    harness.tell(data_arrived((arrival("a", 1000),)))
    harness.lease("worker-0", shard)
    told = harness.audit()
    (epoch,) = epochs_of(told.book, told.shards)
    assert (epoch.done, epoch.in_flight, epoch.waiting) == (80, 20, 1000)
    assert told.book.samples_waiting == 1000

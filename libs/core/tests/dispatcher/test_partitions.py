"""Data in named partitions that arrive while a job trains, go by priority, and end when they are closed."""

from collections import Counter

import pytest
from ledger_builders import arrival, data_arrived, mark_ledger, straggler
from ledger_desk import Desk
from pydantic import TypeAdapter
from stretto_core.dispatcher import (
    Book,
    DataSpec,
    LedgerError,
    LedgerRestored,
    LedgerState,
    Shard,
    epochs_of,
)
from stretto_messages.dispatcher import JobCompleted
from stretto_messages.values import PARTITIONS_MAX

GROWING = DataSpec(0, 10, 8, shuffle=True, seed=3, growing=True)
STATE = TypeAdapter(LedgerState)


def drain(desk: Desk, worker: str = "worker-0", done: Shard | None = None) -> list[Shard]:
    """Train until there is nothing: the last one is reported as well."""
    shards: list[Shard] = []
    while (reply := desk.next(worker, done)).shard is not None:
        done = reply.shard
        shards.append(done)
    return shards


def covered(shards: list[Shard]) -> Counter[tuple[str, int]]:
    return Counter((s.partition, i) for s in shards for i in range(s.start, s.start + s.length))


def every(**partitions: int) -> Counter[tuple[str, int]]:
    return Counter({(name, i): 1 for name, samples in partitions.items() for i in range(samples)})


def test_a_growing_job_waits_until_it_is_closed_and_trains_every_sample_once() -> None:
    desk = Desk(GROWING)
    first = desk.next("worker-0")
    assert (first.answer, first.wait_s) == ("wait", 2.0)
    desk.tell(data_arrived((arrival("a", 805),)))
    shards = drain(desk)
    assert covered(shards) == every(a=805)
    assert shards[-1].length == 5  # whole blocks in a seeded order, then what is left over
    assert [s.start for s in shards[:-1]] != sorted(s.start for s in shards[:-1])
    assert desk.next("worker-0").answer == "wait"
    desk.tell(data_arrived((arrival("a", 1000), arrival("b", 100))))
    desk.tell(data_arrived((arrival("a", 900),)))  # an older word comes again
    desk.tell(data_arrived((), closed=True))
    desk.tell(data_arrived((arrival("a", 2000),)))  # too late
    assert not desk.said(JobCompleted)
    shards += drain(desk)
    assert covered(shards) == every(a=1000, b=100)
    assert desk.next("worker-0").answer == "end"
    (completed,) = desk.said(JobCompleted)
    assert (completed.samples, completed.samples_abandoned) == (1100, 0)


def test_a_job_that_is_closed_when_all_is_trained_completes_when_a_worker_asks() -> None:
    desk = Desk(GROWING, partitions=(arrival("a", 80),))
    drain(desk)
    desk.tell(data_arrived((), closed=True))
    assert not desk.said(JobCompleted)
    assert desk.next("worker-0").answer == "end"
    assert len(desk.said(JobCompleted)) == 1
    empty = Desk(GROWING)
    empty.tell(data_arrived((), closed=True))
    assert empty.next("worker-0").answer == "end"


def test_higher_priorities_come_first_and_equal_ones_are_mixed() -> None:
    desk = Desk(GROWING, partitions=(arrival("low", 800, -1), arrival("one", 8000), arrival("two", 2000)))
    begun = [desk.lease("worker-0").partition]
    shard = desk.lease("worker-0")
    for _ in range(49):
        shard = desk.lease("worker-0", shard)
        begun.append(shard.partition)
    assert Counter(begun)["two"] == pytest.approx(10, abs=6)  # in proportion to what is left
    desk.tell(data_arrived((arrival("urgent", 160, 5),)))
    nexts = [shard := desk.lease("worker-0", shard) for _ in range(2)]
    assert [s.partition for s in nexts] == ["urgent", "urgent"]
    desk.tell(data_arrived((arrival("low", 800, 9),)))  # its priority is changed
    rest = drain(desk, done=shard)
    assert {s.partition for s in rest[:10]} == {"low"}
    assert {s.partition for s in rest[10:]} == {"one", "two"}


def test_without_shuffle_partitions_follow_one_another_in_order() -> None:
    desk = Desk(DataSpec(0, 10, 8, shuffle=False, growing=True), partitions=(arrival("a", 200), arrival("b", 100)))
    assert [(s.partition, s.start) for s in drain(desk)] == [("a", 0), ("a", 80), ("a", 160), ("b", 0), ("b", 80)]


def test_partitions_that_do_not_grow_are_trained_in_every_epoch() -> None:
    desk = Desk(DataSpec(300, 10, 8), epochs=3, partitions=(arrival("a", 200), arrival("b", 100, 1)))
    shards = drain(desk)
    for epoch in range(3):
        of_epoch = [s for s in shards if s.epoch == epoch]
        assert covered(of_epoch) == every(a=200, b=100)
        assert [s.partition for s in of_epoch] == ["b"] * 2 + ["a"] * 3
    assert len(desk.said(JobCompleted)) == 1


def test_the_rest_of_a_block_that_a_straggler_took_a_part_of_is_of_the_same_partition() -> None:
    desk = Desk(GROWING, partitions=(arrival("a", 80), arrival("b", 80)))
    desk.tell(straggler("worker-9", 4.0))
    desk.next("worker-9")
    desk.tell(straggler("worker-9", 4.0))
    shards = drain(desk, "worker-9") + drain(desk)
    assert len(shards) > 2
    assert all(s.start + s.length <= 80 for s in shards)


def test_what_has_arrived_since_a_checkpoint_stays_and_what_was_trained_since_comes_again() -> None:
    desk = Desk(GROWING, partitions=(arrival("a", 400), arrival("gone", 80, 1)))
    gone = desk.lease("worker-0")
    first = desk.lease("worker-0", gone)
    before = desk.lease("worker-0", first)
    document = TypeAdapter(Book).dump_json(desk.tell(mark_ledger("m")).book)
    later = drain(desk, done=before)
    desk.tell(data_arrived((arrival("a", 500), arrival("new", 30, 2)), closed=True))
    desk.tell(LedgerRestored(TypeAdapter(Book).validate_json(document)))
    again = drain(desk)
    assert len(later) == 3
    assert covered([gone, first, *again]) == every(a=500, gone=80, new=30)
    assert again[0].id == before.id
    assert again[1].partition == "new"
    (completed,) = desk.said(JobCompleted)
    assert completed.samples == 610


def test_a_job_that_goes_on_from_another_ones_checkpoint_of_the_same_partitions_trains_what_is_new() -> None:
    donor = Desk(GROWING, partitions=(arrival("monday", 160),))
    drain(donor)
    mark = donor.tell(mark_ledger("m")).book
    heir = Desk(GROWING, partitions=(arrival("monday", 160), arrival("tuesday", 80)))
    heir.tell(LedgerRestored(mark))
    assert covered(drain(heir)) == every(tuesday=80)
    # another seed says that the data are others
    other = Desk(DataSpec(0, 10, 8, seed=4, growing=True), partitions=(arrival("monday", 160),))
    other.tell(LedgerRestored(mark))
    assert covered(drain(other)) == every(monday=160)


def test_memory_grows_with_partitions_and_not_with_samples() -> None:
    desk = Desk(DataSpec(0, 1000, 100, growing=True))
    shard = None
    for day in range(300):
        desk.tell(data_arrived((arrival(f"day={day}", 10**5, 1) if day else arrival("day=0", 10**9),)))
        shard = desk.lease("worker-0", shard)
    size = len(STATE.dump_json(desk.ledger.state))
    desk.tell(data_arrived((arrival("day=0", 10**13),)))
    assert len(STATE.dump_json(desk.ledger.state)) - size < 20
    assert len(desk.ledger.state.book.source.spent) > 200
    # one that is spent is its name and its total, and grows again from there
    part = next(name for name in desk.ledger.state.book.source.spent)
    desk.tell(data_arrived((arrival(part, 10**5 + 10, 9),)))
    shard = desk.lease("worker-0", shard)
    assert (shard.partition, shard.start, shard.length) == (part, 10**5, 10)


def test_more_partitions_than_there_may_be_are_refused_and_change_nothing() -> None:
    desk = Desk(GROWING)
    desk.tell(data_arrived(tuple(arrival(f"p{n}", 10) for n in range(PARTITIONS_MAX))))
    state = STATE.dump_json(desk.ledger.state)
    with pytest.raises(LedgerError, match="partitions is 1001; give at most 1000 in all; add to one that there is"):
        desk.tell(data_arrived((arrival("p0", 90), arrival("more", 10))))
    assert STATE.dump_json(desk.ledger.state) == state


def test_the_books_of_growing_data_add_up_at_any_time() -> None:
    desk = Desk(GROWING, partitions=(arrival("a", 400), arrival("b", 100, 1)))
    assert epochs_of(desk.ledger.state.book, {}) == []
    shard = desk.lease("worker-0")
    desk.tell(data_arrived((arrival("a", 1000),)))
    desk.lease("worker-0", shard)
    told = desk.audit()
    (epoch,) = epochs_of(told.book, told.leased)
    assert (epoch.done, epoch.in_flight, epoch.waiting) == (80, 20, 1000)
    assert told.book.samples_waiting == 1000

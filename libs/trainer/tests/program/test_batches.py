"""The batches of a program, cut from the shards of a real ledger."""

import threading
from typing import Any

import pytest
import stretto.agent
from ledger_bus import LedgerBus
from stretto.errors import StrettoError
from stretto.program import batches
from stretto.program.batches import Batches
from stretto.worker.leases import Leases
from stretto.worker.step_timer import StepTimer


class Asked:
    """A program that asks; ``leaving`` and the ledger's state are the test's."""

    def __init__(self, batch_size: int = 8, least: int = 0, *, runs_program: bool = False, **more: bool) -> None:
        self.bus, self.leaving, self.meter = LedgerBus(), threading.Event(), StepTimer()
        self.bus.ledger.state.runs_program = runs_program
        self.leases = Leases(self.bus, self.leaving)  # type: ignore[arg-type]
        self.batches = Batches(self.leases, self.meter, batch_size, self.leaving, least=least, **more)

    def next(self) -> list[int]:
        word, *numbers = self.batches.next().split()
        return [*range(*map(int, numbers))] if word == stretto.agent.BATCH else []

    @property
    def book(self) -> Any:
        return self.bus.ledger.state.book


def test_every_sample_comes_once_in_batches_that_end_with_their_shard() -> None:
    asked, samples = Asked(), list[int]()
    while batch := asked.next():
        assert len(batch) <= 8
        samples += batch
    assert sorted(samples) == list(range(10_000))
    assert asked.batches.ended
    window = asked.meter.window()
    assert (window.samples_total, window.steps_total) == (10_000, 1_500), "shards of 20 have batches of 8, 8 and 4"


def test_a_batch_counts_once_the_next_one_is_asked_for() -> None:
    asked = Asked()
    asked.next()
    assert asked.leases.offset == 0
    asked.next()
    assert asked.leases.offset == 8


@pytest.mark.parametrize(
    ("took", "offset", "repeated"),
    [((8, 16), 8, 8), ((16, 20), 16, 4), ((20, 20), 20, 0), ((0, 999), 8, 12), ((999, 0), 20, 0)],
)
def test_of_several_batches_those_count_that_were_taken_and_passed(
    took: tuple[int, int], offset: int, repeated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "AHEAD_S", 1e9)
    asked = Asked(runs_program=True)
    first = asked.next()[0]
    assert asked.batches.next(several=True) == f"{stretto.agent.BATCHES} {first + 8} {first + 20} 8"
    asked.batches.took(*(first + number for number in took))
    assert asked.leases.offset == offset
    asked.batches.forget()
    asked.batches.took(first, first + 20)
    assert asked.leases.offset == offset, "whoever was given nothing has taken nothing"
    asked.batches.give_back()
    assert asked.bus.ledger.state.samples_recomputed == repeated


def test_where_data_workers_could_use_it_a_batch_names_the_next_one() -> None:
    batches = Asked(tells_likely=True).batches
    first = int(batches.next().split()[1])
    assert batches.next() == f"{stretto.agent.BATCH} {first + 8} {first + 16} {first + 16} {first + 20}"
    *_, likely, stop = batches.next().split()
    assert batches.next().split()[1:3] == [likely, stop], "the first batch of the shard that is reserved"


def test_a_worker_that_leaves_gives_the_rest_back_and_repeats_nothing() -> None:
    asked = Asked()
    first = asked.next()
    asked.leaving.set()
    assert asked.batches.next() == stretto.agent.LEAVE
    assert asked.leases.shard is None
    (shard, *_) = asked.book.requeued
    assert (shard.start, shard.offset) == (first[0], 8)


def test_a_shard_that_is_over_is_reported_before_the_worker_leaves() -> None:
    asked = Asked(batch_size=20)
    asked.next()
    asked.leaving.set()
    assert asked.batches.next() == stretto.agent.LEAVE
    assert asked.book.samples_done == 20
    assert asked.leases.shard is None, "the shard that the report's answer leased went back"


def test_a_loop_that_is_left_early_gets_its_batch_again() -> None:
    asked = Asked()
    first = asked.next()
    asked.batches.forget()
    assert asked.next() == first


def test_of_a_shard_that_is_left_in_the_middle_of_a_batch_that_batch_counts_as_repeated() -> None:
    asked = Asked(runs_program=True)
    asked.next()
    asked.next()
    asked.batches.forget()
    asked.batches.give_back()
    (shard, *_) = asked.book.requeued
    assert shard.offset == 8
    assert asked.bus.ledger.state.samples_recomputed == 8


@pytest.mark.parametrize("left", range(1, 40))
def test_a_step_leaves_no_rest_of_a_shard_or_one_that_is_enough_for_all_ranks(left: int) -> None:
    batches = Asked(batch_size=16, least=8).batches
    steps = list[int]()
    rest = left
    while rest:
        steps.append(batches._size(rest))
        rest -= steps[-1]
        assert not 0 < rest < 8
    assert max(steps) <= 16
    assert len(steps) <= -(-left // 16) + 1
    assert left < 8 or min(steps) >= 8


def test_a_shard_that_another_worker_has_is_dropped() -> None:
    asked = Asked()
    first = asked.next()
    lease = asked.bus.ledger.state.workers["worker-0"].lease
    lease.attempt += 1
    asked.leases.beat()
    assert asked.next() == first, "the ledger leases it again, from its own count"


def test_a_program_that_is_gone_gets_nothing_more() -> None:
    asked = Asked()
    asked.next()
    asked.batches.over = True
    assert asked.batches.next() == stretto.agent.LEAVE
    assert asked.leases.shard is not None, "whether it goes back, and with which words, is decided by how it ended"


def test_a_program_outside_stretto_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(stretto.agent.ADDRESS_VARIABLE, raising=False)
    with pytest.raises(StrettoError, match=r"STRETTO_AGENT is not set: submit a job file with program\.command"):
        next(stretto.agent.samples())

"""Windows: what comes next is evaluated by the model that all data before it made, and trained after."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from ledger_builders import (
    JOB,
    arrival,
    columns_restored,
    data_arrived,
    evaluation,
    mark_ledger,
    next_shard,
    parameters_lost,
    pod_exited,
)
from ledger_harness import LedgerHarness
from stretto_core.dispatcher.events import JobOpened, LedgerRestored
from stretto_core.dispatcher.source import DataSpec
from stretto_messages.dispatcher import EvaluationMeasured, JobCompleted
from stretto_messages.values import Shard

GROWING = DataSpec(0, 10, 2, shuffle=True, seed=3, growing=True)


class Windows(LedgerHarness):
    """A ledger of growing data whose windows are evaluated, by their first 30 samples."""

    def __init__(self, *days: int, evaluated: int = 30) -> None:
        super().__init__()
        self.ledger.state = type(self.ledger.state)()
        parts = tuple(arrival(f"day={n}", samples) for n, samples in enumerate(days))
        self.tell(JobOpened(JOB, GROWING, 1, 3, parts, None, evaluated))

    def after(self, worker: str, shard: Shard) -> Shard | None:
        """Report a shard as trained, or evaluated, and return the next one of this worker."""
        self.requests += 1
        found = evaluation(shard.length, 0.5, (0,), (shard.length,)) if shard.kind == "evaluate" else None
        return self.tell(next_shard(worker, f"r{self.requests}", shard.id, shard.attempt, found, ahead=True)).shard

    def until(self, kind: str, worker: str = "worker-0", shard: Shard | None = None) -> Shard:
        """Go on with one worker until it is given a shard of this kind."""
        shard = shard or self.lease(worker)
        while shard.kind != kind:
            shard = self.after(worker, shard)
            assert shard is not None
        return shard

    def finish(self, worker: str, shard: Shard | None) -> None:
        while shard is not None:
            shard = self.after(worker, shard)

    @property
    def measured(self) -> list[tuple[str, int, int, int]]:
        told = self.said(EvaluationMeasured)
        assert all(one.trained_next for one in told)
        return [(one.partition, one.samples_done, one.samples_done_after, one.evaluation.samples) for one in told]


def test_each_day_is_evaluated_by_the_model_of_all_days_before_it_and_trained_after() -> None:
    harness = Windows(100, 60, 20)
    harness.finish("worker-0", harness.lease("worker-0"))
    assert harness.measured == [("day=1", 100, 100, 30), ("day=2", 160, 160, 20)]
    harness.tell(data_arrived((arrival("day=2", 45),), closed=True))  # what comes later is a window of its own
    harness.finish("worker-0", harness.lease("worker-0"))
    assert harness.measured[2:] == [("day=2", 180, 180, 25)]
    (completed,) = harness.said(JobCompleted)
    assert (completed.samples, completed.samples_abandoned) == (205, 0)


def test_nobody_trains_while_a_window_is_evaluated_and_a_lost_part_of_it_is_evaluated_again() -> None:
    harness = Windows(20, 60, evaluated=60)
    first = harness.lease("worker-0")
    assert harness.next("worker-1").answer == "wait"  # the first day is not done
    evaluated = harness.after("worker-0", first)
    assert evaluated is not None
    other = harness.lease("worker-1")
    assert (evaluated.kind, other.kind) == ("evaluate", "evaluate")
    third = harness.lease("worker-2")
    assert third.kind == "evaluate"
    assert harness.next("worker-3").answer == "wait"
    harness.tell(pod_exited("worker-1"))
    assert harness.lease("worker-3").start == other.start
    assert harness.audit().book.samples_done == 20


def test_a_return_to_a_checkpoint_evaluates_the_window_again_and_one_that_is_lost_starts_anew() -> None:
    harness = Windows(20, 40)
    evaluated = harness.until("evaluate")
    harness.tell(LedgerRestored(harness.tell(mark_ledger("m")).book))
    evaluated = harness.until("evaluate")
    harness.tell(parameters_lost(1))
    assert not any(worker.lease for worker in harness.ledger.state.workers.values())
    assert harness.after("worker-0", evaluated) is None  # it came too late: some columns were those of a checkpoint
    assert not harness.measured
    harness.tell(columns_restored(1, "none", columns=0))
    harness.finish("worker-0", harness.lease("worker-0"))
    assert harness.measured == [("day=1", 20, 20, 30)]


def test_a_job_that_starts_from_trained_parameters_evaluates_its_first_day_too() -> None:
    harness = Windows(40)
    yesterday = LedgerHarness(DataSpec(20, 10, 2, name="yesterday"))
    yesterday.next("worker-0", yesterday.lease("worker-0"))
    harness.tell(LedgerRestored(yesterday.tell(mark_ledger("m")).book))
    assert harness.lease("worker-0").kind == "evaluate"


@given(
    days=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    later=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 120)), max_size=3),
    evaluated=st.integers(1, 50),
    seed=st.integers(0, 999),
)
def test_whatever_comes_and_whoever_is_lost_a_window_is_evaluated_whole_between_two_trainings(
    days: list[int], later: list[tuple[int, int]], evaluated: int, seed: int
) -> None:
    draw, harness = random.Random(seed), Windows(*days, evaluated=evaluated)
    held: dict[str, Shard | None] = {f"worker-{n}": None for n in range(3)}
    events = [data_arrived((arrival(f"day={day}", total),)) for day, total in later] + [data_arrived((), closed=True)]
    for step in range(5000):
        if events and step % 7 == 6:
            harness.tell(events.pop(0))
        worker = draw.choice(list(held))
        if draw.random() < 0.05:
            del held[worker]
            harness.tell(pod_exited(worker))
            held[f"worker-{step + 3}"] = None
        else:
            shard = held[worker]
            held[worker] = harness.after(worker, shard) if shard else harness.next(worker).shard
        leases = [one.lease for one in harness.ledger.state.workers.values() if one.lease]
        assert len({lease.held_out for lease in leases}) <= 1, "a window is evaluated while nothing trains"
        if harness.ledger.ended:
            break
    (completed,) = harness.said(JobCompleted)
    assert completed.samples == sum(harness.ledger.state.book.source.totals().values())
    assert all(done == after for _, done, after, _ in harness.measured)
    assert all(one[1] < other[1] for one, other in pairwise(harness.measured)), "between two there is training"

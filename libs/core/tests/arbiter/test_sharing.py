"""Data workers get what plans leave, and no plan notices them."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest
from arbiter_builders import busy_cluster, event_of, started
from closed_loop import plan, profile
from hypothesis import given
from hypothesis import strategies as st
from job_builders import job_ended, job_progressed, plan_applied, plan_proposed, pod_unplaced
from stretto_core.algorithms import SHARE
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Action, Tick
from stretto_core.model.sharing import Sharer
from stretto_core.model.types import DataWorkerLimits, JobOpened
from stretto_messages.arbiter import DataWorkersDecided
from stretto_messages.base import GIB
from stretto_messages.gateway import DataWorkersRequested
from stretto_messages.planner import DataWorkersProposed
from stretto_messages.values import NOTHING, Resources, larger, total

EACH = Resources(1.0, GIB)
LIMITS = DataWorkerLimits(EACH, most=16)


def proposed(
    job: str, count: int, worker_per_s: float = 10.0, dequeued_per_s: float | None = None
) -> DataWorkersProposed:
    wanted_per_s = count * worker_per_s if dequeued_per_s is None else dequeued_per_s
    return DataWorkersProposed(
        job=job,
        count=count,
        phase="scaling",
        worker_per_s=worker_per_s,
        dequeued_per_s=wanted_per_s,
        reasons=("waits",),
    )


def cluster(cores: float, jobs: int, policy: str = "srtf", samples: int = 10**7) -> ArbiterMachine:
    """Return jobs of one worker and one PS of one core each, which may have data workers."""
    machine = ArbiterMachine(
        None, ArbiterSettings(Resources(cores, 1000 * GIB)), ranking=SHARE.named(policy), ranking_name=policy
    )
    for number in range(jobs):
        start(machine, f"job-{number}", samples)
    return machine


def start(machine: ArbiterMachine, job: str, samples: int = 10**7) -> None:
    machine.handle(JobOpened(job, profile(samples, data=LIMITS)), 0.0)
    machine.handle(plan_proposed(job, "warm-start", plan(), 0.1, ("r",)), 0.0)
    if machine.state.jobs[job].plan is not None:
        machine.handle(plan_applied(job, 1, plan(), 2.0), 0.0)


def told(actions: list[Action]) -> list[DataWorkersDecided]:
    facts = [getattr(action, "fact", None) for action in actions]
    return [fact for fact in facts if isinstance(fact, DataWorkersDecided)]


def given_to(machine: ArbiterMachine) -> list[int]:
    return [job.data for job in machine.state.jobs.values()]


PLAN = plan().resources(profile(1).extended)


def test_a_job_gets_what_it_has_use_for_and_the_reasons_of_its_queue() -> None:
    machine = cluster(20.0, 1)
    (fact,) = told(machine.handle(proposed("job-0", 3), 1.0))
    assert (fact.version, fact.count, fact.wanted, fact.policy) == (1, 3, 3, "srtf")
    assert (fact.cpu_cores, fact.memory_bytes) == (1.0, GIB)
    assert fact.reasons == ("waits",)
    assert not told(machine.handle(Tick(), 2.0)), "it is said once"
    (fact,) = told(machine.handle(proposed("job-0", 1), 3.0))
    assert (fact.version, fact.count) == (2, 1)


def test_what_plans_leave_is_all_there_is_and_the_decision_says_so() -> None:
    machine = cluster(PLAN.cpu_cores + 2.5, 1)
    (fact,) = told(machine.handle(proposed("job-0", 4), 1.0))
    assert (fact.count, fact.wanted) == (2, 4)
    assert "2 of 4" in fact.reasons[-1]
    assert "0.5 cores" in fact.reasons[-1]


def test_a_first_wish_that_finds_no_room_is_answered_once_with_the_reason() -> None:
    machine = cluster(PLAN.cpu_cores + 0.998, 1)
    (fact,) = told(machine.handle(proposed("job-0", 16), 1.0))
    assert (fact.version, fact.count, fact.wanted) == (1, 0, 16)
    assert "0 of 16: one more needs 1 core" in fact.reasons[-1]
    assert not told(machine.handle(proposed("job-0", 8), 2.0))


def test_a_job_that_waits_to_start_takes_the_room_back_in_the_same_cycle() -> None:
    machine = cluster(2 * PLAN.cpu_cores, 1)
    machine.handle(proposed("job-0", 16), 1.0)
    before = machine.state.jobs["job-0"].data
    assert before == int(PLAN.cpu_cores)
    machine.handle(JobOpened("late", profile(10**7, data=LIMITS)), 2.0)
    facts = told(machine.handle(plan_proposed("late", "warm-start", plan(), 0.1, ("r",)), 2.0))
    assert machine.state.jobs["late"].plan is not None
    assert [(fact.job, fact.count) for fact in facts] == [("job-0", 0)]


def test_data_workers_that_find_no_node_are_given_up_and_tried_again_later() -> None:
    machine = cluster(20.0, 1)
    machine.handle(proposed("job-0", 3), 1.0)
    (fact,) = told(machine.handle(pod_unplaced("job-0", "data-2", "data", "Insufficient cpu"), 2.0))
    assert fact.count == 2
    assert "no node" in fact.reasons[-1]
    assert not machine.state.jobs["job-0"].unplaced, "no plan has less room for it"
    no_room_s = machine.settings.no_room_s
    assert not told(machine.handle(Tick(), no_room_s / 2))
    (fact,) = told(machine.handle(Tick(), 2.0 + no_room_s))
    assert fact.count == 3


def test_a_users_number_goes_before_all_queues_until_he_takes_it_back() -> None:
    machine = cluster(2 * PLAN.cpu_cores + 3.0, 2)
    machine.handle(proposed("job-0", 3), 1.0)
    facts = told(machine.handle(DataWorkersRequested(job="job-1", count=2, by="ada"), 2.0))
    assert {(fact.job, fact.count) for fact in facts} == {("job-0", 1), ("job-1", 2)}
    assert "a user asks for 2" in next(fact for fact in facts if fact.job == "job-1").reasons
    facts = told(machine.handle(DataWorkersRequested(job="job-1", count=None, by="ada"), 3.0))
    assert next(fact for fact in facts if fact.job == "job-1").reasons == ("the data queue has asked for none yet",)
    assert given_to(machine) == [3, 0]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        # job-0 has a tenth of the steps left: it is served whole before the other gets any
        ("srtf", [4, 1]),
        # a data worker of job-1 brings a third of its ideal speed, one of job-0 an eighth
        ("maxtp", [2, 3]),
        # both have the same part of their ideal speed
        ("fair", [4, 1]),
    ],
)
def test_policies_share_scarce_room_by_their_definition(policy: str, expected: list[int]) -> None:
    machine = cluster(2 * PLAN.cpu_cores + 5.0, 2, policy)
    machine.handle(job_progressed("job-0", 9 * 10**6, 10**7, 100.0), 1.0)
    machine.handle(proposed("job-1", 3, 10.0, 30.0), 1.0)
    machine.handle(proposed("job-0", 8 if policy != "srtf" else 4, 10.0, 80.0 if policy != "srtf" else 40.0), 1.0)
    assert given_to(machine) == expected


def test_an_ended_job_has_no_data_workers_and_nothing_is_said() -> None:
    machine = cluster(20.0, 2)
    machine.handle(proposed("job-0", 3), 1.0)
    actions = machine.handle(job_ended("job-0", "failed"), 2.0)
    assert not told(actions)
    assert machine.state.jobs["job-0"].data == 0


@pytest.mark.parametrize(("late", "number"), [(True, 0), (False, 3)])
def test_a_completed_job_that_goes_on_hears_what_became_of_its_data_workers(late: bool, number: int) -> None:
    """A restore takes a completed job back. Its actuator and its planner go on from the number that they know."""
    machine = cluster(2 * PLAN.cpu_cores + 2.5, 1)
    machine.handle(proposed("job-0", 3), 1.0)
    assert given_to(machine) == [3]
    assert not told(machine.handle(job_ended("job-0", "completed"), 2.0))
    assert given_to(machine) == [0]
    if late:
        start(machine, "late")
        machine.handle(DataWorkersRequested(job="late", count=2, by="ada"), 3.0)
    facts = told(machine.handle(job_progressed("job-0", 10, 10**7, 100.0), 4.0))
    assert [fact.count for fact in facts if fact.job == "job-0"] == ([0] if late else [])
    assert machine.state.jobs["job-0"].data == number


def test_with_room_for_all_an_event_costs_what_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = cluster(1000.0, 40)
    for number in range(40):
        machine.handle(proposed(f"job-{number}", 4), 1.0)
    assert given_to(machine) == [4] * 40
    looked_at: list[str] = []
    ranked = machine._context.ranking

    def ranking(job: Sharer, had: float, has: float) -> float:
        looked_at.append("one")
        return ranked(job, had, has)

    monkeypatch.setattr(machine._context, "ranking", ranking)
    machine.handle(proposed("job-7", 3), 2.0)
    assert given_to(machine) == [4] * 7 + [3] + [4] * 32
    assert len(looked_at) == 3


def drawn(rng: random.Random, machine: ArbiterMachine) -> Any:
    """Draw an event of a busy cluster whose jobs may have data workers."""
    event: Any = event_of(machine, busy_cluster(rng, machine, NAMES))
    if isinstance(event, JobOpened):
        return replace(event, profile=replace(event.profile, data=LIMITS))
    return event


BUSY = ArbiterSettings(Resources(12.0, 100 * GIB), round_s=0.0, settle_s=0.0, background_algorithm="")
NAMES = [f"job-{number}" for number in range(5)]


@given(seed=st.integers(0, 2**32), cores=st.sampled_from([4.0, 12.0, 40.0]))
def test_plans_are_decided_as_if_there_were_no_data_workers(seed: int, cores: float) -> None:
    """Another replica takes over with the state alone, in the middle of anything, and decides the same."""
    rng = random.Random(seed)
    limits = replace(BUSY, capacity=Resources(cores, 100 * GIB))
    fed, plain, taken_over = (started(limits, 2) for _ in range(3))
    now = 10.0
    for _ in range(60):
        now += rng.choice([0.0, 1.0, 400.0])
        event = drawn(rng, fed)
        for_fed, for_plain = fed.handle(event, now), plain.handle(event, now)
        assert plans(for_fed) == plans(for_plain)
        assert taken_over.handle(event, now) == for_fed
        job = rng.choice(NAMES)
        asked: Any = rng.choice([proposed(job, rng.randint(0, 9)), DataWorkersRequested(job=job, count=None)])
        assert taken_over.handle(asked, now) == fed.handle(asked, now)
        plain.handle(Tick(), now)
        if rng.random() < 0.3:
            taken_over = ArbiterMachine(copy.deepcopy(taken_over.state), limits)
        given_out = total(job.profile.data.of(job.data) for job in fed.state.jobs.values())
        assert given_out.fits(larger(fed.free(), NOTHING))
        assert fed._context.register.data_workers.held == given_out
        could_be = total(job.profile.data.of(job.data_most) for job in fed.state.jobs.values())
        assert fed._context.register.data_workers.held_at_most == could_be
        if could_be.fits(larger(fed.free(), NOTHING)):
            assert all(job.data == job.data_most for job in fed.state.jobs.values())


def plans(actions: list[Action]) -> list[Any]:
    """Return what was decided on plans, without what is said of the free resources."""
    facts = [getattr(action, "fact", None) for action in actions]
    decided = [fact for fact in facts if not isinstance(fact, DataWorkersDecided)]
    return [(type(fact).__name__, getattr(fact, "job", ""), getattr(fact, "plan", None)) for fact in decided]

"""Background solve of a round: which jobs wait for it, and the effect of its answer, whenever it comes."""

from __future__ import annotations

import itertools
import pickle
import random
from typing import Any

import pytest
from arbiter_builders import busy_cluster, event_of, offer, started
from closed_loop import plan
from hypothesis import given, settings
from hypothesis import strategies as st
from job_builders import background_solved, job_ended, plan_proposed
from selection_problems import problems
from stretto_core.algorithms import SELECT
from stretto_core.arbiter.background import BackgroundTask
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.observations import BackgroundSolved
from stretto_core.arbiter.selection import Selection, SelectionProblem
from stretto_core.arbiter.selection.exact import exact
from stretto_core.arbiter.selection.hull import hull
from stretto_core.arbiter.selection.reduced_cost import ambiguous_jobs
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Tick
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB
from stretto_messages.values import Resources


def modest(problem: SelectionProblem) -> Selection:
    """Whoever comes first gets the first option that fits; nothing is proven."""
    chosen: dict[str, str | None] = {}
    taken: list[Any] = []
    for contender in problem.contenders:
        option = next((each for each in contender.options if problem.fits([*taken, each])), None)
        chosen[contender.job] = option.id if option else None
        taken += [option] if option else []
    return Selection(chosen, 0.0, float("inf"))


def contested(jobs: int, cores: float, **changes: Any) -> ArbiterMachine:
    """So many jobs of two cores each under a modest arbiter, and so many cores free; the first round comes at 1002."""
    limits = {"objective": "gain", "background_algorithm": "exact", **changes}
    machine = started(ArbiterSettings(Resources(2.0 * jobs + cores, 1000 * GIB), **limits), jobs)
    machine.select = modest
    machine.state.last_round_s = 1000.0
    return machine


def told(machine: ArbiterMachine, event: object, now: float) -> list[Any]:
    return [action.fact for action in machine.handle(event, now)]


def solved(machine: ArbiterMachine) -> BackgroundSolved:
    task = machine.task()
    return task.answered(exact(task.problem), 0.25)


def held_up() -> tuple[ArbiterMachine, PlanDecided]:
    """The second of two jobs waits: it would get 2 cores more for 400 samples/s, and could have 3 for 1,000."""
    machine = contested(2, 4.0)
    offer(machine, "job-0", 1000.0, (2, 900.0))
    offer(machine, "job-1", 1000.0, (3, 400.0), (4, 1000.0))
    (decided,) = told(machine, Tick(), 1002.0)
    return machine, decided


def test_only_who_could_be_served_better_waits_and_gets_what_the_background_solve_found() -> None:
    machine, decided = held_up()
    assert (decided.job, decided.plan.workers, decided.round.algorithm) == ("job-0", 2, SELECT.default)
    assert (decided.round.background.outcome, decided.round.background.value) == ("begun", None)
    assert "1 of 2 jobs" in decided.round.background.reason
    task = machine.task()
    assert task is not None
    assert [contender.job for contender in task.problem.contenders] == ["job-1"]
    assert task.problem.free["cpu_cores"] == 3.0
    assert told(machine, Tick(), 1002.5) == []
    (decided,) = told(machine, solved(machine), 1002.6)
    assert (decided.job, decided.plan.workers, decided.algorithm) == ("job-1", 4, "exact")
    report = decided.round.background
    assert (report.outcome, report.value, report.instead_of, report.took_s) == ("adopted", 1000.0, 400.0, 0.25)
    assert report.gap == pytest.approx(0.0, abs=1e-6)
    assert decided.round.value <= decided.round.bound
    assert machine.state.background_solve is None


def test_nobody_waits_longer_than_the_patience_and_what_comes_then_is_outdated() -> None:
    machine, _ = held_up()
    answer = solved(machine)
    assert told(machine, Tick(), 1002.9) == []
    (decided,) = told(machine, Tick(), 1003.0)
    assert (decided.job, decided.plan.workers, decided.algorithm) == ("job-1", 3, SELECT.default)
    assert (decided.round.background.outcome, decided.round.background.took_s) == ("begun", None)
    assert "1.0 s" in decided.round.background.reason
    assert told(machine, answer, 1003.5) == []
    assert (machine.state.background_solve, machine.task()) == (None, None)


def late(gone: list[str]) -> list[PlanDecided]:
    """Nobody waited for the answer; it comes when those are ``gone`` who held two cores each, before the next round."""
    machine = contested(5, 4.0, round_s=100.0)
    for job, rows in {"job-0": [(5, 400.0)], "job-1": [(2, 200.0), (3, 1000.0)], "job-2": [(3, 900.0)]}.items():
        offer(machine, job, 1000.0, *rows)
    assert told(machine, Tick(), 1100.0) == [], "all three wait"
    answer = solved(machine)
    assert {job: wanted.workers for job, wanted in answer.plans.items()} == {"job-1": 3, "job-2": 3}
    assert [fact.job for fact in told(machine, Tick(), 1101.0)] == ["job-0"]
    for job in gone:
        assert told(machine, job_ended(job, "gone"), 1105.0) == []
    return told(machine, answer, 1106.0)


def test_what_comes_late_still_serves_who_got_nothing() -> None:
    decided = late(["job-3", "job-4"])
    assert {fact.job: fact.plan.workers for fact in decided} == {"job-1": 3, "job-2": 3}
    assert {fact.round.background.outcome for fact in decided} == {"adopted"}


def test_what_comes_late_and_has_no_room_any_more_is_dropped() -> None:
    assert late([]) == []
    (decided,) = late(["job-3"])
    assert (decided.job, decided.plan.workers, decided.round.background.outcome) == ("job-1", 2, "dropped")
    assert "does not fit" in decided.round.background.reason


def test_an_answer_that_is_not_better_or_is_none_is_dropped_with_the_reason() -> None:
    for answer_of, reason in (
        (lambda task: task.answered(modest(task.problem), 0.1), "not better by more than 0.1%"),
        (lambda task: task.failed("HiGHS is ill", 0.1), "it failed: HiGHS is ill"),
    ):
        machine, _ = held_up()
        (decided,) = told(machine, answer_of(machine.task()), 1002.1)
        assert (decided.job, decided.plan.workers, decided.algorithm) == ("job-1", 3, SELECT.default)
        assert (decided.round.background.outcome, decided.round.background.reason) == ("dropped", reason)


@pytest.mark.parametrize("bound", [float("nan"), float("inf")])
def test_a_bound_that_is_no_number_proves_nothing(bound: float) -> None:
    machine, _ = held_up()
    task = machine.task()
    assert task.answered(Selection({}, 1.0, bound), 0.1).gap is None
    assert task.answered(Selection({}, 1.0, 4.0), 0.1).gap == 0.75


def test_of_an_answer_stands_what_concerns_jobs_that_are_as_they_were() -> None:
    machine = contested(3, 6.0)
    for number in range(3):
        offer(machine, f"job-{number}", 1000.0, (3, 400.0), (4, 1000.0))
    assert told(machine, Tick(), 1002.0) == []
    answer = solved(machine)
    assert sum(wanted.workers == 4 for wanted in answer.plans.values()) == 2
    (asked,) = told(machine, plan_proposed("job-0", "requested", plan(2), 0.1, ("ada asks",)), 1002.1)
    assert (asked.job, asked.kind) == ("job-0", "requested")
    decided = told(machine, answer, 1002.2)
    assert {fact.job for fact in decided} <= {"job-1", "job-2"}
    assert machine.state.claimed().fits(machine.settings.capacity)
    assert all(fact.round.background.outcome in ("adopted", "dropped") for fact in decided)


def test_rounds_go_on_while_a_late_solve_is_at_work_and_none_is_begun_beside_it() -> None:
    machine = contested(4, 4.0)
    for number, row in enumerate([(5, 400.0), (3, 1000.0), (3, 900.0)]):
        offer(machine, f"job-{number}", 1000.0, row)
    assert told(machine, Tick(), 1002.0) == []
    (first,) = told(machine, Tick(), 1003.0)
    told(machine, job_ended("job-3", "gone"), 1004.0)
    (second,) = told(machine, Tick(), 1005.0)
    assert (first.job, second.job, machine.state.background_solves) == ("job-0", "job-1", 1)
    assert machine.state.background_solve is not None, "it is still about job-2"
    told(machine, Tick(), 1002.0 + machine.settings.background_timeout_s + 0.1)
    assert machine.state.background_solve is None


@settings(max_examples=150)
@given(problems(), st.sampled_from([0.0, 0.001, 0.1]))
def test_who_is_not_ambiguous_gets_the_same_in_every_better_selection(problem: SelectionProblem, gain: float) -> None:
    fast = hull(problem)
    least = fast.value * (1 + gain)
    ambiguous = ambiguous_jobs(problem, fast.chosen, least)
    for picks in itertools.product(*([None, *contender.options] for contender in problem.contenders)):
        pairs = list(zip(problem.contenders, picks, strict=True))
        value = sum(problem.value(contender, option) for contender, option in pairs if option is not None)
        if value > least * (1 + 1e-9) + 1e-300 and problem.fits([option for option in picks if option is not None]):
            changed = {each.job for each, option in pairs if (option and option.id) != fast.chosen[each.job]}
            assert changed <= ambiguous


def answer(rng: random.Random, tasks: list[BackgroundTask]) -> BackgroundSolved:
    """To any of the questions that were ever asked: right, at random, or none."""
    task = tasks[-1] if rng.random() < 0.6 else rng.choice(tasks)
    if rng.random() < 0.5:
        return task.answered(exact(task.problem), rng.random())
    if rng.random() < 0.2:
        return task.failed("killed", rng.random())
    plans = {job: rng.choice(list(each.values())) for job, each in task.plans.items()}
    return background_solved(task.number, plans, 0.5, 1.0)


@pytest.mark.proof
@settings(max_examples=60)
@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1.0, 30.0]),
    st.sampled_from([Resources(9.0, 20 * GIB), Resources(30.0, 90 * GIB)]),
)
def test_whenever_answers_come_nothing_is_overdrawn_and_no_old_one_is_adopted(
    seed: int, patience_s: float, capacity: Resources
) -> None:
    """The other machine knows the state alone, as an heir does: it asks the same and decides the same."""
    rng, now, tasks = random.Random(seed), 0.0, list[BackgroundTask]()
    limits = ArbiterSettings(
        capacity, objective="gain", background_algorithm="exact", patience_s=patience_s, settle_s=5.0
    )
    machine, names = ArbiterMachine(None, limits, modest), [f"job-{number}" for number in range(6)]
    for _ in range(100):
        now += rng.choice([0.0, 0.2, 0.5, 2.0, 5.0, 20.0])
        event: object = Tick()
        if tasks and rng.random() < 0.2:
            event = answer(rng, tasks)
        elif rng.random() < 0.9:
            event = event_of(machine, busy_cluster(rng, machine, names))
        awaited = machine.state.background_solve
        heir = ArbiterMachine(pickle.loads(pickle.dumps(machine.state)), limits, modest)
        facts = told(machine, event, now)
        assert told(heir, event, now) == facts
        assert (heir.state, heir.task()) == (machine.state, machine.task())
        assert machine.state.claimed().fits(capacity)
        for fact in facts:
            if (
                isinstance(fact, PlanDecided)
                and fact.round
                and fact.round.background
                and fact.round.background.outcome == "adopted"
            ):
                assert isinstance(event, BackgroundSolved)
                assert awaited.number == event.number
        if isinstance(event, BackgroundSolved):
            assert machine.state.background_solve is None or machine.state.background_solve.number > event.number
        task = machine.task()
        if task is not None and (not tasks or tasks[-1].number != task.number):
            tasks.append(task)

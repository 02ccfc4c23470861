"""A round decides on so many jobs: who is deferred has its turn, and every decision tells what its round proves."""

from __future__ import annotations

import math
import random

import pytest
from arbiter_builders import offer, started
from hypothesis import given, settings
from hypothesis import strategies as st
from job_builders import job_ended, plan_applied
from stretto_core.arbiter import rounds
from stretto_core.arbiter.explanation import Choice, alternatives
from stretto_core.arbiter.selection import Objective, Selection
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Tick
from stretto_messages.arbiter import Alternative
from stretto_messages.base import GIB
from stretto_messages.values import Resources

PLENTY = Resources(1e4, 10**5 * GIB)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(2, 14), st.integers(1, 4))
def test_whoever_always_has_something_to_gain_waits_for_no_more_rounds_than_all_need(
    seed: int, jobs: int, most: int
) -> None:
    """The gains of some are always a thousand times those of others, and new ones come as soon as a plan is applied."""
    rng, now = random.Random(seed), 1000.0
    machine = started(ArbiterSettings(PLENTY, settle_s=0.0, return_again_s=0.0, decisions_most=most), jobs)
    gains = {name: 300 * 1000 ** rng.random() for name in machine.state.jobs}
    machine.state.last_round_s = now  # all have their candidates before the first round
    last = dict.fromkeys(gains, 0)
    for name in gains:
        assert not offer(machine, name, now, (2, gains[name]))
    for number in range(1, 5 * math.ceil(jobs / most)):
        now += 2.0
        decided = [action.fact for action in machine.handle(Tick(), now)]
        assert len(decided) == min(jobs, most)
        for fact in decided:
            last[fact.job] = number
            machine.handle(plan_applied(fact.job, fact.version, fact.plan, 1.0), now)
            offer(machine, fact.job, now, (3 - fact.plan.workers % 2, gains[fact.job]))
        assert number - min(last.values()) <= math.ceil(jobs / most)


def test_nobody_who_is_gone_or_has_nothing_to_gain_any_more_is_kept_waiting_for() -> None:
    machine = started(ArbiterSettings(PLENTY, decisions_most=1), 4)
    machine.state.last_round_s = 1000.0
    for number in range(4):
        offer(machine, f"job-{number}", 1000.0, (2, 1000.0 + number))
    (first,) = [action.fact.job for action in machine.handle(Tick(), 1002.0)]
    assert (first, set(machine.state.deferred)) == ("job-3", {"job-0", "job-1", "job-2"})
    machine.handle(job_ended("job-0", "gone"), 1003.0)
    assert set(machine.state.deferred) == {"job-1", "job-2"}
    offer(machine, "job-1", 1003.0)
    assert [action.fact.job for action in machine.handle(Tick(), 1004.0)] == ["job-2"]
    assert machine.state.deferred == {}


@pytest.mark.parametrize("objective", ["efficiency", "gain", "completion"])
@pytest.mark.parametrize("algorithm", ["exact-or-hull", "hull", "weighted-greedy"])
def test_a_decision_tells_what_its_round_reaches_and_what_is_proven(algorithm: str, objective: Objective) -> None:
    machine = started(
        ArbiterSettings(Resources(12.0, 100 * GIB), objective=objective, background_algorithm=""), 3, algorithm
    )
    machine.state.last_round_s = 1000.0
    for number in range(3):
        offer(machine, f"job-{number}", 1000.0, (2, 500.0 + number), (4, 900.0), (6, 1300.0))
    decided = [action.fact for action in machine.handle(Tick(), 1002.0)]
    assert decided
    for fact in decided:
        assert (fact.algorithm, fact.round.algorithm) == (algorithm, algorithm)
        assert (fact.round.objective, fact.round.jobs) == (objective, 3)
        assert 0 < fact.round.term <= fact.round.value <= fact.round.bound
        assert fact.round.gap == pytest.approx(1 - fact.round.value / fact.round.bound)
        assert any("no choice exceeds" in reason for reason in fact.reasons)
    assert sum(fact.round.term for fact in decided) == pytest.approx(decided[0].round.value)


@pytest.mark.parametrize("bound", [math.inf, math.nan])
def test_a_plug_in_that_proves_nothing_gets_the_bound_of_the_relaxation(bound: float) -> None:
    """A decision whose bound is no number could not be published: the arbiter died of it, and so did its heir."""
    machine = started(ArbiterSettings(PLENTY, background_algorithm=""), 1)
    machine.select = lambda problem: Selection({"job-0": "0"}, math.nan, bound)
    machine.state.last_round_s = 1000.0
    offer(machine, "job-0", 1000.0, (2, 500.0), (4, 900.0))
    (decided,) = [action.fact for action in machine.handle(Tick(), 1002.0)]
    assert 0 < decided.round.term == decided.round.value <= decided.round.bound < math.inf


def test_a_plan_that_leaves_others_room_is_not_called_the_best_of_its_job() -> None:
    machine = started(ArbiterSettings(Resources(8.0, 100 * GIB), objective="gain"), 2)
    machine.state.last_round_s = 1000.0
    for number in range(2):
        offer(machine, f"job-{number}", 1000.0, (3, 500.0), (5, 600.0))
    decided = [action.fact for action in machine.handle(Tick(), 1002.0)]
    assert [fact.plan.workers for fact in decided] == [3, 3]
    assert all("gain = 500, number 2 of 2 worthwhile plans" in " ".join(fact.reasons) for fact in decided)


def test_the_alternatives_told_are_the_first_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Choice]()

    def watched(choice: Choice, most: int) -> list[Alternative]:
        asked.append(choice)
        return alternatives(choice, most)

    monkeypatch.setattr(rounds, "alternatives", watched)
    machine = started(ArbiterSettings(Resources(8.0, 100 * GIB), settle_s=0.0), 1)
    machine.state.last_round_s = 1000.0
    offer(machine, "job-0", 1000.0, (9, 900.0), (2, 500.0), (3, 700.0), (20, 950.0), (5, 800.0), (4, 600.0))
    machine.handle(Tick(), 1002.0)
    (choice,) = asked
    every = alternatives(choice, 100)
    assert len(every) == 5
    beyond = [each.plan.workers for each in every if "more" in each.why_not]
    assert beyond == [each.plan.workers for each in every[-2:]], "those that do not fit come last"
    assert {*beyond} == {9, 20}
    for some in (every[:3], every[3:]):
        assert [each.efficiency for each in some] == sorted((each.efficiency for each in some), reverse=True)
    for most in range(6):
        assert alternatives(choice, most) == every[:most]

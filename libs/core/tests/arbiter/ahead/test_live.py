"""Selections of the live arbiter that look at remaining work: against brute force, and carried out by the machine."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from arbiter_builders import offer, started
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_problems import problems
from stretto_core.arbiter.ahead import horizon as looking
from stretto_core.arbiter.ahead.doubling import SMALL_FIRST
from stretto_core.arbiter.ahead.horizon import STEP_S, STEPS, horizon
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.selection import Contender, Ending, Option, Selection, SelectionProblem
from stretto_core.arbiter.selection.doubling import doubling
from stretto_core.arbiter.selection.hull import hull
from stretto_core.arbiter.selection.problem import speeds
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Tick
from stretto_messages.base import GIB
from stretto_messages.values import Resources

Change = tuple[Option, int] | None
"""An option and the step in which it begins."""
amount = st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0])


@st.composite
def ahead(draw: st.DrawFn) -> SelectionProblem:
    """Small, with jobs that end within the horizon and others whose end frees room."""
    contenders = []
    for j in range(draw(st.integers(0, 3))):
        options = tuple(
            Option(str(i), {"cpu": draw(amount), "memory": draw(amount)}, 1.0, draw(st.floats(-1.0, 4.0)), 2.0)
            for i in range(draw(st.integers(0, 2)))
        )
        held = {"cpu": draw(st.sampled_from([0.0, 1.0, 2.0])), "memory": 1.0}
        remaining = draw(st.sampled_from([0.0, 300.0, 900.0, 1500.0, 1e5]))
        # an unknown speed is guessed from each option anew, so that no play without a change is defined
        now = draw(st.sampled_from([0.0, 0.5, 1.0, 2.0] if len(options) > 1 else [None, 0.0, 0.5, 1.0, 2.0]))
        contenders.append(Contender(f"j{j}", remaining, options, draw(st.floats(0.5, 2)), now, held))
    ends = tuple(
        Ending(
            draw(st.sampled_from([0.0, 100.0, 300.0, 800.0, 2000.0])), {"cpu": draw(amount.filter(lambda a: a >= 0))}
        )
        for _ in range(draw(st.integers(0, 2)))
    )
    return SelectionProblem(tuple(contenders), {"cpu": draw(amount), "memory": draw(amount)}, "gain", endings=ends)


class Play:
    """One job by the definition alone: what it serves and uses in every step."""

    def __init__(self, contender: Contender, change: Change) -> None:
        option, first = change if change is not None else (None, STEPS)
        now, then = speeds(contender, option or contender.options[0])
        done, self.served, self.used = 0.0, list[float](), list[dict[str, float]]()
        for step in range(STEPS):
            under = option is not None and step >= first
            more = option.amounts if option is not None and under else {}
            ended = done >= contender.remaining_samples * (1 - 1e-9)
            names = contender.held.keys() | more.keys()
            self.used.append({} if ended else {n: contender.held.get(n, 0) + more.get(n, 0) for n in names})
            done = min(done + STEP_S * (then if under else now), contender.remaining_samples)
            self.served.append(done / contender.remaining_samples)


def best_ahead(problem: SelectionProblem) -> float:
    """Return the best value of all plans in which each job changes once, or never."""
    jobs = [each for each in problem.contenders if each.options and each.remaining_samples > 0]
    idle = [Play(each, None) for each in jobs]
    changes = [[None, *itertools.product(each.options, range(STEPS))] for each in jobs]
    best = 0.0
    for picks in itertools.product(*changes):
        plays = [Play(each, pick) for each, pick in zip(jobs, picks, strict=True)]
        if all(_fits(problem, step, plays, idle) for step in range(STEPS)):
            gains = zip(jobs, plays, idle, strict=True)
            best = max(best, sum(each.weight * (sum(a.served) - sum(b.served)) for each, a, b in gains))
    return best


def _fits(problem: SelectionProblem, step: int, plays: list[Play], idle: list[Play]) -> bool:
    """Return whether a step's use is within what is free, what others hold now, and what endings free."""
    for name in ("cpu", "memory"):
        gone = [each for each in problem.endings if step > 0 and each.after_s <= step * STEP_S]
        freed = sum(each.held.get(name, 0.0) for each in gone)
        held = sum(play.used[0].get(name, 0.0) for play in idle)
        used = sum(play.used[step].get(name, 0.0) for play in plays)
        if used - held > max(problem.free.get(name, 0.0), 0.0) + freed + 1e-9:
            return False
    return True


@settings(max_examples=60, deadline=None)
@given(ahead())
def test_horizon_is_the_best_of_all_plans_and_carries_out_its_first_step(problem: SelectionProblem) -> None:
    found, best = horizon(problem), best_ahead(problem)
    assert found.value == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert found.bound >= best - 1e-6
    chosen = [option for each in problem.contenders for option in each.options if found.chosen[each.job] == option.id]
    assert problem.fits(chosen), "what is carried out now fits now"


@settings(max_examples=40, deadline=None)
@given(ahead())
def test_the_walk_among_many_rows_stays_below_a_bound_that_holds(problem: SelectionProblem) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(looking, "PROVEN_ROWS", 0)
        patch.setattr(looking, "SAMPLED", 2)
        found = horizon(problem)
    best = best_ahead(problem)
    assert found.value <= best + 1e-6
    assert found.bound >= best - 1e-6


@pytest.mark.parametrize("jobs", [80, 250])
def test_among_many_jobs_the_choice_is_proven_within_a_hundredth(jobs: int) -> None:
    draw, contenders = random.Random(jobs), list[Contender]()
    for j in range(jobs):
        now, sizes = draw.uniform(500, 5000), draw.sample(range(1, 33), 8)
        gains = {cores: draw.uniform(50, 500) * cores ** draw.uniform(0.3, 0.9) for cores in sizes}
        options = tuple(
            Option(str(cores), {"cpu": float(cores), "memory": draw.uniform(1, 64)}, 1.0, gain, now + gain)
            for cores, gain in gains.items()
        )
        held = {name: amount / 2 for name, amount in options[0].amounts.items()}
        left = now * draw.lognormvariate(8.0, 1.5)
        contenders.append(Contender(f"j{j}", left, options, throughput=now, held=held))
    problem = SelectionProblem(tuple(contenders), {"cpu": 6.0 * jobs, "memory": 14.0 * jobs}, "completion")
    found = horizon(problem)
    assert found.bound > found.value >= 0.99 * found.bound


def test_a_job_that_ends_soon_leaves_the_room_to_one_that_goes_on() -> None:
    """A selection by samples alone gives the core to the job that gains more, which ends soon anyway."""

    def option(gain: float) -> tuple[Option, ...]:
        return (Option("0", {"cpu": 1.0}, 1.0, gain, 1.0 + gain),)

    ending = Contender("ending", 60.0, option(0.9), throughput=1.0, held={"cpu": 1.0})
    going = Contender("going", 3000.0, option(0.5), throughput=1.0, held={"cpu": 1.0})
    problem = SelectionProblem((ending, going), {"cpu": 1.0}, "gain")
    assert hull(problem).chosen == {"ending": "0", "going": None}
    assert horizon(problem).chosen == {"ending": None, "going": "0"}


def test_room_that_comes_soon_is_waited_for_where_that_serves_more() -> None:
    """One device is free: the plan with two brings far more, and the second device is free after a step."""
    options = (Option("small", {"gpu": 1.0}, 1.0, 0.1, 1.1), Option("whole", {"gpu": 2.0}, 1.0, 9.0, 10.0))
    waiting = Contender("waiting", 1e5, options, throughput=1.0)
    soon = SelectionProblem((waiting,), {"gpu": 1.0}, "gain", endings=(Ending(200.0, {"gpu": 1.0}),))
    never = replace(soon, endings=())
    assert horizon(soon).chosen == {"waiting": None}
    assert horizon(never).chosen == {"waiting": "small"}


@settings(max_examples=60)
@given(problems())
def test_doubling_is_within_a_bound_on_weighted_doublings_by_rank(problem: SelectionProblem) -> None:
    left = {c.job: c.remaining_samples / speeds(c, c.options[0])[0] for c in problem.contenders if c.options}
    ranks = {job: n for n, job in enumerate(sorted(left, key=lambda job: (-left[job], job)), 1)}

    def worth(contender: Contender, option: Option | None) -> float:
        if option is None:
            return 0.0
        now, then = speeds(contender, option)
        return contender.weight * ranks[contender.job] ** SMALL_FIRST * math.log2(then / now)

    def total(picks: tuple[Option | None, ...]) -> float:
        return math.fsum(worth(c, pick) for c, pick in zip(problem.contenders, picks, strict=True))

    every = itertools.product(*([None, *c.options] for c in problem.contenders))
    best = max(total(picks) for picks in every if problem.fits([pick for pick in picks if pick is not None]))
    found = doubling(problem)
    chosen = tuple(next((o for o in c.options if o.id == found.chosen[c.job]), None) for c in problem.contenders)
    assert problem.fits([pick for pick in chosen if pick is not None])
    assert found.value == pytest.approx(total(chosen), abs=1e-9)
    assert found.value <= best + 1e-6 <= found.bound + 2e-6


def test_of_two_jobs_that_gain_alike_the_one_with_less_left_goes_first() -> None:
    options = (Option("0", {"cpu": 1.0}, 1.0, 1.0, 2.0),)
    jobs = tuple(Contender(name, left, options, throughput=1.0) for name, left in (("long", 9e4), ("short", 1e4)))
    problem = SelectionProblem(jobs, {"cpu": 1.0}, "completion")
    assert doubling(problem).chosen == {"long": None, "short": "0"}
    assert hull(problem).chosen == {"long": "0", "short": None}, "more seconds"


def test_the_arbiter_tells_horizon_when_other_jobs_end_and_no_other_optimum_replaces_its_choice() -> None:
    seen = list[SelectionProblem]()

    def watched(problem: SelectionProblem) -> Selection:
        seen.append(problem)
        return replace(horizon(problem), bound=1e9)

    watched.looks_ahead = True  # type: ignore[attr-defined]  # an attribute of the protocol
    settings_ = ArbiterSettings(Resources(9.0, 100 * GIB), settle_s=0.0, background_algorithm="exact")
    begun = started(settings_, 3)
    machine = ArbiterMachine(begun.state, settings_, watched, "horizon")
    machine.state.last_round_s = 1000.0
    for name in ("job-0", "job-1"):
        offer(machine, name, 1000.0, (2, 500.0))
    machine.state.jobs["job-1"].changed_s = 1e9  # it settles: its speed is known, it gets no option
    (decided,) = [action.fact for action in machine.handle(Tick(), 1002.0)]
    (problem,) = seen
    (contender,), (ending,) = problem.contenders, problem.endings
    state = machine.state.jobs["job-1"]
    assert contender.job == decided.job == "job-0"
    assert contender.held["cpu_cores"] == ending.held["cpu_cores"] == state.held.cpu_cores
    assert ending.after_s == state.profile.samples / state.throughput
    assert decided.round.objective == looking.OBJECTIVE != settings_.objective
    assert decided.round.bound == 1e9, "the bound of the algorithm's own objective"
    assert any(f"of {looking.OBJECTIVE}" in reason for reason in decided.reasons)
    assert machine.task() is None
    assert not [each for each in (hull, doubling) if getattr(each, "looks_ahead", False)]

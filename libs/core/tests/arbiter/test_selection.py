"""Weighted greedy against brute force."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_builders import candidate
from selection_problems import brute_force, problems
from stretto_core.arbiter.selection import Contender, Option, SelectionProblem, weighted_greedy
from stretto_core.arbiter.worth import cheaper
from stretto_messages.base import GIB, InvalidValue
from stretto_messages.values import Plan


@settings(max_examples=150)
@given(problems())
def test_it_never_overdraws_nor_beats_the_optimum_and_its_bound_holds(problem: SelectionProblem) -> None:
    selection = weighted_greedy(problem)
    chosen = [
        next(option for option in c.options if option.id == selection.chosen[c.job])
        for c in problem.contenders
        if selection.chosen[c.job] is not None
    ]
    assert problem.fits(chosen)
    optimum = brute_force(problem)
    tolerance = 1e-9 * max(optimum, 1e-300)
    assert selection.value <= optimum + tolerance
    assert selection.bound >= optimum - tolerance
    assert weighted_greedy(problem) == selection, "the same problem gives the same choice"


@pytest.mark.proof
def test_it_comes_close_to_the_optimum_on_the_whole() -> None:
    rng = random.Random(5)
    ratios = []
    for _ in range(60):
        contenders = tuple(
            Contender(
                f"j{j}",
                rng.uniform(1e5, 1e7),
                tuple(
                    Option(str(i), {"cpu": float(rng.randint(1, 8))}, rng.uniform(0.1, 2), rng.uniform(1, 500), 1e3)
                    for i in range(4)
                ),
            )
            for j in range(5)
        )
        problem = SelectionProblem(contenders, {"cpu": 12.0}, rng.choice(["efficiency", "gain"]))
        ratios.append(weighted_greedy(problem).value / brute_force(problem))
    assert min(ratios) > 0.7
    assert sum(ratios) / len(ratios) > 0.97


def test_rho_decides_between_short_and_long_jobs() -> None:
    option = Option("0", {"cpu": 4.0}, 1.0, 100.0, 1000.0)
    contenders = (Contender("long", 1e8, (option,)), Contender("short", 1e5, (option,)))
    for rho, winner in ((2.5, "short"), (-2.5, "long")):
        chosen = weighted_greedy(SelectionProblem(contenders, {"cpu": 4.0}, rho=rho)).chosen
        assert [job for job, option_id in chosen.items() if option_id] == [winner]


def test_completion_counts_the_seconds_by_which_jobs_end_earlier() -> None:
    faster = (Option("0", {"cpu": 4.0}, 1.0, 100.0, 1000.0),)
    known = Contender("known", 1e6, faster, 2.0, throughput=500.0)
    assert SelectionProblem((), {}, "completion").value(known, faster[0]) == pytest.approx(2 * (1e6 / 500 - 1e6 / 600))
    unknown = Contender("unknown", 1e6, faster)
    assert SelectionProblem((), {}, "completion").value(unknown, faster[0]) == pytest.approx(1e6 / 900 - 1e6 / 1000)


def test_completion_prefers_the_larger_rest_where_the_gain_is_the_same_and_a_job_that_stands_still_to_any() -> None:
    option = Option("0", {"cpu": 4.0}, 1.0, 100.0, 1000.0)
    short, long = Contender("short", 1e5, (option,), throughput=900), Contender("long", 1e6, (option,), throughput=900)
    still = Contender("still", 1e5, (Option("0", {"cpu": 4.0}, 1.0, 100.0, 100.0),), throughput=0)
    for contenders, winner in (((short, long), "long"), ((short, long, still), "still")):
        chosen = weighted_greedy(SelectionProblem(contenders, {"cpu": 4.0}, "completion")).chosen
        assert [job for job, option_id in chosen.items() if option_id] == [winner]


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(-900, 9000)), max_size=6))
def test_under_the_objective_cost_the_fastest_plan_offered_is_the_cheapest_of_a_sample(
    plans: list[tuple[float, float]],
) -> None:
    throughput, cost_now = 1000.0, 1.0
    offered = [candidate(Plan(1, 1, 1.0, 1.0, GIB, GIB), 1.0, 1.0, 1.0, cost, 0.0, gain) for cost, gain in plans]
    found = cheaper([*enumerate(offered)], throughput, cost_now)
    of_sample = [each.cost_per_hour / (throughput + each.gain) for each in offered]
    least = min(of_sample, default=math.inf)
    assert [number for number, _ in found if of_sample[number] >= cost_now / throughput] == []
    assert bool(found) == (least < cost_now / throughput)
    fastest = max((each.gain for _, each in found), default=0.0)
    assert not found or least in [of_sample[number] for number, each in found if each.gain == fastest]


def test_what_nobody_offers_is_not_handed_out() -> None:
    option = Option("0", {"gpu": 1.0}, 1.0, 100.0, 1000.0)
    assert weighted_greedy(SelectionProblem((Contender("a", 1, (option,)),), {"cpu": 4.0})).chosen == {"a": None}


def test_a_job_named_twice_is_refused() -> None:
    with pytest.raises(InvalidValue, match="once"):
        weighted_greedy(SelectionProblem((Contender("a", 1, ()), Contender("a", 1, ())), {}))

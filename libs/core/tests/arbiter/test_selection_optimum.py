"""Hull greedy and the proven optimum against brute force, and against each other where that is too much."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_problems import brute_force, problems
from stretto_core.algorithms import SELECT
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.selection import (
    Contender,
    Objective,
    Option,
    Selection,
    SelectionAlgorithm,
    SelectionProblem,
    weighted_greedy,
)
from stretto_core.arbiter.selection import exact as proving
from stretto_core.arbiter.selection.exact import Effort, exact, exact_or_hull
from stretto_core.arbiter.selection.hull import hull
from stretto_messages.base import InvalidValue


def value_of(problem: SelectionProblem, selection: Selection) -> float:
    """Return the value of a choice; it must fit the capacity."""
    chosen = [
        (c, next(option for option in c.options if option.id == selection.chosen[c.job]))
        for c in problem.contenders
        if selection.chosen[c.job] is not None
    ]
    assert problem.fits([option for _, option in chosen])
    return math.fsum(problem.value(c, option) for c, option in chosen)


@settings(max_examples=120)
@given(problems())
def test_the_optimum_is_that_of_brute_force_and_no_bound_is_below_it(problem: SelectionProblem) -> None:
    optimum = brute_force(problem)
    # relative to all that is seen: of what does not fit there may be far more
    tolerance = 1e-8 * max((problem.value(c, option) for c in problem.contenders for option in c.options), default=0.0)
    tolerance = max(tolerance, 1e-300)
    for algorithm in (exact, hull):
        selection = algorithm(problem)
        assert selection.value == pytest.approx(value_of(problem, selection), rel=1e-12, abs=1e-300)
        assert selection.value <= optimum + tolerance
        assert selection.bound >= optimum - tolerance
        assert selection.bound >= selection.value
        assert algorithm(problem) == selection, "the same problem gives the same choice"
    selection = exact(problem)
    assert selection.value >= optimum - tolerance
    assert selection.bound <= optimum + 2 * tolerance, "an optimum is proven"


@settings(max_examples=40)
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_jobs_and_options_means_nothing(problem: SelectionProblem, shuffle: random.Random) -> None:
    contenders = [replace(c, options=tuple(shuffle.sample(c.options, len(c.options)))) for c in problem.contenders]
    shuffle.shuffle(contenders)
    other = replace(problem, contenders=tuple(contenders))
    for algorithm in (exact, hull, weighted_greedy):
        assert algorithm(other) == algorithm(problem)


def many(seed: int, jobs: int, objective: Objective, gives: bool) -> SelectionProblem:
    """Jobs with ten options each in two resources; a fifth of what all could take is there."""
    draw = random.Random(seed)
    contenders, wanted = list[Contender](), 0.0
    for j in range(jobs):
        options = list[Option]()
        for i in range(10):
            cpu = float(draw.randint(-8 if gives else 1, 32))
            gain = draw.uniform(50, 500) * (max(cpu, 0.0) ** draw.uniform(0.3, 0.9) - 0.3)
            amounts = {"cpu": cpu, "memory_bytes": draw.randint(-8 if gives else 1, 64) * 2.0**28}
            options.append(Option(f"c{i}", amounts, max(0.05 * cpu, 0.01), gain, draw.uniform(500, 5000)))
        wanted += max(option.amounts["cpu"] for option in options)
        contenders.append(Contender(f"j{j}", 10 ** draw.uniform(5, 8), tuple(options), throughput=500.0 + j))
    free = {"cpu": wanted // 5, "memory_bytes": (wanted // 5) * 1.5 * 2**28}
    return SelectionProblem(tuple(contenders), free, objective)


@pytest.mark.proof
@pytest.mark.parametrize("gives", [False, True])
@pytest.mark.parametrize("objective", ["efficiency", "gain", "completion"])
def test_a_few_hundred_jobs_are_within_a_thousandth_of_the_optimum(objective: Objective, gives: bool) -> None:
    problem = many(3, 300, objective, gives)
    best, near = exact(problem), hull(problem)
    assert value_of(problem, best) == pytest.approx(best.value)
    assert value_of(problem, near) == pytest.approx(near.value)
    assert best.bound - best.value <= 1e-8 * best.bound
    assert 0.999 * best.value <= near.value <= best.value * (1 + 1e-9)
    assert best.value * (1 - 1e-9) <= near.bound <= best.value * 1.001
    assert weighted_greedy(problem).bound >= best.value * (1 - 1e-9)


def test_a_whole_cluster_of_equal_jobs_is_filled_to_the_last_core() -> None:
    option = Option("c", {"cpu": 3.0}, 1.0, 5.0, 100.0)
    problem = SelectionProblem(tuple(Contender(f"j{i}", 1e6, (option,)) for i in range(500)), {"cpu": 900.0}, "gain")
    for algorithm in (exact, hull):
        assert algorithm(problem).value == 1500.0


def test_what_the_solver_takes_for_fitting_is_left_when_it_does_not() -> None:
    """A byte too many is below any solver's tolerance."""
    pair = tuple(Contender(f"j{i}", 1e6, (Option("c", {"memory_bytes": 2.0**39}, 1.0, 5.0, 1.0),)) for i in range(2))
    assert exact(SelectionProblem(pair, {"memory_bytes": 2.0**40 - 1}, "gain")).value == 5.0
    assert exact(SelectionProblem(pair, {"memory_bytes": 2.0**40}, "gain")).value == 10.0


@pytest.mark.parametrize("algorithm", [hull, exact])
def test_edges(algorithm: SelectionAlgorithm) -> None:
    assert algorithm(SelectionProblem((), {"cpu": 1.0})) == Selection({}, 0.0, 0.0)
    bare = SelectionProblem((Contender("a", 1, ()), Contender("b", 1, (Option("0", {}, 1.0, 2.0, 1.0),))), {}, "gain")
    assert algorithm(bare).chosen == {"a": None, "b": "0"}
    with pytest.raises(InvalidValue, match="once"):
        algorithm(SelectionProblem((Contender("a", 1, ()), Contender("a", 1, ())), {}))


def test_they_are_installed_by_name_and_the_machine_has_the_same_default_as_every_command() -> None:
    assert {"exact", "exact-or-hull", "hull", "weighted-greedy"} <= set(SELECT.names())
    assert SELECT.named(SELECT.default) is ArbiterMachine().select is exact_or_hull


def gaining(free: dict[str, float], *jobs: list[tuple[tuple[float, ...], float]]) -> SelectionProblem:
    """Jobs whose options take amounts of the free resources, in their order, and bring a gain."""
    contenders = tuple(
        Contender(
            f"job-{j}",
            1e6,
            tuple(Option(str(i), dict(zip(free, amounts, strict=True)), 1.0, gain, 100.0)
                  for i, (amounts, gain) in enumerate(options)),
        )
        for j, options in enumerate(jobs)
    )  # fmt: skip
    return SelectionProblem(contenders, free, "gain")


EQUAL = gaining({"cpu_cores": 11.0}, *[[((1.0,), 2.0), ((8.0,), 14.0)]] * 6)
TWO_RESOURCES = gaining(
    {"cpu_cores": 12.0, "memory_bytes": 7.0},
    [((8.0, 4.0), 20.0), ((9.0, 5.0), 17.0)],
    [((6.0, 2.0), 12.0), ((2.0, 1.0), 3.0)],
    [((4.0, 5.0), 3.0), ((9.0, 1.0), 2.0)],
    [((5.0, 8.0), 11.0), ((8.0, 3.0), 8.0)],
    [((5.0, 7.0), 20.0), ((8.0, 8.0), 6.0)],
    [((8.0, 4.0), 20.0), ((2.0, 3.0), 8.0)],
)


@pytest.mark.parametrize("problem", [EQUAL, TWO_RESOURCES], ids=["equal jobs", "two resources"])
def test_the_default_proves_the_optimum_of_a_small_problem_that_the_greedy_walk_misses(
    problem: SelectionProblem,
) -> None:
    found = SELECT.named(SELECT.default)(problem)
    assert hull(problem).value < found.value == brute_force(problem)
    assert found.bound == pytest.approx(found.value)


def test_the_default_leaves_what_would_take_long_to_the_greedy_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and nodes limit the work, and no clock does: a replay decides the same."""
    thousand = gaining({"cpu_cores": 1830.0}, *[[((1.0,), 2.0), ((8.0,), 14.0)]] * 1000)
    monkeypatch.setattr(proving, "milp", None)
    found = exact_or_hull(thousand)
    assert (found.value, found.bound) == pytest.approx((hull(thousand).value, hull(thousand).bound))
    assert found.value < found.bound


def test_where_the_solver_may_look_no_further_what_is_proven_by_then_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is one of nodes: with one of seconds, a busy machine decided otherwise than an idle one."""
    draw = random.Random(4)
    contenders = tuple(
        Contender(
            f"j{j}",
            1e6,
            tuple(
                Option(f"{i}", {"cpu_cores": draw.uniform(1, 32), "memory_bytes": draw.uniform(1, 64)}, 1.0, gain, 1e3)
                for i, gain in enumerate(draw.uniform(100, 110) for _ in range(3))
            ),
        )
        for j in range(15)
    )
    problem = SelectionProblem(contenders, {"cpu_cores": 60.0, "memory_bytes": 120.0}, "gain")
    optimum = exact(problem)
    monkeypatch.setattr(proving, "SHORT", Effort(rows=None, nodes=1))
    limited = exact_or_hull(problem)
    assert limited == exact_or_hull(problem)
    assert limited.value <= optimum.value <= limited.bound
    assert limited.bound - limited.value > 1e-3 > optimum.bound - optimum.value
    assert limited.value == pytest.approx(value_of(problem, limited))

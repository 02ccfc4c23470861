"""ModelArts' allocator: no plan is better than the bound, small instances are solved as brute force does."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from stretto_core.algorithms import ALLOCATE
from stretto_core.arbiter.ahead import Allocation, AllocationProblem, ElasticJob
from stretto_core.arbiter.ahead.certified import certified
from stretto_core.arbiter.ahead.level_method import TOLERANCE, least_bound
from stretto_core.arbiter.ahead.milp import big_m, one_hot
from stretto_core.arbiter.ahead.responses import Responses
from stretto_messages.base import InvalidValue

EXACT = (one_hot, big_m)
INEXACT = ("certified", "greedy", "greedy-once", "marginal-doubling")


@st.composite
def problems(draw: st.DrawFn, jobs_max: int, steps_max: int) -> AllocationProblem:
    sizes = tuple(draw(st.sampled_from([(1, 2), (1, 2, 4), (2, 4), (1, 3, 8)])))
    jobs: list[ElasticJob] = []
    for index in range(draw(st.integers(1, jobs_max))):
        low = draw(st.sampled_from([0, 0, 1, sizes[0]]))
        high = draw(st.sampled_from([size for size in sizes if size >= low]))
        demand = round(draw(st.floats(0.02, 3.0)), 3)
        jobs.append(ElasticJob(f"j{index}", demand, low, high, draw(st.integers(0, 4)), draw(st.floats(0, 1e4))))
    steps = draw(st.integers(1, steps_max))
    return AllocationProblem(tuple(jobs), draw(st.integers(0, 12)), steps, 1 / 12, sizes)


def best_of_all(problem: AllocationProblem) -> float:
    """By trying every plan, step by step as the paper writes it."""
    jobs = [
        [
            (plan, sum(min(problem.step_hours * sum(map(problem.speed, plan[: t + 1])) / job.demand_node_hours, 1)
                       for t in range(problem.steps)))
            for plan in product(problem.allowed(job), repeat=problem.steps)
        ]
        for job in problem.jobs
    ]  # fmt: skip
    best = -math.inf
    for choice in product(*jobs):
        used = np.sum([plan for plan, _ in choice], axis=0)
        if (used <= problem.nodes).all():
            best = max(best, sum(value for _, value in choice))
    return best


def check(problem: AllocationProblem, found: Allocation, queued: bool = False) -> None:
    """``queued``: a job that waits has 0 nodes, whatever it may have."""
    assert (found.plan.sum(axis=0) <= problem.nodes).all()
    for job, row in zip(problem.jobs, found.plan, strict=True):
        assert set(map(int, row)) <= {*problem.allowed(job), *([0] if queued else [])}
    assert math.isclose(found.objective, math.fsum(problem.value(found.plan)))
    assert found.objective <= found.bound


@settings(max_examples=40)
@given(problems(3, 2))
def test_the_programmes_find_what_brute_force_finds_and_no_bound_is_below_it(problem: AllocationProblem) -> None:
    if problem.infeasible():
        assert best_of_all(problem) == -math.inf
        return
    best = best_of_all(problem)
    for solve in EXACT:
        found = solve(problem)
        check(problem, found)
        assert math.isclose(found.objective, best, rel_tol=1e-5, abs_tol=1e-9), solve
        assert found.bound >= best - 1e-6
    assert certified(problem).bound >= best - 1e-9


@settings(max_examples=60)
@given(problems(8, 5))
def test_every_allocator_keeps_to_the_capacity_and_stays_below_the_bound(problem: AllocationProblem) -> None:
    if problem.infeasible():
        return
    bound = certified(problem).bound
    for name in INEXACT:
        found = ALLOCATE.named(name)(problem)
        check(problem, found, queued=name.startswith("greedy"))
        waits = any(row[0] not in problem.allowed(job) for job, row in zip(problem.jobs, found.plan, strict=True))
        assert waits or found.objective <= bound + 1e-9, name


@settings(max_examples=30)
@given(problems(7, 3), st.permutations(range(7)))
def test_the_order_of_the_jobs_changes_no_bound(problem: AllocationProblem, order: list[int]) -> None:
    if problem.infeasible():
        return
    turned = AllocationProblem(
        tuple(problem.jobs[i] for i in order if i < len(problem.jobs)),
        problem.nodes,
        problem.steps,
        problem.step_hours,
        problem.sizes,
    )
    one, other = certified(problem), certified(turned)
    assert math.isclose(one.bound, other.bound, rel_tol=1e-9, abs_tol=1e-12)
    assert np.array_equal(one.plan, certified(problem).plan), "the same problem, the same plan"


def many(jobs: int, nodes: int, least: int) -> AllocationProblem:
    random = np.random.default_rng(5)
    return AllocationProblem(
        tuple(
            ElasticJob(f"j{i}", float(random.lognormal(1, 1.2)), least, int(random.choice([1, 2, 4, 8, 16])))
            for i in range(jobs)
        ),
        nodes,
    )


@pytest.mark.parametrize(("jobs", "nodes", "least", "gap"), [(150, 300, 1, 0.005), (1000, 2500, 1, 0.005),
                                                            (600, 300, 0, 0.01)])  # fmt: skip
def test_among_many_jobs_little_is_left_to_gain(jobs: int, nodes: int, least: int, gap: float) -> None:
    found = certified(many(jobs, nodes, least))
    check(many(jobs, nodes, least), found)
    assert found.bound - found.objective <= gap * found.bound


def short_and_long(jobs: int, kind: str) -> AllocationProblem:
    """An overload whose demands span three decades: most jobs are short, many need a fraction of one step."""
    random = np.random.default_rng(1)
    if kind == "pareto":
        demands = np.minimum(0.02 * (1 + random.pareto(0.8, jobs)), 50.0)
    else:
        demands = 0.01 * 1000 ** (random.random(jobs) ** 3)
    return AllocationProblem(tuple(ElasticJob(f"j{i}", float(d), 0, 16) for i, d in enumerate(demands)), jobs // 2)


@pytest.mark.parametrize("kind", ["pareto", "cubed"])
@pytest.mark.parametrize("jobs", [150, 1000, 4000])
def test_many_short_jobs_in_overload_leave_a_gap_below_one_percent(jobs: int, kind: str) -> None:
    """At the best prices whole groups of short jobs are indifferent between two steps: no price clears."""
    problem = short_and_long(jobs, kind)
    found = certified(problem)
    check(problem, found)
    assert found.bound - found.objective <= 0.005 * found.bound


def best_mixture(problem: AllocationProblem) -> float:
    """The least Lagrangian bound by linear programming: its dual mixes all plans of every job."""
    cost, rows, owners = list[float](), list[list[int]](), list[int]()
    for index, job in enumerate(problem.jobs):
        for plan in product(problem.allowed(job), repeat=problem.steps):
            one = AllocationProblem((job,), problem.nodes, problem.steps, problem.step_hours, problem.sizes)
            cost.append(-float(one.value(np.array([plan]))[0]))
            rows.append(list(plan))
            owners.append(index)
    each = np.equal.outer(np.arange(len(problem.jobs)), owners).astype(float)
    found = linprog(
        cost, A_ub=np.array(rows).T, b_ub=np.full(problem.steps, problem.nodes), A_eq=each, b_eq=np.ones(len(each))
    )
    return -float(found.fun)


@settings(max_examples=40)
@given(problems(6, 3))
def test_the_level_method_ends_next_to_the_least_bound(problem: AllocationProblem) -> None:
    if problem.infeasible():
        return
    least = best_mixture(problem)
    start = np.ones((1, problem.steps))
    found = least_bound(Responses(problem), problem.nodes, start, 1.0)
    assert least - 1e-9 <= found.value <= least * (1 + 2 * TOLERANCE) + 1e-9
    assert math.isclose(found.weights.sum(), 1.0)
    taken = [Responses(problem).at(prices)[1].sum(axis=0) for prices in found.mixed_prices]
    if least > 1e-9:
        assert (found.weights @ np.array(taken) <= problem.nodes + 1e-3).all(), "the mixture fits on average"


def greedy_plan(nodes: int, name: str = "greedy", *jobs: tuple[int, float]) -> list[int]:
    problem = AllocationProblem(
        tuple(ElasticJob(f"j{i}", 100.0, 1, 16, now, trained) for i, (now, trained) in enumerate(jobs)), nodes
    )
    return [int(n) for n in ALLOCATE.named(name)(problem).plan[:, 0]]


def test_greedy_decides_the_paper_s_two_examples() -> None:
    assert greedy_plan(10, "greedy", (2, 900), (2, 720), (2, 300), (2, 60)) == [2, 2, 2, 4]
    assert greedy_plan(10, "greedy", (4, 900), (4, 720), (2, 300), (0, 0)) == [2, 4, 2, 2]


def test_greedy_s_two_readings_differ_in_the_queue() -> None:
    jobs = [(16, 900.0), (0, 0.0), (0, 0.0)]
    assert greedy_plan(16, "greedy-once", *jobs) == [8, 8, 0]
    assert greedy_plan(16, "greedy", *jobs) == [4, 8, 4]


def test_doubling_gives_every_job_something_and_small_ones_more() -> None:
    problem = AllocationProblem((ElasticJob("large", 50.0, 0, 16), ElasticJob("small", 1.0, 0, 16)), 12)
    assert ALLOCATE.named("marginal-doubling")(problem).first(problem) == {"large": 4, "small": 8}


def test_nothing_to_allocate_is_no_error_and_bad_values_are() -> None:
    empty = AllocationProblem((), 4)
    for name in ALLOCATE.names():
        assert ALLOCATE.named(name)(empty).objective == 0
    with pytest.raises(InvalidValue, match="job a: demand_node_hours is 0"):
        ElasticJob("a", 0, 1, 2)
    assert "take 2 nodes together, there are 1" in AllocationProblem((ElasticJob("a", 1, 2, 2),), 1).infeasible()
    assert "none of the sizes" in AllocationProblem((ElasticJob("a", 1, 3, 3),), 9).infeasible()

"""The Pareto front against brute force, and what a plan gains."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_core.fitter.regression import fit
from stretto_core.model.pareto import (
    CandidateProblem,
    Comparison,
    Overheads,
    Verified,
    exact_front,
    grid_within,
    pareto_indices,
    relative_error,
    thin,
    throughput_gain,
    weigh,
)
from stretto_core.model.throughput import Configuration, Measurement
from stretto_core.model.types import JobLimits, Prices
from stretto_messages.base import GIB
from stretto_messages.values import ExtendedPerPod, Plan, Resources, extended_of

GPU = "nvidia.com/gpu"


def model_of(seed: int):
    random = np.random.default_rng(seed)
    rows = [Configuration(int(w), int(p), 1.0, 1.0, 512) for w, p in random.integers(1, 6, (6, 2))]
    return fit([Measurement(row, float(random.uniform(0.02, 0.2)) / row.ps**0.3) for row in rows])


@given(
    st.lists(
        st.tuples(st.sampled_from([0.5, 1.0, 1.25, 2.0, 3.0, 100.0]), st.sampled_from([0.0, 1.0, 1.5, 2.0, 9.0])),
        min_size=1,
        max_size=40,
    )
)
def test_the_front_is_what_brute_force_finds(points: list[tuple[float, float]]) -> None:
    cost, gain = np.array([c for c, _ in points]), np.array([g for _, g in points])
    front = [(float(cost[i]), float(gain[i])) for i in pareto_indices(cost, gain)]
    expected = {(c, g) for c, g in points if not any((c2 <= c and g2 >= g) and (c2 < c or g2 > g) for c2, g2 in points)}
    assert set(front) == expected
    assert len(front) == len(expected), "one plan for each non-dominated pair"
    assert front == sorted(front), "cheapest first"


@settings(max_examples=30)
@given(
    st.integers(0, 10_000),
    st.floats(0.0, 0.1),
    st.floats(2.0, 30.0),
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(4, 20)),
)
def test_plans_on_the_front_stay_within_the_room_and_none_is_dominated(
    seed: int, memory_price: float, cores: float, gpus: tuple[int, int, int]
) -> None:
    limits = JobLimits(Plan(1, 1, 0.5, 0.5, GIB, GIB), Plan(6, 4, 2.0, 2.0, 4 * GIB, 4 * GIB))
    of_worker, of_ps, there = (extended_of({GPU: count}) for count in gpus)
    extended, room = ExtendedPerPod(of_worker, of_ps), Resources(cores, 24 * GIB, there)
    grid = grid_within(limits, room, extended=extended)
    problem = CandidateProblem(model_of(seed), 512, grid, Prices(0.04, memory_price, {GPU: 0.5}), room=room)
    front = exact_front(problem)
    speeds = problem.throughput().ravel()
    prices = np.broadcast_to(grid.cost_per_hour(problem.prices), grid.shape).ravel()
    allowed = [i for i in range(len(speeds)) if grid.plan(i).resources(extended).fits(room)]
    pairs = {(row.cost_per_hour, row.throughput) for row in front}
    for row in front:
        assert row.plan.resources(extended).fits(room)
        assert row.cost_per_hour == pytest.approx(problem.prices.cost_per_hour(row.plan.resources(extended)))
        assert limits.clamp(row.plan) == row.plan
    for i in allowed:
        dominated = np.any(
            (prices[allowed] <= prices[i])
            & (speeds[allowed] >= speeds[i])
            & ((prices[allowed] < prices[i]) | (speeds[allowed] > speeds[i]))
        )
        assert dominated != ((float(prices[i]), float(speeds[i])) in pairs)


def test_the_grid_holds_the_present_plan_and_keeps_the_embeddings_of_fewer_servers() -> None:
    limits = JobLimits(Plan(1, 1, 0.5, 0.5, GIB, GIB), Plan(64, 16, 32.0, 32.0, 64 * GIB, 8 * GIB))
    current = Plan(3, 4, 0.7, 0.9, 2 * GIB, 3 * GIB)
    grid = grid_within(limits, Resources(16, 64 * GIB), current)
    assert current.worker_cpu_cores in grid.worker_cpu_cores
    assert grid.ps_memory_bytes[grid.ps.index(4)] == 3 * GIB
    assert grid.ps_memory_bytes[grid.ps.index(2)] == 6 * GIB
    assert 1 not in grid.ps, "one server cannot hold what four hold now"
    assert max(grid.worker_cpu_cores) <= 16


def test_a_long_axis_is_thinned_to_whole_steps_within_its_ends() -> None:
    limits = JobLimits(Plan(1, 1, 0.5, 0.3, GIB, GIB), Plan(500, 16, 32.0, 31.9, GIB, GIB))
    grid = grid_within(limits, Resources(1e6, 10**15))
    assert len(grid.workers) <= 64
    assert (grid.workers[0], grid.workers[-1]) == (1, 500)
    assert (grid.worker_cpu_cores[0], grid.worker_cpu_cores[-1]) == (0.5, 32.0)
    assert all(cores * 2 == int(cores * 2) for cores in grid.worker_cpu_cores)
    assert (grid.ps_cpu_cores[0], grid.ps_cpu_cores[-1]) == (0.3, 31.9)


def test_a_measured_configuration_replaces_its_prediction() -> None:
    limits = JobLimits(Plan(1, 1, 1.0, 1.0, GIB, GIB), Plan(4, 2, 1.0, 1.0, GIB, GIB))
    known = Verified(Configuration(2, 1, 1.0, 1.0, 512), 123_456.0, 0.02)
    problem = CandidateProblem(model_of(1), 512, grid_within(limits, Resources(9, 9 * GIB)), Prices(), (known,))
    front = exact_front(problem)
    row = next(row for row in front if (row.plan.workers, row.plan.ps) == (2, 1))
    assert row.throughput == 123_456.0
    against = Comparison(front[0].plan, front[0].throughput, 1e7, Overheads())
    candidate = next(c for c in weigh(problem, front, against) if c.plan == row.plan)
    assert candidate.throughput_interval.low < 123_456.0 < candidate.throughput_interval.high
    assert relative_error(candidate) < 0.03


def test_overhead_makes_a_late_change_worthless() -> None:
    plan = Plan(1, 1, 1.0, 1.0, GIB, GIB)
    long_run = Comparison(plan, 100.0, 1e6, Overheads())
    short_run = Comparison(plan, 100.0, 1e3, Overheads())
    assert throughput_gain(150.0, long_run, 15.0) == pytest.approx(50.0, rel=0.01)
    assert throughput_gain(150.0, short_run, 15.0) < 0
    assert throughput_gain(150.0, Comparison(plan, 100.0, 0, Overheads()), 0.0) == -100.0


def test_thinning_keeps_both_ends() -> None:
    limits = JobLimits(Plan(1, 1, 0.5, 0.5, GIB, GIB), Plan(40, 8, 8.0, 8.0, GIB, GIB))
    problem = CandidateProblem(model_of(2), 512, grid_within(limits, Resources(300, 300 * GIB)), Prices())
    front = exact_front(problem)
    few = thin(front, 10)
    assert len(few) <= 10
    assert (few[0], few[-1]) == (front[0], front[-1])

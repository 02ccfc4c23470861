"""Bayesian optimisation of a placement, and what methods share that try one assignment after the other."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from stretto_core.planner.placement import DeviceType, Layer, PlacementProblem, exact, provision
from stretto_core.planner.placement.bayesian import bayesian
from stretto_core.planner.placement.trials import Trials


def drawn(layers: int, types: int, seed: int, limit: int | None = None, faster: float = 1.0) -> PlacementProblem:
    """A problem by a seed; type 0 is a slow, cheap CPU, which alone has the limit."""
    rng = np.random.default_rng(seed)
    speed = np.array([1.0, *rng.uniform(8, 40, types - 1)])

    def layer(index: int) -> Layer:
        sparse = rng.random() < 0.4
        compute_s = rng.uniform(0.05, 1.0) / (speed**0.1 if sparse else speed)
        shares = [tuple(rng.uniform(0.97, 0.999, types)) for _ in range(2)]
        transfer_s = rng.uniform(0.002, 0.05, types)
        return Layer(f"l{index}", "fc", tuple(compute_s), shares[0], tuple(transfer_s), shares[1])

    kinds = (DeviceType("cpu", 0.04, limit), *(DeviceType(f"gpu{i}", 2.42 / i) for i in range(1, types)))
    return PlacementProblem(tuple(layer(i) for i in range(layers)), kinds, 512, 4000 * faster, 1e9, seed)


@pytest.mark.proof
def test_it_finds_much_of_what_there_is_to_gain_and_says_what_it_costs() -> None:
    """Among the best twentieth of all assignments, and never below the optimum."""
    for seed in range(2):
        problem = drawn(5, 3, seed)
        found, best = bayesian(problem, rounds=15), exact(problem)
        assert found == bayesian(problem, rounds=15), "a seed decides"
        assert provision(problem, found.assignment) == found
        assert best.cost <= found.cost * (1 + 1e-9)
        every = [provision(problem, each) for each in product(range(3), repeat=5)]
        costs = np.array([each.cost for each in every if each is not None])
        assert found.cost <= np.quantile(costs, 0.05)


def test_it_tries_every_assignment_where_there_are_few() -> None:
    problem = drawn(2, 2, 5)
    found, best = bayesian(problem), exact(problem)
    assert math.isclose(found.cost, best.cost, rel_tol=1e-6)


def test_what_no_assignment_reaches_is_not_found() -> None:
    assert bayesian(drawn(3, 2, 1, faster=1e6), rounds=5) is None
    assert bayesian(drawn(3, 2, 1, faster=1e304), rounds=5) is None, "what is lacking is more than floats hold"


def test_what_cannot_be_had_comes_after_all_that_can_the_nearest_first() -> None:
    limited = drawn(4, 2, 2, limit=12)
    trials = Trials(limited)
    every = list(product(range(2), repeat=4))
    losses = trials.losses(every)
    had = np.array([math.isfinite(trials.cost(each)) for each in every])
    assert had.any()
    assert not had.all()
    assert losses[had].max() < losses[~had].min()
    lacks = np.array([trials.lacks(each) for each in every])
    assert (lacks[had] == 0).all()
    assert (np.argsort(losses[~had]) == np.argsort(lacks[~had])).all()
    assert math.isclose(trials.best.cost, min(trials.cost(each) for each in every))
    more = {each: Trials(drawn(4, 2, 2, limit=6)).lacks(each) for each in every}
    assert all(more[each] >= lack for each, lack in zip(every, lacks, strict=True)), "half the limit lacks no less"

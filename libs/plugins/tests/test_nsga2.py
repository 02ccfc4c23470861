"""NSGA-II beside the exact front."""

from __future__ import annotations

import pytest
from stretto_core.algorithms import PARETO
from stretto_core.fitter.regression import fit
from stretto_core.model.pareto import CandidateProblem, exact_front, grid_within
from stretto_core.model.throughput import Configuration, Measurement
from stretto_core.model.types import JobLimits, Prices
from stretto_messages.base import GIB
from stretto_messages.values import Plan, Resources


@pytest.fixture(scope="module")
def problem() -> CandidateProblem:
    measurements = [
        Measurement(Configuration(w, p, 1.0, 1.0, 512), 0.02 + 0.006 * w / p + 0.001 * w)
        for w in (1, 2, 4, 8)
        for p in (1, 2, 4)
    ]
    limits = JobLimits(Plan(1, 1, 0.5, 0.5, GIB, GIB), Plan(32, 8, 8.0, 8.0, GIB, GIB))
    room = Resources(96.0, 400 * GIB)
    return CandidateProblem(fit(measurements), 512, grid_within(limits, room), Prices(), room=room, seed=7)


@pytest.mark.slow
def test_nsga2_finds_much_of_the_exact_front_and_nothing_beyond_it(problem: CandidateProblem) -> None:
    nsga2 = PARETO.named("nsga2")
    found, exact = nsga2(problem), exact_front(problem)
    assert found == nsga2(problem), "a seed decides"
    assert len(found) > 10
    regrets = []
    for row in found:
        assert problem.room is not None
        assert row.plan.resources(problem.grid.extended).fits(problem.room)
        best = max(other.throughput for other in exact if other.cost_per_hour <= row.cost_per_hour + 1e-12)
        assert row.throughput <= best * (1 + 1e-9), "nothing is beyond the exact front"
        regrets.append(1 - row.throughput / best)
    assert sum(regrets) / len(regrets) < 0.05

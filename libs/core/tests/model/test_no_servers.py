"""Plans of jobs without parameter servers, whose terms are constants: finite figures, and no server in any plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stretto_core.fitter.regression import fit
from stretto_core.model.pareto import CandidateProblem, Verified, exact_front, grid_within, with_verified
from stretto_core.model.throughput import FORMS, Configuration, Inputs, Measurement
from stretto_core.model.types import JobLimits, Prices
from stretto_core.profiler.window import is_complete
from stretto_messages.base import GIB
from stretto_messages.values import NO_EXTENDED, Plan, Resources

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")
LIMITS = JobLimits(Plan(1, 1, 0.5, 0.001, GIB, 2**20), Plan(8, 1, 2.0, 0.001, GIB, 2**20))


def configuration(workers: int, cores: float) -> Configuration:
    return Configuration(workers, 1, cores, 0.001, 10)


@pytest.mark.parametrize("form", FORMS)
def test_the_front_of_a_job_without_servers_has_none(form: str) -> None:
    measured = [
        Measurement(configuration(workers, cores), 0.1 / cores + 0.01 * workers)
        for workers, cores in ((1, 0.5), (1, 1.0), (2, 1.0), (4, 1.0), (4, 2.0))
    ]
    model = fit(measured, form)
    grid = grid_within(LIMITS, Resources(8.0, 16 * GIB))
    known = Verified(configuration(2, 0.7), 100.0, 0.05)
    problem = CandidateProblem(model, 10, grid, Prices(), verified=(known,))
    front = with_verified(problem, exact_front(problem), LIMITS.low)
    assert {priced.plan.servers for priced in front} == {0}
    assert all(0 < priced.throughput < 1e6 for priced in front)
    assert model.log_sd(Inputs.of([configuration(8, 2.0)])).max() < 10


def test_a_plan_without_servers_costs_what_its_workers_cost() -> None:
    plan = Plan(3, 1, 2.0, 0.001, GIB, 2**20)
    assert plan.resources(NO_EXTENDED) == Resources(6.0, 3 * GIB), "the mark for no servers takes nothing"
    assert "PS" not in plan.describe()
    assert replace(plan, ps=2).servers == 2
    assert is_complete(replace(plan, workers=0), [], []), "a window without servers is one of the whole plan"

"""NSGA-II, the paper's candidate algorithm (DLRover-RM §4.3), by pymoo: a plug-in beside the exact front."""

from __future__ import annotations

import numpy as np
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.problem import Problem
from pymoo.operators.crossover.sbx import SBX
from pymoo.operators.mutation.pm import PM
from pymoo.operators.repair.rounding import RoundingRepair
from pymoo.operators.sampling.rnd import IntegerRandomSampling
from pymoo.optimize import minimize
from stretto_core.model.pareto import CandidateProblem, PricedPlan, pareto_indices

POPULATION = 100
GENERATIONS = 60


class _Grid(Problem):
    """One integer variable per axis: an index into the grid. Both objectives are minimised (Eq. 9)."""

    def __init__(self, problem: CandidateProblem) -> None:
        self.cost = np.broadcast_to(problem.grid.cost_per_hour(problem.prices), problem.grid.shape)
        self.throughput = problem.throughput()
        self.beyond = problem.beyond_room()
        upper = np.array(problem.grid.shape) - 1
        super().__init__(n_var=4, n_obj=2, n_ieq_constr=1, xl=np.zeros(4), xu=upper, vtype=int)

    def _evaluate(self, x: np.ndarray, out: dict, *args: object, **kwargs: object) -> None:
        at = tuple(x.astype(int).T)
        out["F"] = np.column_stack([self.cost[at], 1.0 / self.throughput[at]])
        out["G"] = self.beyond[at].astype(float)[:, None]


def nsga2(problem: CandidateProblem) -> list[PricedPlan]:
    """Return NSGA-II's front, cheapest first; deterministic for the problem's seed."""
    grid = _Grid(problem)
    algorithm = NSGA2(
        pop_size=POPULATION,
        sampling=IntegerRandomSampling(),
        crossover=SBX(prob=0.9, eta=3, vtype=float, repair=RoundingRepair()),
        mutation=PM(prob=0.5, eta=3, vtype=float, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )
    result = minimize(grid, algorithm, ("n_gen", GENERATIONS), seed=problem.seed % 2**31, verbose=False)
    if result.X is None:
        return []
    found = np.unique(np.atleast_2d(np.asarray(result.X)).astype(int), axis=0)
    flat = np.asarray(np.ravel_multi_index(tuple(found.T), problem.grid.shape))
    cost, speed = grid.cost.ravel()[flat], grid.throughput.ravel()[flat]
    kept = pareto_indices(cost, speed)
    return [PricedPlan(problem.grid.plan(int(flat[i])), float(speed[i]), float(cost[i])) for i in kept]

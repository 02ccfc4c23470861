"""A genetic algorithm over assignments of layers to types, one of HeterPS' baselines (§6.2)."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from pymoo.algorithms.soo.nonconvex.ga import GA
from pymoo.core.mutation import Mutation
from pymoo.core.problem import Problem
from pymoo.operators.crossover.pntx import TwoPointCrossover
from pymoo.operators.sampling.rnd import IntegerRandomSampling
from pymoo.optimize import minimize
from stretto_core.planner.placement import Placement, PlacementProblem
from stretto_core.planner.placement.trials import Trials

POPULATION, GENERATIONS = 50, 60


def genetic(problem: PlacementProblem, generations: int = GENERATIONS) -> Placement | None:
    """Return the best of all assignments tried; deterministic for the problem's seed.

    Runs of layers cross over (two points), layers mutate to any type. Infeasible assignments rank after all feasible
    ones, by their infeasibility.
    """
    trials = Trials(problem)
    crossover, mutation = cast(Any, TwoPointCrossover()), cast(Any, _Reset(len(problem.types)))
    algorithm = GA(
        pop_size=POPULATION,
        sampling=cast(Any, IntegerRandomSampling()),
        crossover=crossover,
        mutation=mutation,
        eliminate_duplicates=True,
    )
    minimize(_Assignments(trials), algorithm, ("n_gen", generations), seed=problem.seed % 2**31, verbose=False)
    return trials.best


class _Assignments(Problem):
    """One variable per layer, the index of its type."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        layers, kinds = len(trials.problem.layers), len(trials.problem.types)
        super().__init__(n_var=layers, n_obj=1, n_ieq_constr=1, xl=0, xu=kinds - 1, vtype=int)

    def _evaluate(self, x: NDArray[Any], out: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        tried = x.astype(int).tolist()
        costs = [self.trials.cost(each) for each in tried]
        out["F"] = np.array([[cost if math.isfinite(cost) else 0.0] for cost in costs])
        out["G"] = np.array([[self.trials.lacks(each)] for each in tried])


class _Reset(Mutation):
    """Each layer's type is drawn anew with pymoo's usual probability: types have no order in which to be near."""

    def __init__(self, kinds: int) -> None:
        super().__init__()
        self.kinds = kinds

    def _do(self, problem: Problem, X: NDArray[Any], *args: Any, random_state: Any = None, **kwargs: Any) -> Any:
        share = np.asarray(self.get_prob_var(problem, size=len(X)), dtype=np.float64)
        anew = random_state.random(X.shape) < share[:, None]
        return np.where(anew, random_state.integers(0, self.kinds, X.shape), X)

"""The record of methods that try assignments: the cost of each, or its infeasibility, and the best one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stretto_core.planner.placement.problem import Floats, Placement, PlacementProblem
from stretto_core.planner.placement.provisioning import Run, provision

LEAST_COST = 1e-12
"""Cost that stands for no cost: its logarithm is finite."""

LACK_MOST = 1e100
"""Largest lack that is told apart: its logarithm is finite, too."""


class Trials:
    """All assignments of a problem that were tried, each provisioned once; ``best`` is the cheapest placement."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.best: Placement | None = None
        self._costs = dict[tuple[int, ...], float]()
        self._lacks = dict[tuple[int, ...], float]()
        self._worst = -math.inf

    def cost(self, assignment: Sequence[int]) -> float:
        """Return the cost of an assignment at its best units; infinite if it is infeasible."""
        key = tuple(map(int, assignment))
        known = self._costs.get(key)
        if known is not None:
            return known
        found = provision(self.problem, key)
        cost = self._costs[key] = found.cost if found else math.inf
        if found is not None:
            self._worst = max(self._worst, _log(cost))
            if self.best is None or cost < self.best.cost:
                self.best = found
        return cost

    def lacks(self, assignment: Sequence[int]) -> float:
        """Return the infeasibility of an assignment, 0 if it is feasible.

        It sums, over stages, the excess of serial times relative to tau and, over types, that of units to limits.
        """
        if math.isfinite(self.cost(assignment)):
            return 0.0
        key = tuple(map(int, assignment))
        if key not in self._lacks:
            self._lacks[key] = self._lack(key)
        return self._lacks[key]

    def _lack(self, assignment: Sequence[int]) -> float:
        run, slowest_s = Run(self.problem, assignment), self.problem.slowest_s
        units = run.units(slowest_s)
        slow = ~np.isfinite(units)
        serial = np.maximum(run.serial, run.transfer_serial)[slow] / slowest_s
        over = float(np.maximum(serial - 1, 0).sum()) + int(slow.sum())
        for of, limit in run.limits:
            used = float(units[of & ~slow].sum())
            over += max(used / max(limit, 1) - (1 if limit else 0), 0.0)
        return over if over < LACK_MOST else LACK_MOST  # also where it is NaN

    def losses(self, assignments: Sequence[Sequence[int]]) -> Floats:
        """Return log costs; infeasible assignments rank after all feasible ones so far, by their infeasibility."""
        costs = [self.cost(assignment) for assignment in assignments]
        beyond = self._worst + 1 if math.isfinite(self._worst) else 0.0
        return np.array(
            [
                _log(cost) if math.isfinite(cost) else beyond + math.log1p(self.lacks(assignment))
                for cost, assignment in zip(costs, assignments, strict=True)
            ]
        )


def _log(cost: float) -> float:
    return math.log(max(cost, LEAST_COST))

"""How many units an assignment of layers to types gets: the throughput of least cost (HeterPS §5.1, made exact).

The cost is tau times the price of all units, which only changes where some stage needs one unit less. Over an interval
of tau each stage's tau k(tau) is least at its right end's k, as soon as that suffices; the sum of these bounds the
interval from below, and branch and bound over intervals finds the optimum.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from stretto_core.offline.placement.problem import Floats, Placement, PlacementProblem, Stage, runs_of, units_needed

PRECISION = 1e-9
"""relative: what is within it of the best is not looked for"""
LOOKS = 2000
"""at intervals: so many are needed only where next to nothing is left to gain"""


class Run:
    """The stages of one assignment, as arrays over them."""

    def __init__(self, problem: PlacementProblem, assignment: Sequence[int]) -> None:
        table = problem.table
        self.problem = problem
        self.stages = runs_of(assignment)
        kinds, firsts, lasts = (np.array(column) for column in zip(*self.stages, strict=True))
        self.kinds = kinds
        self.serial, self.parallel = table.serial[firsts, lasts, kinds], table.parallel[firsts, lasts, kinds]
        self.transfer_serial = table.transfer_serial[lasts, kinds]
        self.transfer_parallel = table.transfer_parallel[lasts, kinds]
        self.prices = problem.prices[kinds]
        self.limits = [(self.kinds == i, kind.limit) for i, kind in enumerate(problem.types) if kind.limit is not None]

    def units(self, tau_s: float) -> Floats:
        """The fewest units of each stage."""
        computing = units_needed(self.serial, self.parallel, tau_s)
        return np.maximum(computing, units_needed(self.transfer_serial, self.transfer_parallel, tau_s))

    def seconds(self, units: Floats) -> Floats:
        """What a batch takes in each stage."""
        computing = self.serial + self.parallel / units
        return np.maximum(computing, self.transfer_serial + self.transfer_parallel / units)

    def within(self, units: Floats) -> bool:
        """Whether no type's limit is exceeded."""
        return all(units[of].sum() <= limit for of, limit in self.limits)

    def placed(self, units: Floats, tau_s: float) -> Placement:
        """As a placement."""
        stages = tuple(
            Stage(kind, first, last, int(k)) for (kind, first, last), k in zip(self.stages, units, strict=True)
        )
        cost = self.problem.cost(tau_s, float(self.prices @ units))
        return Placement(stages, self.problem.profile_batch / tau_s, cost)


def provision(problem: PlacementProblem, assignment: Sequence[int], below: float = math.inf) -> Placement | None:
    """The placement of least cost with that type for each layer; None if it cannot be had, or not below that cost."""
    run = Run(problem, assignment)
    best: Placement | None = None
    least = below
    waiting = [(0.0, 0.0, problem.slowest_s)]
    for _ in range(LOOKS):
        if not waiting:
            break
        bound, low_s, high_s = heapq.heappop(waiting)
        if bound >= least * (1 - PRECISION):
            break
        units = run.units(high_s)
        if not np.isfinite(units).all() or not run.within(units):  # fewer are never needed for a smaller tau
            continue
        seconds = run.seconds(units)
        tau_s = float(seconds.max())
        cost = problem.cost(tau_s, float(run.prices @ units))
        if cost < least:
            least, best = cost, run.placed(units, tau_s)
        relaxed = problem.cost(1.0, float((run.prices * units) @ np.maximum(seconds, low_s)))
        if relaxed < least * (1 - PRECISION) and tau_s > low_s:
            for part in halves(low_s, math.nextafter(tau_s, 0.0)):
                heapq.heappush(waiting, (relaxed, *part))
    return best


def halves(low_s: float, high_s: float) -> list[tuple[float, float]]:
    """An interval in two, by ratio; what reaches to 0 is cut at a quarter."""
    middle_s = math.sqrt(low_s * high_s) if low_s > 0 else high_s / 4
    if not low_s < middle_s < high_s:
        return [(low_s, high_s)] if low_s < high_s else [(high_s, high_s)]
    return [(middle_s, high_s), (low_s, math.nextafter(middle_s, 0.0))]

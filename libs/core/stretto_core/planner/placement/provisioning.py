"""Provisioning: the units of an assignment of layers to types, at the least cost (HeterPS §5.1, made exact).

The cost is tau times the price of all units, which only changes where some stage needs one unit less. Over an interval
of tau each stage's tau k(tau) is least at its right end's k, as soon as that suffices; the sum of these bounds the
interval from below, and branch and bound over intervals finds the optimum.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np

from stretto_core.planner.placement.problem import Floats, Placement, PlacementProblem, Stage, runs_of, units_needed

PRECISION = 1e-9
"""Relative cost improvement that is not worth a search."""
LOOKS = 2000
"""Most intervals examined; only negligible gains need that many."""


class Run:
    """The stages of one assignment, as arrays."""

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
        """Return the fewest units of each stage."""
        computing = units_needed(self.serial, self.parallel, tau_s)
        return np.maximum(computing, units_needed(self.transfer_serial, self.transfer_parallel, tau_s))

    def seconds(self, units: Floats) -> Floats:
        """Return the seconds of a batch in each stage."""
        computing = self.serial + self.parallel / units
        return np.maximum(computing, self.transfer_serial + self.transfer_parallel / units)

    def within(self, units: Floats) -> bool:
        """Return whether the units are within the limit of every type."""
        return all(units[of].sum() <= limit for of, limit in self.limits)

    def placed(self, units: Floats, tau_s: float) -> Placement:
        """Return the placement with these units."""
        stages = tuple(
            Stage(kind, first, last, int(k)) for (kind, first, last), k in zip(self.stages, units, strict=True)
        )
        cost = self.problem.cost(tau_s, float(self.prices @ units))
        return Placement(stages, self.problem.profile_batch / tau_s, cost)


def provision(problem: PlacementProblem, assignment: Sequence[int], below: float = math.inf) -> Placement | None:
    """Return the placement of least cost for an assignment; None if there is none, or none below that cost."""
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
        if not np.isfinite(units).all() or not run.within(units):  # a smaller tau never needs fewer
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
    """Halve an interval by ratio; one that begins at 0 is cut at a quarter."""
    middle_s = math.sqrt(low_s * high_s) if low_s > 0 else high_s / 4
    if not low_s < middle_s < high_s:
        return [(low_s, high_s)] if low_s < high_s else [(high_s, high_s)]
    return [(middle_s, high_s), (low_s, math.nextafter(middle_s, 0.0))]

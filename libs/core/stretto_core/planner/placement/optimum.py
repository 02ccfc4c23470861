"""The proven optimum: a shortest path over (layer, type) for every interval of tau (HeterPS §4.2).

For one tau the units of a stage do not depend on the other stages, so the cheapest placement is a shortest path: the
problem is not NP-hard, as the paper has it, unless types are limited. Over an interval of tau each stage is given the
tau that suits it best (see ``provisioning``), which bounds all placements from below; branch and bound over intervals
closes the gap. Limits join each interval's path as prices (Lagrangian) and, where those leave a gap, as a search that
they guide (``capped``).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from stretto_core.planner.placement.capped import Caps, cheapest_within
from stretto_core.planner.placement.paths import cheapest_path
from stretto_core.planner.placement.problem import Floats, Placement, PlacementProblem
from stretto_core.planner.placement.provisioning import LOOKS, PRECISION, Run, halves, provision

STEPS = 250_000
"""Search steps in all, each a kept partial path; afterwards the best placement is returned with its gap."""

GLANCE, NARROW = 200, 1.02
"""Steps of search in an interval whose ends are further apart than this ratio: it is cheaper to cut it first."""


@dataclass(order=True, slots=True)
class _Part:
    """An interval of tau in seconds, and a lower bound on the cost of every placement in it."""

    bound: float
    low_s: float
    high_s: float


def exact(problem: PlacementProblem) -> Placement | None:
    """Return the placement of least cost, proven to a relative 1e-9.

    A search that takes more than ``LOOKS`` intervals, or with limits ``STEPS`` steps, is cut off: then ``bound`` tells
    the gap and ``optimal`` is False.
    """
    search = _Limited(problem) if problem.limited else _Unlimited(problem)
    waiting = [_Part(0.0, 0.0, problem.slowest_s)]
    while waiting and waiting[0].bound < search.enough and not search.exhausted:
        part = heapq.heappop(waiting)
        for smaller in search.look(part):
            heapq.heappush(waiting, smaller)
    if search.best is None:
        return None
    if search.exhausted and waiting:
        bound = waiting[0].bound
        search.keep(provision(problem, search.best.assignment, search.best.cost))
        if bound < search.enough:
            return replace(search.best, bound=bound)
    return replace(search.best, bound=search.best.cost, optimal=True)


class _Unlimited:
    """Search without limits: the relaxation of every interval is one shortest path."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.looks = 0
        self.prices = problem.prices
        self.best: Placement | None = None
        self.enough = math.inf
        """Cost above which no placement is of interest."""

    @property
    def exhausted(self) -> bool:
        """Return whether the search steps are used up."""
        return self.looks >= LOOKS

    def look(self, part: _Part) -> Iterator[_Part]:
        """Find a placement in the interval and its parts that may hold a better one."""
        _, weight = self.weights(part)
        path = cheapest_path(weight)
        if not math.isfinite(path.value):  # no placement is fast enough
            return
        run = Run(self.problem, path.assignment)
        needed = run.units(part.high_s)
        tau_s = float(run.seconds(needed).max())
        self.keep(run.placed(needed, tau_s))
        yield from self.parts(part, self.problem.cost(1.0, path.value), tau_s)

    def weights(self, part: _Part) -> tuple[Floats, Floats]:
        """Return units and price x seconds of every stage at its best tau in the interval, by [first, last, type]."""
        self.looks += 1
        units = self.problem.table.units(part.high_s)
        seconds = self.problem.table.seconds(units)
        with np.errstate(invalid="ignore"):
            weight = np.where(np.isfinite(units), self.prices * units * np.maximum(seconds, part.low_s), math.inf)
        return units, weight

    def keep(self, found: Placement | None) -> None:
        """Keep the placement if it is the best so far."""
        if found is not None and (self.best is None or found.cost < self.best.cost):
            self.best = found
            self.enough = found.cost * (1 - PRECISION)

    def parts(self, part: _Part, relaxed: float, tau_s: float) -> Iterator[_Part]:
        """Cut at the tau of the placement found, where its bound becomes exact, and in the middle."""
        bound = max(part.bound, relaxed)
        if bound >= self.enough or part.low_s >= part.high_s:
            return
        if part.low_s < tau_s <= part.high_s:
            yield _Part(bound, tau_s, part.high_s)
            intervals = halves(part.low_s, math.nextafter(tau_s, 0.0))
        else:
            intervals = halves(part.low_s, part.high_s)
        for low_s, high_s in intervals:
            yield _Part(bound, low_s, high_s)


class _Limited(_Unlimited):
    """Search with limits: the relaxation of every interval is a shortest path within them."""

    def __init__(self, problem: PlacementProblem) -> None:
        super().__init__(problem)
        self.caps = Caps.of(problem.types)
        self.seen = set[tuple[int, ...]]()
        self.left = STEPS

    @property
    def exhausted(self) -> bool:
        return self.left <= 0 or super().exhausted

    def look(self, part: _Part) -> Iterator[_Part]:
        """Search the interval; provision every new assignment on the way."""
        units, weight = self.weights(part)
        enough = self.enough / self.problem.cost(1.0, 1.0)
        narrow = part.high_s <= part.low_s * NARROW
        path = cheapest_within(weight, units, self.caps, enough, self.left if narrow else min(self.left, GLANCE))
        self.left -= path.steps
        for assignment in path.met:
            if assignment not in self.seen:
                self.seen.add(assignment)
                self.keep(provision(self.problem, assignment, self.enough))
        if not math.isfinite(path.bound):
            return
        tau_s = math.inf
        if path.assignment:
            run = Run(self.problem, path.assignment)
            tau_s = float(run.seconds(run.units(part.high_s)).max())
        yield from self.parts(part, self.problem.cost(1.0, path.bound), tau_s)

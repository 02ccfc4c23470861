"""Minimise the Lagrangian bound over the prices of the steps: a level bundle method, exact up to a tolerance.

The bound is convex and piecewise linear in the prices. Every evaluation gives a cut: a linear function that is at most
the bound everywhere, because the plan that jobs chose at one price is open to them at every price. With c the value of
that plan and w the nodes that it takes in each step, the cut is c + (nodes - w) · prices.

A search step looks for prices nearest to the best known ones at which all cuts are at most a *level* between the best
bound found and the lower limit (Lemaréchal, Nemirovskii and Nesterov, 1995). If there are none, Farkas' lemma gives
weights of the cuts that prove it. The level is then a lower limit on every bound, so the search ends with a proof of
how near it is. The same weights mix the plans of the cuts into one that takes, on average, no more nodes than there
are and is worth at least the level: a solution of the Dantzig-Wolfe master problem.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from stretto_core.arbiter.ahead.problem import Floats
from stretto_core.arbiter.ahead.responses import Responses

TOLERANCE = 1e-3
"""Relative distance of the bound from the least one at which the search ends."""
EVALUATIONS_MAX = 60
"""Most evaluations of the bound; with five steps ahead 15 to 40 reach the tolerance (measured: 150 to 10,000 jobs,
smooth and heavy-tailed demands)."""
LEVEL = 0.3
"""Position of the level between the lower limit and the best bound; 0.2 to 0.5 make little difference."""
NO_POINT = 1e-6
"""Residual of the least-distance problem below which it counts as infeasible: a solution would need prices a million
times the usual ones."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The least upper bound found, its prices, and the mixture of plans that comes closest to it.

    ``mixed_prices`` has a row of prices for each plan of the mixture, ``weights`` its share.
    """

    value: float
    prices: Floats
    mixed_prices: Floats
    weights: Floats


def least_bound(responses: Responses, nodes: float, starts: Floats, scale: float) -> Bound:
    """Search from ``starts``, one row of prices each. ``scale`` is the typical size of a price."""
    search = _LevelSearch(nodes, scale)
    for start in starts:
        search.add(start, *_totals(responses, start))
    while len(search.points) < EVALUATIONS_MAX and (point := search.next_point()) is not None:
        search.add(point, *_totals(responses, point))
    return search.found()


def _totals(responses: Responses, prices: Floats) -> tuple[float, Floats]:
    """The jobs' gain at these prices and the nodes that they take by step."""
    gain, plan = responses.at(prices)
    return gain, plan.sum(axis=0).astype(np.float64)


class _LevelSearch:
    """The cuts so far and what follows from them."""

    def __init__(self, nodes: float, scale: float) -> None:
        self.nodes = nodes
        self.scale = scale
        self.points: list[Floats] = []
        self._slopes: list[Floats] = []
        self._values: list[float] = []
        self._best = np.inf
        self._best_point = np.zeros(0)
        self._lower = 0.0  # no plan is worth less than nothing
        self._weights = np.ones(1)

    def add(self, point: Floats, gain: float, taken: Floats) -> None:
        """Note an evaluation at ``point``."""
        slope = self.nodes - taken
        bound = gain + self.nodes * float(point.sum())
        self.points.append(point)
        self._slopes.append(slope)
        self._values.append(bound - float(slope @ point))
        if bound < self._best:
            self._best, self._best_point = bound, point

    def next_point(self) -> Floats | None:
        """Return the prices to evaluate next, or None once the best bound is proven to be near the least one."""
        slopes, values = np.array(self._slopes), np.array(self._values)
        unit = np.maximum(self._best_point, 1e-3 * self.scale)
        while self._best - self._lower > TOLERANCE * self._best:
            level = self._lower + LEVEL * (self._best - self._lower)
            try:
                step, weights = _nearest(
                    slopes * unit, level - values - slopes @ self._best_point, self._best_point / unit
                )
            except RuntimeError:  # NNLS gives up: the bound found so far stays true
                return None
            if step is not None:
                return np.maximum(self._best_point + unit * step, 0.0)
            self._lower = level
            self._weights = weights / weights.sum()
        return None

    def found(self) -> Bound:
        """Return the best bound and the mixture that proves the lower limit."""
        weights = np.zeros(len(self.points))
        weights[: len(self._weights)] = self._weights
        used = np.flatnonzero(weights > 0)
        return Bound(self._best, self._best_point, np.array(self.points)[used], weights[used])


def _nearest(slopes: Floats, room: Floats, down: Floats) -> tuple[Floats | None, Floats]:
    """Return the shortest x with slopes @ x <= room and x >= -down, or None, and the multipliers of the slopes.

    Least-distance programming reduces to non-negative least squares (Lawson and Hanson, 1974, chapter 23). Where
    there is no x, the multipliers prove it: slopes.T @ multipliers >= 0 and room @ multipliers < 0.
    """
    norms = np.maximum(np.abs(slopes).max(axis=1), 1e-300)
    rows = np.vstack([slopes / norms[:, None], -np.eye(len(down))])
    limits = np.concatenate([room / norms, down])
    left = np.vstack([-rows.T, -limits])
    right = np.zeros(len(left))
    right[-1] = 1.0
    multipliers, distance = nnls(left, right)
    weights = multipliers[: len(slopes)] / norms
    if distance < NO_POINT:
        return None, weights
    residual = left @ multipliers - right
    return -residual[:-1] / residual[-1], weights

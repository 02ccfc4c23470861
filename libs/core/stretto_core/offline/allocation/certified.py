"""The default allocator: prices of the nodes, what jobs take at them, and what is left handed out by marginal value.

Prices of the steps that nearly clear the capacity are found on a sample of the jobs, then on all. The Lagrangian at
every price is an upper bound; the jobs' responses at the best one, mended to fit and filled up, are the plan. The gap
between the two is reported: it falls with the number of jobs, as one job's size matters less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto_core.offline.allocation.filling import Filling
from stretto_core.offline.allocation.problem import Allocation, AllocationProblem, Floats, Ints
from stretto_core.offline.allocation.responses import Responses

SAMPLE = 400
ROUNDS = 24
CLEARED = 0.01
"""share of the nodes that the jobs may ask too many or too few: prices are looked for no further"""
SETTLED = 1e-3
"""relative gain of the bound in two rounds that is not worth another"""


def certified(problem: AllocationProblem) -> Allocation:
    """A plan within a fraction of a per cent of the optimum, and the bound that shows it."""
    if not problem.jobs:
        return Allocation.none(problem)
    count, prices, width = len(problem.jobs), _first_prices(problem), 0.5
    if count > 2 * SAMPLE:
        sample = Responses(problem, np.linspace(0, count - 1, SAMPLE).astype(np.int64))
        prices = _priced(sample, problem.nodes * SAMPLE / count, prices, width).prices
        width = 0.02
    priced = _priced(Responses(problem), problem.nodes, prices, width)
    filling = Filling(problem, priced.plan)
    filling.shrink()
    filling.fill()
    return Allocation.of(problem, filling.plan, priced.bound)


def _first_prices(problem: AllocationProblem) -> Floats:
    """As if every job trained through to the end on the same share of the nodes: a step counts in all that follow."""
    demand = np.array([job.demand_node_hours for job in problem.jobs])
    share = max(problem.nodes / len(problem.jobs), 1.0)
    marginal = problem.speed(2 * share) - problem.speed(share)
    typical = problem.step_hours * marginal / share / float(np.median(demand))
    return typical * np.arange(problem.steps, 0, -1, dtype=np.float64)


@dataclass(slots=True)
class _Priced:
    """Prices by step, what they prove, and what the jobs would take at those that come nearest to clearing."""

    prices: Floats
    bound: float
    plan: Ints


def _priced(responses: Responses, nodes: float, prices: Floats, width: float) -> _Priced:
    """Look for prices at which the jobs take just the nodes that there are.

    Each step's price moves by a ratio of its own, which halves whenever it turns back (as in Rprop).
    """
    best, nearest = _Priced(prices, np.inf, np.zeros((0, len(prices)), dtype=np.int64)), np.inf
    widths, before = np.full_like(prices, width), np.zeros_like(prices)
    bounds = list[float]()
    for _ in range(ROUNDS):
        value, wanted = responses.at(prices)
        bound = value + float(prices.sum()) * nodes
        if bound < best.bound:
            best.prices, best.bound = prices, bound
        over = wanted.sum(axis=0) / max(nodes, 1e-9) - 1
        if (off := float(np.abs(over).max())) < nearest:
            nearest, best.plan = off, wanted
        bounds.append(best.bound)
        if off < CLEARED or (len(bounds) > 2 and bounds[-3] - bounds[-1] < SETTLED * bounds[-1]):
            break
        widths *= np.where(np.sign(over) * before < 0, 0.5, 1.1)
        before = np.sign(over)
        prices = np.maximum(prices, 1e-12) * np.exp(widths * np.clip(4 * over, -1, 1))
    return best

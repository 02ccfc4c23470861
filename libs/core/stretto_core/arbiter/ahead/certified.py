"""The default allocator: node prices, the jobs' best plans at them, and idle nodes handed out by marginal value.

The Lagrangian at every price is an upper bound on every plan; the gap between it and the plan found is reported. It
falls with the number of jobs, as one job's size matters less.

1. Prices that nearly clear the capacity are found by following the excess demand, on a sample of the jobs, then on all.
   The jobs' responses at them, mended to fit and filled up, are the plan. Usually the bound shows it to be within GAP.
2. Otherwise many jobs are indifferent between steps at the same prices, as short jobs are: all of them change their
   mind at once and no price clears. A level method then finds the least bound with a proof (level_method.py), and the
   mixture of plans that belongs to it; each job gets one plan of the mixture, by its weights.
3. If the sample was not enough, the same happens on all jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto_core.arbiter.ahead.filling import Filling
from stretto_core.arbiter.ahead.level_method import Bound, least_bound
from stretto_core.arbiter.ahead.problem import Allocation, AllocationProblem, Floats, Ints
from stretto_core.arbiter.ahead.responses import Responses

GAP = 3e-3
"""Proven gap at which no better prices are looked for."""
SAMPLE = 400
ROUNDS = 24
CLEARED = 0.01
"""Excess demand, as a share of the nodes, at which prices count as clearing."""
SETTLED = 1e-3
"""Relative improvement of the bound in two rounds below which the rounds end."""
GOLDEN = (5**0.5 - 1) / 2
"""Golden ratio less 1: its multiples, modulo 1, are spread evenly at every length."""


def certified(problem: AllocationProblem) -> Allocation:
    """Return a plan within a fraction of a per cent of the optimum, and the bound that proves it."""
    if not problem.jobs:
        return Allocation.none(problem)
    search = _Search(problem)
    search.clear()
    if search.gap > GAP:
        search.bound_by(search.sample)
    if search.gap > GAP and search.sample is not search.everyone:
        search.bound_by(search.everyone)
    return Allocation.of(problem, search.plan, search.bound)


@dataclass(slots=True)
class _Priced:
    """Prices by step, the bound that they prove, and the jobs' plan at the prices nearest to clearing."""

    prices: Floats
    bound: float
    plan: Ints


class _Search:
    """The best plan and the least bound so far. Jobs are sorted by what they are, so that their order is no matter."""

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.jobs = _sorted(problem)
        self.everyone = self.sample = Responses(problem, self.jobs)
        if len(self.jobs) > 2 * SAMPLE:
            at = (np.arange(SAMPLE) + 0.5) * len(self.jobs) / SAMPLE
            self.sample = Responses(problem, self.jobs[at.astype(np.int64)])
        self.first_prices = _first_prices(problem)
        self.starts = self.first_prices[None]
        self.bound = np.inf
        self.objective = -np.inf
        self.plan: Ints = np.zeros((len(self.jobs), problem.steps), dtype=np.int64)

    @property
    def gap(self) -> float:
        """Proven distance of the plan from the best one, relative to the bound."""
        return (self.bound - self.objective) / self.bound if self.bound > 0 else 0.0

    def clear(self) -> None:
        """Follow the excess demand, on the sample first."""
        prices, width = self.first_prices, 0.5
        if self.sample is not self.everyone:
            prices, width = _priced(self.sample, self._nodes_of(self.sample), prices, width).prices, 0.02
        priced = _priced(self.everyone, self.problem.nodes, prices, width)
        self.bound = priced.bound
        self._try(priced.plan)
        self.starts = priced.prices[None]

    def bound_by(self, responses: Responses) -> None:
        """Look for the least bound of these jobs, and let all jobs choose at the prices that prove it."""
        found = least_bound(responses, self._nodes_of(responses), self.starts, float(self.first_prices.max()))
        gain, _ = self.everyone.at(found.prices)
        self.bound = min(self.bound, gain + float(found.prices.sum()) * self.problem.nodes)
        self._try(self.everyone.at(_by_job(found, len(self.jobs)))[1])
        self.starts = np.vstack([found.prices, found.mixed_prices])

    def _nodes_of(self, responses: Responses) -> float:
        """Return the share of the pool for these jobs."""
        return self.problem.nodes * responses.count / len(self.jobs)

    def _try(self, chosen: Ints) -> None:
        """Mend what the sorted jobs chose and keep it if it is the best plan so far."""
        plan = np.empty_like(chosen)
        plan[self.jobs] = chosen
        filling = Filling(self.problem, plan)
        filling.shrink()
        filling.fill()
        objective = float(self.problem.value(filling.plan).sum())
        if objective > self.objective:
            self.objective, self.plan = objective, filling.plan


def _sorted(problem: AllocationProblem) -> Ints:
    """Return the jobs sorted by limits, then by demand: neighbours are alike."""
    return np.lexsort(
        (
            [job.demand_node_hours for job in problem.jobs],
            [job.min_nodes for job in problem.jobs],
            [job.max_nodes for job in problem.jobs],
        )
    )


def _by_job(found: Bound, jobs: int) -> Floats:
    """Return prices by [job, step]: each job has those of one plan, and neighbours share the plans by weight."""
    spread = (np.arange(jobs) * GOLDEN + 0.5) % 1
    at = np.searchsorted(np.cumsum(found.weights), spread)
    return found.mixed_prices[np.minimum(at, len(found.weights) - 1)]


def _first_prices(problem: AllocationProblem) -> Floats:
    """Return the prices if all jobs trained to the end on equal shares: a step counts in all that follow.

    A node serves at most one whole job in a step.
    """
    demand = np.array([job.demand_node_hours for job in problem.jobs])
    share = max(problem.nodes / len(problem.jobs), 1.0)
    marginal = problem.speed(2 * share) - problem.speed(share)
    typical = problem.step_hours * marginal / share / float(np.median(demand))
    return min(typical, 1.0) * np.arange(problem.steps, 0, -1, dtype=np.float64)


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

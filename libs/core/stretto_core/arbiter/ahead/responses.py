"""Each job's best plan at given node prices: an exact dynamic programme for all jobs at once.

Before step t only the amount served of a job's past matters: the sizes that it had, not their order. So the
states are multisets of sizes (462 for 6 sizes and 5 steps), the same for all jobs. Subtracting what a step's nodes
cost at its price gives, summed over jobs, the Lagrangian of the capacity, an upper bound on every plan.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np

from stretto_core.arbiter.ahead.problem import AllocationProblem, Floats, Ints

BLOCK = 256
"""Jobs per block, so that the working arrays stay in the processor's cache."""


@lru_cache(maxsize=8)
def _states(options: int, steps: int) -> tuple[tuple[Ints, Ints], ...]:
    """Return, for 0..steps steps passed, the counts of each option and the next state, both by [state, option].

    After the last step there is no next state.
    """
    levels: list[dict[tuple[int, ...], int]] = []
    for passed in range(steps + 1):
        bags = combinations_with_replacement(range(options), passed)
        levels.append({bag: index for index, bag in enumerate(bags)})
    found: list[tuple[Ints, Ints]] = []
    for passed, level in enumerate(levels):
        counts = np.array([[bag.count(o) for o in range(options)] for bag in level], dtype=np.int64)
        after = np.zeros((len(level), 0 if passed == steps else options), dtype=np.int64)
        if passed < steps:
            following = levels[passed + 1]
            after = np.array([[following[tuple(sorted((*bag, o)))] for o in range(options)] for bag in level])
        found.append((counts.reshape(len(level), options), after))
    return tuple(found)


class Responses:
    """The jobs of one problem, prepared to respond to any prices."""

    def __init__(self, problem: AllocationProblem, jobs: Ints | None = None) -> None:
        every = [problem.jobs[i] for i in jobs] if jobs is not None else problem.jobs
        smallest = 0 if any(job.min_nodes == 0 for job in every) else 1
        self.sizes = np.array([0, *sorted(problem.sizes)][smallest:])
        self._speeds = np.array([problem.speed(int(n)) for n in self.sizes]) * problem.step_hours
        self._demand = np.array([job.demand_node_hours for job in every])
        low = np.array([job.min_nodes for job in every])
        high = np.array([job.max_nodes for job in every])
        self._barred = np.where((self.sizes[:, None] < low) | (self.sizes[:, None] > high), np.inf, 0.0)
        self._states = _states(len(self.sizes), problem.steps)
        self.count = len(every)
        width = min(len(every), BLOCK)
        self._worths = [np.empty((len(counts), width)) for counts, _ in self._states]
        self._other = np.empty_like(self._worths[-2])

    def at(self, prices: Floats) -> tuple[float, Ints]:
        """Return the jobs' value less the cost of their nodes, and their sizes by [job, step].

        ``prices`` are by step, or by [job, step] where jobs pay different ones.
        """
        value, plan = 0.0, np.empty((len(self._demand), len(self._states) - 1), dtype=np.int64)
        for begin in range(0, len(plan), BLOCK):
            block = slice(begin, begin + BLOCK)
            paid = prices[block].T if prices.ndim == 2 else prices[:, None]
            value += self._block(paid, block, plan[block])
        return value, plan

    def _block(self, prices: Floats, block: slice, plan: Ints) -> float:
        """Write the jobs' plan and return their gain; ``prices`` by [step, job] or, equal for all, [step, 1]."""
        demand, barred = self._demand[block], self._barred[:, block]
        jobs = len(demand)
        worths = [worth[:, :jobs] for worth in self._worths]
        costs = [self.sizes[:, None] * price + barred for price in prices]
        for passed in range(len(prices), -1, -1):
            counts, after = self._states[passed]
            worth = worths[passed]
            if passed == len(prices):
                worth[:] = 0.0
            else:
                self._best(worth, worths[passed + 1], after, costs[passed])
            if passed > 0:  # share served by now, added to all future value
                share = (counts @ self._speeds)[:, None] / demand
                worth += np.minimum(share, 1.0, out=share)
        state, every = np.zeros(jobs, dtype=np.int64), np.arange(jobs)
        for step, cost in enumerate(costs):
            after = self._states[step][1][state]
            option = (worths[step + 1][after.T, every] - cost).argmax(axis=0)
            plan[:, step] = self.sizes[option]
            state = after[every, option]
        return float(worths[0].sum())

    def _best(self, best: Floats, following: Floats, after: Ints, cost: Floats) -> None:
        """Write the value of the best option, less its cost, into ``best``."""
        other = self._other[: len(best), : best.shape[1]]
        np.subtract(following[after[:, 0]], cost[0], out=best)
        for option in range(1, len(cost)):
            np.take(following, after[:, option], axis=0, out=other, mode="clip")
            other -= cost[option]
            np.maximum(best, other, out=best)

"""What each job would take at given prices of the nodes: an exact dynamic programme for all jobs at once.

Before step t what matters of a job's past is how much it was served, so which sizes it had but not their order: the
states are multisets of sizes (462 for 6 sizes and 5 steps), the same for all jobs. Subtracting what a step's nodes
cost at its price gives, summed over jobs, the Lagrangian of the capacity, an upper bound on every plan.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from stretto_core.offline.allocation.problem import AllocationProblem, Floats, Ints

BLOCK = 512
"""jobs at a time, so that what is worked on stays in the processor's cache"""


@lru_cache(maxsize=8)
def _states(options: int, steps: int) -> tuple[tuple[Ints, Ints], ...]:
    """For each number of steps passed 0..steps: counts of each option by [state, option], and the state that one more
    step with an option leads to, by [state, option] (none after the last)."""
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
    """The jobs of one problem, ready to be asked at any prices."""

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
        self._kept = self._served(slice(None)) if len(every) <= BLOCK else None

    def at(self, prices: Floats) -> tuple[float, Ints]:
        """All jobs' value less what their nodes cost, and their sizes by [job, step]; ``prices`` are by step."""
        values, plans = 0.0, list[Ints]()
        for begin in range(0, len(self._demand), BLOCK):
            block = slice(begin, begin + BLOCK)
            value, plan = self._block(prices, self._kept or self._served(block), self._barred[:, block])
            values += value
            plans.append(plan)
        return values, np.concatenate(plans)

    def _served(self, block: slice) -> list[Floats]:
        """Share of the demand by [state, job], for each number of steps passed."""
        return [np.minimum((counts @ self._speeds)[:, None] / self._demand[block], 1.0) for counts, _ in self._states]

    def _block(self, prices: Floats, served: list[Floats], barred: Floats) -> tuple[float, Ints]:
        steps, jobs = len(prices), barred.shape[1]
        best = np.zeros((len(self._states[steps][0]), jobs))  # what can still be had, by [state, job]
        chosen: list[NDArray[np.int8]] = []
        for step in range(steps - 1, -1, -1):
            worth = served[step + 1] + best
            after = self._states[step][1]
            paid = self.sizes[:, None] * prices[step] + barred
            best = worth[after[:, 0]] - paid[0]
            choice = np.zeros(best.shape, dtype=np.int8)
            for option in range(1, len(self.sizes)):
                other = worth[after[:, option]]
                other -= paid[option]
                choice[other > best] = option
                np.maximum(best, other, out=best)
            chosen.append(choice)
        plan = np.empty((jobs, steps), dtype=np.int64)
        state, every = np.zeros(jobs, dtype=np.int64), np.arange(jobs)
        for step, choice in enumerate(reversed(chosen)):
            option = choice[state, every]
            plan[:, step] = self.sizes[option]
            state = self._states[step][1][state, option]
        return float(best[0].sum()), plan

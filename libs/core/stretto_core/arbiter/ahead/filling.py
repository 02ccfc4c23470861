"""Repair a plan: shrink over-full steps, hand out free nodes by marginal value; vectorised over jobs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stretto_core.arbiter.ahead.problem import AllocationProblem, Floats, Ints

ROUNDS_MAX = 60


class Filling:
    """A plan under repair by [job, step], as indices into the sizes."""

    def __init__(self, problem: AllocationProblem, plan: Ints) -> None:
        self.nodes = problem.nodes
        self.sizes = np.array([0, *sorted(problem.sizes)])
        self.speeds = np.array([problem.speed(int(n)) for n in self.sizes]) * problem.step_hours
        self.demand = np.array([job.demand_node_hours for job in problem.jobs])[:, None]
        allowed = [problem.allowed(job) for job in problem.jobs]
        self.low = np.searchsorted(self.sizes, [sizes[0] for sizes in allowed])[:, None]
        self.high = np.searchsorted(self.sizes, [sizes[-1] for sizes in allowed])[:, None]
        self.at = np.searchsorted(self.sizes, plan)
        self.every = np.arange(len(problem.jobs))

    @property
    def plan(self) -> Ints:
        """Return nodes by [job, step]."""
        return self.sizes[self.at]

    @property
    def free(self) -> Ints:
        """Return the free nodes of each step; negative where too many are used."""
        return self.nodes - self.sizes[self.at].sum(axis=0)

    def shrink(self) -> None:
        """Take one size away where it loses least per node, until every step fits."""
        while (free := self.free).min() < 0:
            step = int(free.argmin())
            may = (self.at > self.low)[:, step]
            loss, freed = self._change(step, -1)
            density = np.where(may, -loss / np.maximum(-freed, 1), np.inf)
            order = np.argsort(density, kind="stable")
            enough = int(np.searchsorted(np.cumsum(-freed[order]), -free[step])) + 1
            # half at a time: a job that shrank may be the best to shrink again
            picked = order[: max(1, min(enough, int(may.sum()), (enough + 1) // 2 + 1))]
            self.at[picked, step] -= 1

    def fill(self) -> None:
        """Add sizes that fit and serve more, best per node first, one per job and round, while there are any."""
        for _ in range(ROUNDS_MAX):
            free = self.free
            if free.max() <= 0:
                return
            jobs, steps, densities = list[Ints](), list[Ints](), list[Floats]()
            for step in np.flatnonzero(free > 0):
                gain, taken = self._change(int(step), 1)
                useful = np.flatnonzero((self.at[:, step] < self.high[:, 0]) & (taken <= free[step]) & (gain > 1e-12))
                jobs.append(useful)
                steps.append(np.full(len(useful), step))
                densities.append(gain[useful] / taken[useful])
            if not self._take(np.concatenate(jobs), np.concatenate(steps), np.concatenate(densities), free):
                return

    def _take(self, jobs: Ints, steps: Ints, densities: Floats, free: Ints) -> bool:
        """Apply the best changes that fit, one per job; return whether there were any."""
        order = np.argsort(-densities, kind="stable")
        _, firsts = np.unique(jobs[order], return_index=True)
        order = order[np.sort(firsts)]
        changed = False
        for step in np.unique(steps):
            here = jobs[order[steps[order] == step]]
            more = self.sizes[self.at[here, step] + 1] - self.sizes[self.at[here, step]]
            fits = here[_fitting(more, int(free[step]))]
            self.at[fits, step] += 1
            changed |= len(fits) > 0
        return changed

    def _change(self, step: int, by: int) -> tuple[Floats, Ints]:
        """Return the change of each job's value and nodes for one size more or less in the step."""
        after = self.at.copy()
        after[:, step] = np.clip(after[:, step] + by, 0, len(self.sizes) - 1)
        return self._value(after) - self._value(self.at), self.sizes[after[:, step]] - self.sizes[self.at[:, step]]

    def _value(self, at: Ints) -> Floats:
        return np.minimum(np.cumsum(self.speeds[at], axis=1) / self.demand, 1.0).sum(axis=1)


def _fitting(amounts: Ints, free: int) -> NDArray[np.bool_]:
    """Return which amounts fit, taken in order beside the earlier ones that fit."""
    fits = np.cumsum(amounts) <= free
    if fits.all():
        return fits
    left = free - int(amounts[fits].sum())
    for index in np.flatnonzero(~fits):
        if left <= 0:
            break
        if amounts[index] <= left:
            fits[index] = True
            left -= int(amounts[index])
    return fits

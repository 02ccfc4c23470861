"""A plug-in: everybody gets the same share of the nodes, as far as sizes allow, in every step ahead."""

from __future__ import annotations

import numpy as np
from stretto_core.arbiter.ahead import Allocation, AllocationProblem
from stretto_sim.allocation import Policy


def equal_shares(problem: AllocationProblem) -> Allocation:
    """Job by job, an equal part of what the smallest sizes of all leave over."""
    sizes = [problem.allowed(job) for job in problem.jobs]
    nodes, spare = list[int](), problem.nodes - sum(allowed[0] for allowed in sizes)
    for waiting, allowed in zip(range(len(sizes), 0, -1), sizes, strict=True):
        nodes.append(max(size for size in allowed if size <= allowed[0] + spare // waiting))
        spare -= nodes[-1] - allowed[0]
    plan = np.repeat(np.array(nodes, dtype=np.int64)[:, None], problem.steps, axis=1)
    return Allocation.of(problem, plan)  # no bound is known; one that proves something gives it here


POLICY = Policy.of(equal_shares, periodic=False, on_change=True)

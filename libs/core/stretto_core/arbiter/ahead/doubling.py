"""Weighted marginal doubling: the job that gains most per node gets its nodes doubled.

The MILP of ModelArts counts progress within its horizon; what users wait for is the end of their job. For speeds that
grow as a power of the nodes the policy of least mean completion time gives small remaining jobs more than their share,
but all of them something, and how much depends on a job's rank among the remaining demands alone, not on the demand
(heSRPT; Berg, Vesilo and Harchol-Balter, SIGMETRICS 2020). Here sizes double, so nodes are handed out in doublings: by
what a doubling adds to the speed per node, times a power of the rank. As others will come, the power is below heSRPT's.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from stretto_core.arbiter.ahead.problem import Allocation, AllocationProblem

SMALL_FIRST = 0.3
"""Power of the rank, 1 for the largest remaining demand: 0 weighs all jobs alike, many make it shortest first."""


def marginal_doubling(problem: AllocationProblem) -> Allocation:
    """Give every job its smallest size, in the order of remaining demand while nodes last; then double."""
    nodes = hand_out(problem, [problem.allowed(job)[0] for job in problem.jobs])
    plan = np.repeat(np.array(nodes, dtype=np.int64)[:, None], problem.steps, axis=1)
    return Allocation.of(problem, plan)


def hand_out(problem: AllocationProblem, given: Sequence[int]) -> list[int]:
    """Return the nodes of each job after handing out what ``given`` leaves idle."""
    sizes, nodes = [problem.allowed(job) for job in problem.jobs], list(given)
    free = problem.nodes - sum(nodes)
    demands = [job.demand_node_hours for job in problem.jobs]
    by_demand = sorted(range(len(nodes)), key=lambda index: (-demands[index], -index))
    weights = {index: rank**SMALL_FIRST for rank, index in enumerate(by_demand, 1)}
    waiting: list[tuple[float, float, int, int]] = []

    def offer(index: int) -> None:
        """Queue the job's next size, by its speed per added node."""
        larger = next((size for size in sizes[index] if size > nodes[index]), None)
        if larger is not None:
            more = larger - nodes[index]
            added = (problem.speed(larger) - problem.speed(nodes[index])) / more
            # a job without nodes comes before all others
            first, by = (0.0, demands[index]) if nodes[index] == 0 else (1.0, -added * weights[index])
            heapq.heappush(waiting, (first, by, index, larger))

    for index in range(len(nodes)):
        offer(index)
    while waiting and free > 0:
        _, _, index, larger = heapq.heappop(waiting)
        if larger - nodes[index] <= free:
            free -= larger - nodes[index]
            nodes[index] = larger
            offer(index)
    return nodes

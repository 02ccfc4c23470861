"""Weighted marginal doubling: whoever gains most by it, for its size, gets its nodes doubled.

The MILP of ModelArts counts progress within its horizon; what users wait for is the end of their job. For speeds that
grow as a power of the nodes the policy of least mean completion time gives small remaining jobs more than their share,
but all of them something (heSRPT; Berg, Vesilo and Harchol-Balter, SIGMETRICS 2020). Here sizes double, so nodes are
handed out in doublings: by what a doubling adds to the speed per node, over the remaining demand to a power.
"""

from __future__ import annotations

import heapq

import numpy as np

from stretto_core.allocation.problem import Allocation, AllocationProblem

SMALL_FIRST = 0.5
"""power of the remaining demand: 0 weighs all jobs alike, 1 is shortest first as far as doubling goes"""


def marginal_doubling(problem: AllocationProblem) -> Allocation:
    """Every job its smallest size first, in the order of remaining demand while nodes last; then doublings."""
    sizes = [problem.allowed(job) for job in problem.jobs]
    nodes = [allowed[0] for allowed in sizes]
    free = problem.nodes - sum(nodes)
    waiting: list[tuple[float, float, int, int]] = []

    def offer(index: int) -> None:
        """The job's next size, by what it adds per node."""
        larger = next((size for size in sizes[index] if size > nodes[index]), None)
        if larger is not None:
            more = larger - nodes[index]
            added = (problem.speed(larger) - problem.speed(nodes[index])) / more
            demand = problem.jobs[index].demand_node_hours
            # one that has nothing comes before all that have something
            first = 0.0 if nodes[index] == 0 else 1.0
            heapq.heappush(waiting, (first, -added / demand**SMALL_FIRST if first else demand, index, larger))

    for index in range(len(nodes)):
        offer(index)
    while waiting and free > 0:
        _, _, index, larger = heapq.heappop(waiting)
        if larger - nodes[index] <= free:
            free -= larger - nodes[index]
            nodes[index] = larger
            offer(index)
    plan = np.repeat(np.array(nodes, dtype=np.int64)[:, None], problem.steps, axis=1)
    return Allocation.of(problem, plan)

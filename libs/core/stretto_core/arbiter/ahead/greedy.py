"""The greedy allocator that ModelArts replaced and compares with (§3): rules for the present, no look-ahead."""

from __future__ import annotations

import numpy as np

from stretto_core.arbiter.ahead.problem import Allocation, AllocationProblem


class _Pool:
    """The nodes of every job, and the idle ones."""

    def __init__(self, problem: AllocationProblem) -> None:
        self.problem = problem
        self.sizes = [problem.allowed(job) for job in problem.jobs]
        self.nodes = [self.at_most(i, job.current_nodes) for i, job in enumerate(problem.jobs)]
        # the pool may have shrunk: the last jobs of the queue lose their nodes
        for index in reversed(range(len(self.nodes))):
            if self.idle < 0:
                self.nodes[index] = 0

    @property
    def idle(self) -> int:
        return self.problem.nodes - sum(self.nodes)

    @property
    def queue(self) -> list[int]:
        return [index for index, nodes in enumerate(self.nodes) if nodes == 0]

    def at_most(self, index: int, nodes: int) -> int:
        """Return the largest size of the job within ``nodes``; 0 if there is none."""
        return max((size for size in self.sizes[index] if size <= nodes), default=0)

    def trained_s(self, index: int) -> float:
        return self.problem.jobs[index].trained_s

    def start(self) -> None:
        """Scenario 1: give idle nodes to the first in the queue, as many as it can have, then to the next."""
        for index in self.queue:
            if not (nodes := self.at_most(index, self.idle)):
                return
            self.nodes[index] = nodes

    def scale_up(self) -> None:
        """Scenario 2: give idle nodes to the job that has trained shortest, then to the next."""
        running = sorted(range(len(self.nodes)), key=lambda i: (self.trained_s(i), i))
        for index in running:
            self.nodes[index] = max(self.nodes[index], self.at_most(index, self.nodes[index] + self.idle))

    def scale_down(self) -> bool:
        """Scenario 3: give half of the job that has trained longest to the queue; return whether one could shrink."""
        for index in sorted(range(len(self.nodes)), key=lambda i: (-self.trained_s(i), i)):
            half = self.at_most(index, self.nodes[index] // 2)
            if half > 0:
                self.nodes[index] = half
                self.start()
                return True
        return False


def greedy(problem: AllocationProblem) -> Allocation:
    """Repeat scenario 3 until the queue is empty or no job can be halved."""
    return _decided(problem, len(problem.jobs) * 8)


def greedy_once(problem: AllocationProblem) -> Allocation:
    """Apply scenario 3 once per decision: the other reading of the paper."""
    return _decided(problem, 1)


def _decided(problem: AllocationProblem, halvings: int) -> Allocation:
    pool = _Pool(problem)
    pool.start()
    while pool.queue and halvings > 0 and pool.scale_down():
        halvings -= 1
    if not pool.queue:
        pool.scale_up()
    plan = np.repeat(np.array(pool.nodes, dtype=np.int64)[:, None], problem.steps, axis=1)
    return Allocation.of(problem, plan)

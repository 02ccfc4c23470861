"""Nodes of elastic jobs in the steps ahead: ModelArts' optimal resource allocator (§4).

In every step t a job has a size n, trains at speed(n) = n e^log2(n) (the doubling efficiency e is 0.8 in Fig. 6), and
has been served s(t) = min(d, s(t-1) + p speed(n)) of its demand d by the step's end (Eq. 19-20). The objective is the
sum over jobs and steps of s(t)/d (Eq. 1): what is served early counts in every later step again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from stretto_messages.base import InvalidValue

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A job that can train on ``min_nodes`` to ``max_nodes`` nodes; 0 are allowed if ``min_nodes`` is 0.

    ``current_nodes`` and ``trained_s`` (seconds of training so far) are for allocators that look at the present.
    """

    id: str
    demand_node_hours: float
    min_nodes: int
    max_nodes: int
    current_nodes: int = 0
    trained_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.demand_node_hours < math.inf:
            raise InvalidValue(f"job {self.id}: demand_node_hours is {self.demand_node_hours!r}; give more than 0")
        if not 0 <= self.min_nodes <= self.max_nodes:
            raise InvalidValue(
                f"job {self.id}: min_nodes {self.min_nodes} and max_nodes {self.max_nodes}; give 0 <= min <= max"
            )


@dataclass(frozen=True)
class AllocationProblem:
    """The input of an allocator: ``nodes`` for all jobs in each of ``steps`` steps of ``step_hours``.

    The order of ``jobs`` is the order in which they were submitted.
    """

    jobs: tuple[ElasticJob, ...]
    nodes: int
    steps: int = 5
    step_hours: float = 1 / 12
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    doubling_efficiency: float = 0.8

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or len(set(self.sizes)) < len(self.sizes):
            raise InvalidValue(f"sizes is {self.sizes!r}; give numbers of nodes of at least 1, each once")
        if self.nodes < 0 or self.steps < 1 or not 0 < self.step_hours < math.inf:
            raise InvalidValue(
                f"nodes {self.nodes}, steps {self.steps}, step_hours {self.step_hours}; give at least 0, 1 and above 0"
            )
        if not 0 < self.doubling_efficiency <= 1:
            raise InvalidValue(f"doubling_efficiency is {self.doubling_efficiency!r}; give more than 0, at most 1")

    def speed(self, nodes: float) -> float:
        """Return the node-hours served in an hour on ``nodes`` nodes."""
        return nodes * self.doubling_efficiency ** math.log2(nodes) if nodes > 0 else 0.0

    def allowed(self, job: ElasticJob) -> list[int]:
        """Return the sizes that the job may have, smallest first."""
        sizes = [size for size in sorted(self.sizes) if job.min_nodes <= size <= job.max_nodes]
        return [0, *sizes] if job.min_nodes == 0 else sizes

    def infeasible(self) -> str:
        """Return the reason why no plan is allowed; empty if one is."""
        if stuck := next((job for job in self.jobs if not self.allowed(job)), None):
            return (
                f"job {stuck.id} may have none of the sizes {list(self.sizes)}: it takes {stuck.min_nodes} to "
                f"{stuck.max_nodes} nodes"
            )
        least = sum(self.allowed(job)[0] for job in self.jobs)
        if least > self.nodes:
            return f"the jobs' smallest sizes take {least} nodes together, there are {self.nodes}"
        return ""

    def value(self, plan: Ints) -> Floats:
        """Return each job's part of the objective under a plan by [job, step]."""
        demand = np.array([job.demand_node_hours for job in self.jobs])
        speeds = np.array([self.speed(n) for n in range(int(plan.max(initial=0)) + 1)])
        served = np.minimum(np.cumsum(speeds[plan] * self.step_hours, axis=1) / demand[:, None], 1.0)
        return served.sum(axis=1)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Nodes by [job, step], the objective, and a proven upper bound on it (infinite if none is known)."""

    plan: Ints
    objective: float
    bound: float

    @staticmethod
    def of(problem: AllocationProblem, plan: Ints, bound: float = math.inf) -> Allocation:
        """Return the plan with its value."""
        objective = math.fsum(problem.value(plan))
        return Allocation(plan, objective, max(bound, objective))

    @staticmethod
    def none(problem: AllocationProblem) -> Allocation:
        """Return the plan of no jobs."""
        return Allocation(np.zeros((0, problem.steps), dtype=np.int64), 0.0, 0.0)

    def first(self, problem: AllocationProblem) -> dict[str, int]:
        """Return the nodes of each job in the first step, which is due now."""
        return {job.id: int(nodes) for job, nodes in zip(problem.jobs, self.plan[:, 0], strict=True)}


class Allocator(Protocol):
    """Algorithms of the kind ``allocate``; called only where ``infeasible`` is empty."""

    def __call__(self, problem: AllocationProblem) -> Allocation: ...

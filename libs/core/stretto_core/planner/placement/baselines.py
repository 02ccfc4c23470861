"""The methods that HeterPS §6.2 compares with, without libraries: each makes assignments, ``provision`` the rest.

Brute force tries all; greedy settles layer by layer; CPU and GPU use one type for all layers; the heuristic splits
after the first layer. Where a method's text leaves a choice (which of several types, which side the first layer is
on), the best one is taken: a baseline should not lose for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product

from stretto_messages.base import InvalidValue

from stretto_core.planner.placement.problem import Placement, PlacementProblem
from stretto_core.planner.placement.provisioning import provision

ASSIGNMENTS_MAX = 300_000
"""Most assignments that brute force tries: about a minute."""


def brute_force(problem: PlacementProblem) -> Placement | None:
    """Return the best of all assignments. Raises InvalidValue where there are too many of them."""
    kinds, layers = len(problem.types), len(problem.layers)
    if kinds**layers > ASSIGNMENTS_MAX:
        raise InvalidValue(
            f"layers x types: {kinds}^{layers} assignments are too many for brute-force; give at most "
            f"{ASSIGNMENTS_MAX}, or choose exact"
        )
    best = _best(problem, product(range(kinds), repeat=layers))
    return replace(best, bound=best.cost, optimal=True) if best else None


def greedy(problem: PlacementProblem) -> Placement | None:
    """Give each layer the type that makes the layers up to it cheapest."""
    chosen: tuple[int, ...] = ()
    for _ in problem.layers:
        beginnings = [(*chosen, kind) for kind in range(len(problem.types))]
        costs = [_cost(problem, beginning) for beginning in beginnings]
        chosen = beginnings[min(range(len(costs)), key=costs.__getitem__)]
    return provision(problem, chosen)


def cpu_only(problem: PlacementProblem) -> Placement | None:
    """Place all layers on the best type of CPU."""
    return _best(problem, _alike(problem, [kind.is_cpu for kind in problem.types]))


def gpu_only(problem: PlacementProblem) -> Placement | None:
    """Place all layers on the best type of accelerator."""
    return _best(problem, _alike(problem, [not kind.is_cpu for kind in problem.types]))


def heuristic(problem: PlacementProblem) -> Placement | None:
    """Place the first layer on a CPU and the rest on an accelerator, or the other way round."""
    rest = len(problem.layers) - 1
    pairs = [
        (one, *(other,) * rest)
        for one, other in product(range(len(problem.types)), repeat=2)
        if problem.types[one].is_cpu != problem.types[other].is_cpu
    ]
    return _best(problem, pairs)


def _alike(problem: PlacementProblem, allowed: Sequence[bool]) -> Iterable[tuple[int, ...]]:
    return [(kind,) * len(problem.layers) for kind, may in enumerate(allowed) if may]


def _best(problem: PlacementProblem, assignments: Iterable[Sequence[int]]) -> Placement | None:
    best: Placement | None = None
    for assignment in assignments:
        best = provision(problem, assignment, best.cost if best else math.inf) or best
    return best


def _cost(problem: PlacementProblem, assignment: Sequence[int]) -> float:
    """Return the cost of the first layers alone; infinite if they are too slow."""
    found = provision(problem, assignment)
    return found.cost if found else math.inf

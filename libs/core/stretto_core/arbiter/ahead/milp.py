"""The paper's programme as a mixed-integer one, solved by HiGHS: one binary per size, and the paper's own big-M form.

Both have the same optimum. The first has a variable x(i, t, k) = 1 if job i has size k in step t; the second is §4.4 to
the letter (constraints 16-20), for comparison: it is some ten times slower.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from stretto_core.arbiter.ahead.problem import Allocation, AllocationProblem, Floats
from stretto_core.machine import CoreError

TIME_LIMIT_S = 120.0
GAP = 1e-6


class NoPlanFound(CoreError):
    """The solver found no plan in its time."""


class _Rows:
    """Linear constraints, collected as (row, column, factor)."""

    def __init__(self) -> None:
        self.at: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        """Add the constraint low <= sum of factor x variable <= high."""
        row = len(self.low)
        self.at += [(row, column, factor) for column, factor in terms]
        self.low.append(low)
        self.high.append(high)

    def constraint(self, columns: int) -> LinearConstraint:
        rows, where, factors = zip(*self.at, strict=True)
        matrix = coo_array((factors, (rows, where)), shape=(len(self.low), columns)).tocsr()
        return LinearConstraint(matrix, np.array(self.low), np.array(self.high))  # type: ignore[arg-type]  # arrays


def one_hot(problem: AllocationProblem) -> Allocation:
    """Return the optimum over x(i, t, k) and s(i, t). Raises NoPlanFound."""
    if not problem.jobs:
        return Allocation.none(problem)
    rows = _Rows()
    cost, integral, high = list[float](), list[int](), list[float]()
    by_step: list[list[tuple[int, float]]] = [[] for _ in range(problem.steps)]
    sizes_at: list[tuple[int, int, int, int]] = []
    for index, job in enumerate(problem.jobs):
        before: int | None = None
        for step in range(problem.steps):
            served = len(cost)
            cost.append(-1.0 / job.demand_node_hours)
            integral.append(0)
            high.append(job.demand_node_hours)
            grows = [(served, 1.0), *([(before, -1.0)] if before is not None else [])]
            picks = list[tuple[int, float]]()
            for size in problem.allowed(job):
                column = len(cost)
                cost.append(0.0)
                integral.append(1)
                high.append(1.0)
                picks.append((column, 1.0))
                grows.append((column, -problem.step_hours * problem.speed(size)))
                by_step[step].append((column, float(size)))
                sizes_at.append((column, index, step, size))
            rows.add(picks, 1.0, 1.0)
            rows.add(grows, -np.inf, 0.0)  # s(t) <= s(t-1) + p speed
            before = served
    for terms in by_step:
        rows.add(terms, 0.0, float(problem.nodes))
    values, bound = _solved(cost, integral, high, rows)
    plan = np.zeros((len(problem.jobs), problem.steps), dtype=np.int64)
    for column, index, step, size in sizes_at:
        if values[column] > 0.5:
            plan[index, step] = size
    return Allocation.of(problem, plan, bound)


def big_m(problem: AllocationProblem) -> Allocation:
    """§4.4: n(i, t), s(i, t) and two indicators for each size. Raises NoPlanFound."""
    if not problem.jobs:
        return Allocation.none(problem)
    rows = _Rows()
    cost, integral, high = list[float](), list[int](), list[float]()
    by_step: list[list[tuple[int, float]]] = [[] for _ in range(problem.steps)]
    nodes_at: list[tuple[int, int, int]] = []

    def variable(price: float, whole: bool, most: float) -> int:
        cost.append(price)
        integral.append(int(whole))
        high.append(most)
        return len(cost) - 1

    for index, job in enumerate(problem.jobs):
        sizes = problem.allowed(job)
        big = float(max(sizes) + 1)
        before: int | None = None
        for step in range(problem.steps):
            served = variable(-1.0 / job.demand_node_hours, False, job.demand_node_hours)
            count = variable(0.0, True, float(job.max_nodes))
            nodes_at.append((count, index, step))
            by_step[step].append((count, 1.0))
            rows.add([(count, 1.0)], float(job.min_nodes), float(job.max_nodes))
            grows = [(served, 1.0), *([(before, -1.0)] if before is not None else [])]
            speeds, indicators = 0.0, list[tuple[int, float]]()
            for size in sizes:
                below, above = variable(0.0, True, 1.0), variable(0.0, True, 1.0)
                for indicator, sign in ((below, 1.0), (above, -1.0)):  # 16 and 17
                    rows.add([(count, sign), (indicator, big)], -np.inf, big + sign * size)
                    rows.add([(count, sign), (indicator, 1 / big + big)], 1 / big + sign * size, np.inf)
                speed = problem.step_hours * problem.speed(size)
                grows += [(below, -speed), (above, -speed)]  # 19 and 20
                speeds += speed
                indicators += [(below, 1.0), (above, 1.0)]
            rows.add(indicators, len(sizes) + 1.0, len(sizes) + 1.0)  # 18
            rows.add(grows, -np.inf, -speeds)
            before = served
    for terms in by_step:
        rows.add(terms, 0.0, float(problem.nodes))
    values, bound = _solved(cost, integral, high, rows)
    plan = np.zeros((len(problem.jobs), problem.steps), dtype=np.int64)
    for column, index, step in nodes_at:
        plan[index, step] = round(values[column])
    return Allocation.of(problem, plan, bound)


def _solved(cost: list[float], integral: list[int], high: list[float], rows: _Rows) -> tuple[Floats, float]:
    """The variables, and the proven upper bound on the objective."""
    found = milp(
        np.array(cost),
        integrality=np.array(integral),
        bounds=Bounds(0.0, np.array(high)),  # type: ignore[arg-type]  # an array
        constraints=rows.constraint(len(cost)),
        options={"mip_rel_gap": GAP, "time_limit": TIME_LIMIT_S},
    )
    if found.x is None:
        raise NoPlanFound(f"HiGHS found no plan within {TIME_LIMIT_S:.0f} s ({found.message}); choose certified")
    return found.x, -float(found.mip_dual_bound)

"""Exploration: the configuration to measure next while the throughput model is uncertain, and when to stop.

1 Each axis (a count, or the cores of a pod) whose measurements all have the same value is varied by one small step.
2 Then the neighbour of the best known configuration with the highest optimistic throughput (log throughput + 1 standard
  deviation) is measured, until that is less than 5 % above the best one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stretto_messages.base import counted
from stretto_messages.values import Plan, Resources

from stretto_core.model.pareto import CandidateProblem, Grid, Verified
from stretto_core.model.throughput import COUNTS, Configuration, Inputs, throughput

AXIS_NAMES = {
    "workers": "the number of workers",
    "ps": "the number of PSes",
    "worker_cpu_cores": "the cores of a worker",
    "ps_cpu_cores": "the cores of a PS",
}


@dataclass(frozen=True, slots=True)
class ExplorationLimits:
    """Bounds of exploration. ``axes`` stand in the order in which they are first varied.

    A step is not taken if its expected throughput is ``slowdown_max`` below the best known one.
    """

    explorations_max: int = 5
    optimistic_gain_min: float = 0.05
    axes: tuple[str, ...] = COUNTS
    step_factor_max: float = 2.0
    slowdown_max: float = 0.15


@dataclass(frozen=True, slots=True)
class Next:
    """The plan to measure, or None if exploration is over. ``reasons`` are sentences with figures."""

    plan: Plan | None
    reasons: tuple[str, ...]


def next_measurement(
    problem: CandidateProblem,
    current: Plan,
    refused: Sequence[Plan],
    explored: int,
    room: Resources,
    limits: ExplorationLimits,
) -> Next:
    """Choose the plan to measure next.

    ``problem.verified`` are the configurations measured so far, the current one among them. ``refused`` are plans
    that did not get capacity, ``explored`` counts the job's explorations, ``room`` bounds the resources of the job.
    """
    known = problem.verified
    if explored >= limits.explorations_max:
        return Next(None, (f"{explored} of {limits.explorations_max} explorations used",))
    if not known:
        return Next(None, ("the current plan is not measured yet",))
    best = max(known, key=lambda row: row.throughput)
    steps = _steps(problem, _nearest(problem.grid, best.configuration, current), limits)
    excluded = {row.configuration for row in known} | {Configuration.of(plan, problem.batch_size) for plan in refused}
    possible = [
        (axis, plan)
        for axis, plan in steps
        if Configuration.of(plan, problem.batch_size) not in excluded
        and plan.resources(problem.grid.extended).fits(room)
    ]
    if not possible:
        return Next(None, ("no small step within the limits and the capacity is left to measure",))
    return _first_variation(problem, known, possible, limits) or _most_promising(problem, best, possible, limits)


def _nearest(grid: Grid, configuration: Configuration, current: Plan) -> Plan:
    """Return the plan of the grid that is nearest to the configuration, with at least the grid's memory."""

    def index(axis: Sequence[float], value: float) -> int:
        return min(range(len(axis)), key=lambda position: abs(axis[position] - value))

    ps = index(grid.ps, configuration.ps)
    return Plan(
        workers=grid.workers[index(grid.workers, configuration.workers)],
        ps=grid.ps[ps],
        worker_cpu_cores=grid.worker_cpu_cores[index(grid.worker_cpu_cores, configuration.worker_cpu_cores)],
        ps_cpu_cores=grid.ps_cpu_cores[index(grid.ps_cpu_cores, configuration.ps_cpu_cores)],
        worker_memory_bytes=max(grid.worker_memory_bytes, current.worker_memory_bytes),
        ps_memory_bytes=grid.ps_memory_bytes[ps],
    )


def _steps(problem: CandidateProblem, start: Plan, limits: ExplorationLimits) -> list[tuple[str, Plan]]:
    """Return the plans one small step away on one axis, larger ones first: a measurement should not slow training."""
    grid, result = problem.grid, list[tuple[str, Plan]]()
    for axis in limits.axes:
        values: Sequence[float] = getattr(grid, axis)
        here = values.index(getattr(start, axis))
        for direction in (1, -1):
            at = here + direction
            if not 0 <= at < len(values):
                continue
            # a large count takes a step of its own size: one worker more than 20 is not measurable
            while direction == 1 and at + 1 < len(values) and values[at] < values[here] * limits.step_factor_max * 0.75:
                at += 1
            result.append((axis, _moved(grid, start, axis, at)))
    return result


def _moved(grid: Grid, start: Plan, axis: str, at: int) -> Plan:
    return Plan(
        workers=grid.workers[at] if axis == "workers" else start.workers,
        ps=grid.ps[at] if axis == "ps" else start.ps,
        worker_cpu_cores=grid.worker_cpu_cores[at] if axis == "worker_cpu_cores" else start.worker_cpu_cores,
        ps_cpu_cores=grid.ps_cpu_cores[at] if axis == "ps_cpu_cores" else start.ps_cpu_cores,
        worker_memory_bytes=start.worker_memory_bytes,
        ps_memory_bytes=grid.ps_memory_bytes[at] if axis == "ps" else start.ps_memory_bytes,
    )


def _first_variation(
    problem: CandidateProblem,
    known: Sequence[Verified],
    possible: Sequence[tuple[str, Plan]],
    limits: ExplorationLimits,
) -> Next | None:
    """Return a step on the first axis whose measurements all have one value: its terms are not identifiable yet."""
    for axis in limits.axes:
        varied = len({getattr(row.configuration, axis) for row in known}) > 1
        plan = next((plan for step_axis, plan in possible if step_axis == axis), None)
        if varied or plan is None:
            continue
        before = getattr(known[0].configuration, axis)
        hidden = ", ".join(problem.model.unidentified) or "none by rank, but widely"
        return Next(
            plan,
            (
                f"{AXIS_NAMES[axis]} was always {before:g} in {len(known)} measured"
                f" configuration{'s' * (len(known) != 1)}: measure {getattr(plan, axis):g}",
                f"unidentified terms of the model: {hidden}",
            ),
        )
    return None


def _most_promising(
    problem: CandidateProblem,
    best: Verified,
    possible: Sequence[tuple[str, Plan]],
    limits: ExplorationLimits,
) -> Next:
    """Return the possible step of the highest optimistic throughput, if that is well above the best known one."""
    x = Inputs.of([Configuration.of(plan, problem.batch_size) for _, plan in possible])
    expected = throughput(problem.model.step_time_s(x), x)
    optimistic = expected * [math.exp(min(sd, 5.0)) for sd in problem.model.log_sd(x)]
    allowed = [row for row in range(len(possible)) if expected[row] >= best.throughput * (1 - limits.slowdown_max)]
    if not allowed:
        return Next(None, ("every small step is expected to train clearly slower",))
    top = max(allowed, key=lambda row: (float(optimistic[row]), -row))
    gain = float(optimistic[top]) / best.throughput - 1
    if gain < limits.optimistic_gain_min:
        return Next(
            None,
            (
                f"no untried plan is likely to be more than {gain:.1%} faster than the best measured,"
                f" {best.throughput:.0f} samples/s (below {limits.optimistic_gain_min:.0%})",
            ),
        )
    plan = possible[top][1]
    return Next(
        plan,
        (
            f"{plan.describe()} could reach {float(optimistic[top]):.0f} samples/s (expected"
            f" {float(expected[top]):.0f}), {gain:+.0%} over the best measured {best.throughput:.0f}",
            f"measured so far: {counted(len(problem.verified), 'configuration')}",
        ),
    )

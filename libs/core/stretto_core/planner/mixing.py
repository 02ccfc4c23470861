"""Plans whose workers have devices of several types: which mixes there are, their front, the type to try next.

A mix states how many workers have devices of which type; the others have cores. Shards are leased and servers are
asynchronous, so workers of several types train one job at once, each at its own pace: no plan need be of one type, as
the data-parallel stages of HeterPS are (§3). For each mix there is a grid of the rest of the plan, of which the front
is found as without devices. The front over all mixes is what is left of their fronts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any, NamedTuple

import numpy as np
from stretto_messages.fitter import ModelFitted
from stretto_messages.values import GROUPS_MAX, Plan, Resources, WorkerGroup

from stretto_core.model.pareto import (
    NORMAL_90,
    CandidateAlgorithm,
    CandidateProblem,
    Grid,
    Points,
    PricedPlan,
    Verified,
    pareto_indices,
)
from stretto_core.model.throughput import Configuration, Supply, measured_throughput
from stretto_core.model.types import DeviceType, JobProfile

COUNTS_OF_DEVICES = (8, 5)
"""Most numbers of units of a type that are considered, beside cores and beside another type; longer ranges are thinned
geometrically."""
AXIS_LIMITS = (12, 8, 4, 4)
"""Most values per axis of the rest of a mixed plan: with four types, a front takes less than 200 ms (measured)."""
LEAST_LOG_SD = 0.01
"""Least standard error of a measured throughput: the windows of a plan share the machine's slow drifts."""
MEASURED_MAX = 8
"""Most types on which workers of one job are measured: each is a coefficient of its model, which has 20 at most."""
CHEAPER_MIN = 0.05
"""Least saving at the same speed for which a type is tried."""


def fronts(
    problem: CandidateProblem, algorithm: CandidateAlgorithm, current: Plan, workers_max: int
) -> tuple[list[PricedPlan], int]:
    """Return the Pareto front over all mixes, cheapest first, and the number of plans that were considered."""
    found, considered = algorithm(problem), int(np.prod(problem.grid.shape))
    mixed = [*grids(problem, current, workers_max)]
    if not mixed:
        return found, considered
    found = [found[index] for index in pareto_indices(*_points(found))]  # by cost, whatever the algorithm's order
    had = _points(found)
    for grid in mixed:
        considered += int(np.prod(grid.shape))
        if more := algorithm(replace(problem, grid=grid, had=had)):
            found += more
            every = Points(*map(np.append, had, _points(more)))
            kept = pareto_indices(*every)
            found, had = [found[index] for index in kept], Points(every.cost[kept], every.throughput[kept])
    return found, considered


def _points(plans: Sequence[PricedPlan]) -> Points:
    return Points(*(np.array([getattr(plan, name) for plan in plans]) for name in ("cost_per_hour", "throughput")))


def grids(problem: CandidateProblem, current: Plan, workers_max: int) -> Iterator[Grid]:
    """Return a grid for each mix within the room, of at most ``GROUPS_MAX`` types, cores among them."""
    grid, room = problem.grid, problem.room
    rest = tuple(
        _thinned(getattr(grid, axis), limit, getattr(current, axis))
        for axis, limit in zip(("workers", "ps", "worker_cpu_cores", "ps_cpu_cores"), AXIS_LIMITS, strict=True)
    )
    memory = dict(zip(grid.ps, grid.ps_memory_bytes, strict=True))
    for groups in _mixes(problem.devices, room, workers_max, current):
        on_devices = sum(group.workers for group in groups)
        with_cores = [on_devices + workers for workers in rest[0] if on_devices + workers <= workers_max]
        alone = len(groups) == GROUPS_MAX
        yield replace(
            grid,
            workers=(on_devices,) if alone else tuple(sorted({on_devices, *with_cores})),
            ps=rest[1],
            worker_cpu_cores=(current.worker_cpu_cores,) if alone else rest[2],
            ps_cpu_cores=rest[3],
            ps_memory_bytes=tuple(memory[count] for count in rest[1]),
            groups=groups,
        )


def _mixes(
    devices: Sequence[DeviceType], room: Resources | None, most: int, current: Plan
) -> Iterator[tuple[WorkerGroup, ...]]:
    now = {group.device: group.workers for group in current.groups}
    units_of = dict[str, tuple[DeviceType, int]]()
    for device in sorted(devices, key=lambda each: each.name):
        units = min(device.count if room is None else room.count_of(device.resource), most)
        units_of[device.name] = device, units
    for several, limit in enumerate(COUNTS_OF_DEVICES, start=1):
        groups = {
            name: [device.group(count) for count in _thinned(range(1, units + 1), limit, now.get(name, 0))]
            for name, (device, units) in units_of.items()
        }
        for names in combinations(groups, several):
            for mix in product(*(groups[name] for name in names)):
                if sum(group.workers for group in mix) <= most:
                    yield mix


def _thinned(values: Sequence[float], limit: int, kept: float) -> tuple[Any, ...]:
    """Return at most so many of the ascending values, evenly by their logarithms, with the ends and ``kept``."""
    if len(values) <= limit:
        return tuple(values)
    places = {round(place) - 1 for place in np.geomspace(1, len(values), limit)}
    chosen = {values[place] for place in places} | {values[-1]}
    return tuple(sorted(chosen | ({kept} & {*values})))


def measured_plan(fitted: ModelFitted, plan: Plan, supply: Supply, windows_min: int) -> Verified | None:
    """Return the plan as it was measured, each group of its workers by itself; None before the least windows of all."""
    rows = {Configuration.measured(row): row for row in fitted.measured if row.windows >= windows_min}
    wanted = plan.worker_places
    found = [rows.get(Configuration.of(plan, fitted.batch_size, place.device)) for place in wanted]
    known = [row for row in found if row is not None]
    if len(known) < len(found) or not known:
        return None
    rates = [
        measured_throughput(row, supply) * count / plan.workers
        for row, count in zip(known, wanted.values(), strict=True)
    ]
    total = sum(rates)
    log_sd = sum(rate / total * row.log_sd for rate, row in zip(rates, known, strict=True))
    return Verified(Configuration.of(plan, fitted.batch_size), total, max(log_sd, LEAST_LOG_SD), plan.groups)


class PlanTrial(NamedTuple):
    """A plan that is measured before anything else is known of it, and why. ``device``: the type that it tries."""

    device: str
    plan: Plan
    reason: str
    throughput: float
    """Samples per second of all workers, by the guess."""
    log_sd: float


def trial(
    problem: CandidateProblem, profile: JobProfile, current: Plan, tried: Iterable[str], refused: Sequence[Plan]
) -> PlanTrial | None:
    """Return the trial of the type that may save most at the same speed, if that is worth trying; else None.

    The optimistic end of the guess decides: a type that is worse even then is never tried.
    """
    room, known = problem.room, {*problem.model.devices, *tried} - {""}
    best, saving = None, CHEAPER_MIN
    if len(known) >= MEASURED_MAX:
        return None
    for device in problem.devices:
        if device.name in known or (room is not None and room.count_of(device.resource) < 1):
            continue
        plan = with_one(current, device, profile)
        if plan in refused:
            continue
        saved = 1 - _optimistic_cost(problem, profile, current, device) / _cost(problem, profile, current)
        if saved > saving:
            reason = (
                f"a worker on {device.name} at {device.price_per_hour:g} an hour may train samples for {saved:.0%} less"
                f" than one of the others: measure it{told_by(device)}"
            )
            throughput, log_sd = problem.workers.throughput(plan), float(problem.workers.log_sd([plan])[0])
            best, saving = PlanTrial(device.name, plan, reason, throughput, log_sd), saved
    return best


def told_by(device: DeviceType) -> str:
    """Describe who measured the speed of a type before the job, for reasons; empty: it is stated."""
    if not device.speed_of:
        return ""
    cores = f"{device.speed * device.cpu_cores:.3g}"
    factor = np.exp(NORMAL_90 * device.speed_log_sd)
    return f" ({device.speed_of} found a unit as fast as {cores} cores, within a factor of {factor:.2g})"


def with_one(current: Plan, device: DeviceType, profile: JobProfile) -> Plan:
    """Return the plan with one worker on the type, beside the present ones or, at most workers, instead of one."""
    kept = sorted(current.groups, key=lambda group: -group.workers)[: GROUPS_MAX - 1]
    plan = current.with_workers(current.cpu_workers, kept)
    surplus = max(plan.workers + 1 - profile.limits.high.workers, 0)
    smaller = plan.fewer_workers(plan.workers - surplus)
    return smaller.with_workers(smaller.cpu_workers, [*smaller.groups, device.group(1)])


def _cost(problem: CandidateProblem, profile: JobProfile, current: Plan) -> float:
    """Return the price of a sample's computing by the present workers: prices of workers over samples per hour."""
    servers = current.with_workers(0, ())
    of_workers = profile.cost_per_hour(current) - profile.cost_per_hour(servers)
    return of_workers / problem.workers.throughput(current)


def _optimistic_cost(problem: CandidateProblem, profile: JobProfile, current: Plan, device: DeviceType) -> float:
    one = current.with_workers(0, [device.group(1)])
    return _cost(problem, profile, one) * float(np.exp(-NORMAL_90 * device.speed_log_sd))

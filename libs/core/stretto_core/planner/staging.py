"""Plans of two stages for a live job: workers that pull rows, and workers on devices that compute (HeterPS §3-§5).

The model has two layers. The first one, the rows, takes what a worker's step takes beside computing, and waits for the
second one, which takes what it computes; both are fitted live. The share of a layer's time that more units share comes
of two points, one worker and two. The placement algorithm finds the cheapest plan of each of some speeds (HeterPS Eq.
1-13).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from stretto_messages.base import InvalidValue, three_digits
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Candidate, Plan, Resources

from stretto_core.model.mixed import MixedWorkers, StageRatio
from stretto_core.model.pareto import NORMAL_90, CandidateProblem, PricedPlan, Verified, pareto_indices
from stretto_core.model.stages import in_words, own_s
from stretto_core.model.throughput import Configuration, FittedModel, Inputs
from stretto_core.model.types import GUESSED_SD, DeviceType, JobProfile, Stages
from stretto_core.planner.mixing import MEASURED_MAX, PlanTrial, told_by, with_one
from stretto_core.planner.placement.optimum import exact
from stretto_core.planner.placement.problem import DeviceType as PlacedType
from stretto_core.planner.placement.problem import Layer, PlacementProblem

CHEAPER_MIN = 0.05
"""Least saving a sample, beside the best plan without stages, for which stages are proposed."""
SPEEDS = 5
"""Number of speeds for which the cheapest plan is searched; each takes 5 ms (measured)."""
SLOWEST = 1 / 32
"""The lowest of them, as a share of the highest."""
NEVER_S = 1e12
"""Time of a layer on workers that cannot compute that layer."""
RATIO_MAX = 16.0
"""Farthest that a measured stage is believed to be from its prediction, as a factor."""


@dataclass(frozen=True, slots=True)
class _Role:
    """Workers of one stage on one type of devices (None: on cores), at most ``limit`` of them."""

    stage: int
    device: DeviceType | None
    price_per_hour: float
    limit: int


def staged_front(problem: CandidateProblem, bases: Sequence[Plan], workers_max: int) -> list[PricedPlan]:
    """Return the cheapest plans of two stages for some speeds, none of which another beats, cheapest first.

    Servers and the cores of a worker are those of one of the ``bases``.
    """
    known = {(each.configuration, each.groups): each.throughput for each in problem.verified}
    found = dict[Plan, PricedPlan]()
    for plan in (each for base in bases for each in _placed(problem, base, workers_max)):
        measured = known.get((Configuration.of(plan, problem.batch_size), plan.groups))
        speed = problem.workers.throughput(plan) if measured is None else measured
        cost = problem.prices.cost_per_hour(plan.resources(problem.grid.extended))
        found[plan] = PricedPlan(plan, speed, cost)
    return _front(found.values())


def sample_cost(plan: PricedPlan | Candidate) -> float:
    """Return the cost per hour over the samples per second: what a sample costs, times 3600."""
    return plan.cost_per_hour / plan.throughput


def with_stages(unstaged: Sequence[PricedPlan], staged: Sequence[PricedPlan], asked: Stages) -> list[PricedPlan]:
    """Return the plans that a job may have, cheapest first: those of two stages where its file asks for two.

    Under ``auto`` plans of two stages stand beside the others if each costs at least ``CHEAPER_MIN`` less a sample than
    the best of those.
    """
    if asked == 2:
        return list(staged)
    best = min(map(sample_cost, unstaged), default=math.inf)
    cheaper = [plan for plan in staged if sample_cost(plan) <= (1 - CHEAPER_MIN) * best]
    return _front([*unstaged, *cheaper]) if cheaper else list(unstaged)


def _front(plans: Iterable[PricedPlan]) -> list[PricedPlan]:
    each = list(plans)
    cost, speed = (np.array([getattr(plan, name) for plan in each]) for name in ("cost_per_hour", "throughput"))
    return [each[index] for index in pareto_indices(cost, speed)] if each else []


# ---- the placement problem ------------------------------------------------------------------------------------


def _placed(problem: CandidateProblem, base: Plan, workers_max: int) -> Iterator[Plan]:
    """Return the plan whose workers cost least a sample for each speed, as far as both stages find room together.

    How long a worker with rows waits depends on the type that computes, so each type has a problem of its own.
    """
    every = [role for role in _roles(problem, base, workers_max - 1) if role.limit > 0]
    rows = [role for role in every if not role.stage]
    asked = [[*rows, dense] for dense in every if dense.stage and rows]
    profiled = [(_layers(problem, base, roles), roles) for roles in asked]
    if not profiled:
        return
    highest = max(_highest_rate(layers, roles, problem.batch_size) for layers, roles in profiled)
    of_servers = problem.prices.cost_per_hour(base.with_workers(0, ()).resources(problem.grid.extended))

    def cost(plan: Plan) -> float:
        per_hour = problem.prices.cost_per_hour(plan.resources(problem.grid.extended)) - of_servers
        return per_hour / problem.workers.throughput(plan)

    for rate in np.geomspace(SLOWEST * highest, highest * (1 - 1e-9), SPEEDS):
        found = [_placed_at(problem, base, layers, roles, float(rate)) for layers, roles in profiled]
        fit = [plan for plan in found if plan and plan.workers <= workers_max and _has_room(problem, plan)]
        if fit:
            yield min(fit, key=cost)


def _placed_at(
    problem: CandidateProblem, base: Plan, layers: Sequence[Layer], roles: Sequence[_Role], rate: float
) -> Plan | None:
    """Return the plan of least cost for a speed; of a type with too few units for both stages, rows get the rest."""
    types = tuple(PlacedType(f"{role.stage}", role.price_per_hour, role.limit) for role in roles)
    found = exact(PlacementProblem(tuple(layers), types, problem.batch_size, rate, samples=1.0))
    if found is None:
        return None
    rows, dense = ((roles[stage.type], stage.units) for stage in found.stages)
    plan = _plan(dict((rows, dense)), base)
    if rows[0].device != dense[0].device or _has_room(problem, plan):
        return plan
    fewer = replace(rows[0], limit=rows[0].limit - dense[1])
    left = [fewer if role == rows[0] else role for role in roles if role != rows[0] or fewer.limit > 0]
    if all(role.stage for role in left):
        return None
    return _placed_at(problem, base, _layers(problem, base, left), left, rate)


def _has_room(problem: CandidateProblem, plan: Plan) -> bool:
    return problem.room is None or plan.resources(problem.grid.extended).fits(problem.room)


def _roles(problem: CandidateProblem, base: Plan, most: int) -> Iterator[_Role]:
    """Return who may be in which stage: rows need no devices, a stage that computes has them."""
    room, each = problem.room, Resources(base.worker_cpu_cores, base.worker_memory_bytes)
    on_cores = most
    if room is not None:
        left = room - base.with_workers(0, ()).resources(problem.grid.extended)
        by_cores = math.floor(left.cpu_cores / each.cpu_cores + 1e-9)
        on_cores = min(most, by_cores, left.memory_bytes // each.memory_bytes)
    yield _Role(0, None, problem.prices.cost_per_hour(each), on_cores)
    for device in sorted(problem.devices, key=lambda device: device.name):
        units = min(device.count if room is None else room.count_of(device.resource), most)
        yield _Role(0, device, device.price_per_hour, units)
        yield _Role(1, device, device.price_per_hour, units)


def _layers(problem: CandidateProblem, base: Plan, roles: Sequence[_Role]) -> tuple[Layer, Layer]:
    """Return the profile of both layers, with which k units of a role take A + P/k for a batch (Eq. 1).

    The time of one unit is A + P, that of two A + P/2: the share that they share is 2 (1 - t(2)/t(1)).
    """
    ends = {stage: next(role for role in roles if role.stage == stage) for stage in (0, 1)}

    def time_s(role: _Role, count: int) -> float:
        counted = {role: count, ends[1 - role.stage]: 1}
        return problem.workers.stage_times_s(_plan(counted, base))[role.stage]

    one, two = ([time_s(role, count) for role in roles] for count in (1, 2))
    shared = [min(max(2 * (1 - both / alone), 0.0), 1.0) for alone, both in zip(one, two, strict=True)]
    nothing = (0.0,) * len(roles)

    def layer(name: str, stage: int) -> Layer:
        own = [role.stage == stage for role in roles]
        compute_s = tuple(alone if may else NEVER_S for alone, may in zip(one, own, strict=True))
        parallel = tuple(share if may else 0.0 for share, may in zip(shared, own, strict=True))
        return Layer(name, name, compute_s, parallel, nothing, nothing)

    return layer("rows", 0), layer("dense", 1)


def measured_layers(model: FittedModel, ps: int, ps_cpu_cores: float, devices: Sequence[str]) -> tuple[Layer, Layer]:
    """Return the rows and all that is behind them, as workers of a job took them, with a value for each type.

    devices: the types; the empty text stands for cores. ``ps``, ``ps_cpu_cores``: of the job's plan. Rows cross to the
    next stage as fast as one server sends them, from each worker at once. Raises InvalidValue for a type on which no
    worker of the job was measured.
    """
    latest = {each.device: each for each in model.measured}
    for name in devices:
        if name not in latest:
            known = ", ".join(each or "cpu" for each in sorted(latest))
            raise InvalidValue(f"no worker of the job was measured on {name or 'cpu'!r}; measured are: {known}")
    of_types = [replace(latest[name], ps=ps, ps_cpu_cores=ps_cpu_cores, mixed=False) for name in devices]

    def layer(name: str, computes: bool) -> Layer:
        one, two = (
            [float(model.part_s(Inputs.of([replace(each, workers=count)]), computes=computes)[0]) for each in of_types]
            for count in (1, 2)
        )
        # k workers take T(k) each for a batch, so k of them together T(k) / k = A + P/k (Eq. 1)
        shared = (min(max(2 * (1 - both / 2 / alone), 0.0), 1.0) for alone, both in zip(one, two, strict=True))
        crossing_s = tuple(0.0 if computes else float(model.crossing_s(Inputs.of([each]))[0]) for each in of_types)
        return Layer(name, name, tuple(one), tuple(shared), crossing_s, (1.0,) * len(devices))

    return layer("rows", False), layer("dense", True)


def _highest_rate(layers: tuple[Layer, Layer], roles: Sequence[_Role], batch_size: int) -> float:
    """Return the samples per second of the fastest stages, each with all units that there are of its type."""
    least_s = [math.inf, math.inf]
    for index, role in enumerate(roles):
        alone_s, share = layers[role.stage].compute_s[index], layers[role.stage].parallel_fraction[index]
        least_s[role.stage] = min(least_s[role.stage], alone_s * (1 - share + share / role.limit))
    return batch_size / max(least_s)


def _plan(counts: dict[_Role, int], base: Plan) -> Plan:
    on_cores = sum(count for role, count in counts.items() if role.device is None)
    groups = [
        replace(role.device.group(count), stage=role.stage, first_layer=role.stage)
        for role, count in counts.items()
        if role.device is not None
    ]
    return base.with_workers(on_cores, groups)


# ---- what is measured -----------------------------------------------------------------------------------------


def first_stages(
    problem: CandidateProblem,
    profile: JobProfile,
    current: Plan,
    now: Verified,
    refused: Sequence[Plan],
    cost_to_beat: float,
) -> PlanTrial | None:
    """Return the plan that measures two stages: the cheapest a sample that is not slower than the present one, else
    the fastest; None unless one costs ``CHEAPER_MIN`` less than ``cost_to_beat``, the best sample cost without."""
    enough = (1 - CHEAPER_MIN) * cost_to_beat
    front = staged_front(problem, [current], profile.limits.high.workers)
    plans = [each for each in front if each.plan not in refused and sample_cost(each) <= enough]
    if not plans:
        return None
    faster = [each for each in plans if each.throughput >= now.throughput]
    best = min(faster, key=sample_cost) if faster else max(plans, key=lambda each: each.throughput)
    times = in_words(problem.workers.stage_times_s(best.plan))
    crossing_s = float(problem.model.crossing_s(Inputs.of([Configuration.of(best.plan, problem.batch_size)]))[0])
    link = f"; rows are taken to cross in the {three_digits(1e3 * crossing_s)} ms that one server takes to send them"
    why = "the job asks for two stages"
    if math.isfinite(cost_to_beat):
        why = f"two stages may cost {1 - sample_cost(best) / cost_to_beat:.0%} less a sample than the best plan without"
    return _trial(problem, best.plan, f"{why}: {times}{link}", best.throughput)


def staged_trial(
    problem: CandidateProblem,
    profile: JobProfile,
    current: Plan,
    now: Verified,
    tried: Iterable[str],
    refused: Sequence[Plan],
) -> PlanTrial | None:
    """Return the trial of the type of devices that may save most as the second stage, if no worker was measured on it.

    The optimistic end of the guess decides, and one worker of the whole step measures it. A job that asks for two
    stages tries a type at any price before it has measured one.
    """
    known = {*problem.model.devices, *tried}
    if len(known - {""}) >= MEASURED_MAX:
        return None
    least = (1 - CHEAPER_MIN) * profile.cost_per_hour(current) / now.throughput
    if profile.stages == 2 and known <= {""}:
        least = math.inf
    best = None
    for device in problem.devices:
        free = 1 if problem.room is None else problem.room.count_of(device.resource)
        if device.name in known or free < 1 or (plan := with_one(current, device, profile)) in refused:
            continue
        optimistic = StageRatio(1, device.name, math.exp(-NORMAL_90 * device.speed_log_sd))
        alone = replace(problem, devices=(device,), stage_ratios=(optimistic,))
        found = [sample_cost(each) for each in staged_front(alone, [current], profile.limits.high.workers)]
        if found and min(found) <= least:
            best, least = (device, plan), min(found)
    if best is None:
        return None
    device, plan = best
    why = f"a second stage on {device.name} at {device.price_per_hour:g} an hour may cost less a sample: measure it"
    reason = why + told_by(device)
    return _trial(problem, plan, reason, problem.workers.throughput(plan), device.name)


def without_stages(profile: JobProfile, plan: Plan, throughput: float) -> PlanTrial:
    """Return the trial of a plan of one stage, for a job that began with several: no model is fitted to its steps.

    Workers on cores stay, or the least that the job may have; nobody knows how fast they train.
    """
    workers = min(max(plan.cpu_workers, profile.limits.low.workers, 1), profile.limits.high.workers)
    reason = f"the job began with {plan.stages} stages, which only a plan without them can be compared with: measure it"
    return PlanTrial("", plan.with_workers(workers, ()), reason, throughput, GUESSED_SD)


def _trial(problem: CandidateProblem, plan: Plan, reason: str, throughput: float, device: str = "") -> PlanTrial:
    return PlanTrial(device, plan, reason, throughput, float(problem.workers.log_sd([plan])[0]))


def measured_ratios(workers: MixedWorkers, event: ProfileMeasured, before: Sequence[StageRatio]) -> list[StageRatio]:
    """Return what each stage took in a window, as multiples of the model's prediction, half of it from ``before``."""
    predicted = {
        (each.stage, each.device): each.step_s for each in replace(workers, stage_ratios=()).stages(event.plan)
    }
    known = {(each.stage, each.device): each.ratio for each in before}
    for group in event.groups:
        if (at := (group.stage, group.device)) in predicted:
            ratio = min(max(own_s(group) / predicted[at], 1 / RATIO_MAX), RATIO_MAX)
            known[at] = math.sqrt(ratio * known.get(at, ratio))
    return [StageRatio(*at, ratio) for at, ratio in sorted(known.items())]

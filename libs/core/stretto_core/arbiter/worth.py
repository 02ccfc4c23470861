"""Arithmetic of plans: the value of a plan to a job, its claim while it is applied, and its reduction to fit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from stretto_messages.base import GIB
from stretto_messages.planner import CandidatesComputed
from stretto_messages.values import DEVICES, NOTHING, PLAN_FIELDS, Candidate, Extended, Plan, Resources, larger

from stretto_core.arbiter.selection import OBJECTIVE, Objective, Option
from stretto_core.model.pareto import half_width, relative_error
from stretto_core.model.types import JobLimits, JobProfile

HALF_WIDTH_MAX = 0.5
"""Half the 90 % interval of log throughput. A plan of a wider interval is guessed, not identified."""

LATER_MAX = 0.05
"""Delay of the job's end that a clearly cheaper plan may cause, as a share of the remaining time."""


def identified(candidate: Candidate) -> bool:
    """Return True if the model knows enough about the plan to decide on it."""
    return half_width(candidate) <= HALF_WIDTH_MAX


def required_gain(candidate: Candidate, gain_fraction_min: float) -> float:
    """Return the least relative gain worth a change: the hysteresis plus one standard deviation of the prediction."""
    return gain_fraction_min + relative_error(candidate)


def worthwhile(
    computed: CandidatesComputed,
    plan: Plan,
    profile: JobProfile,
    gain_fraction_min: float,
    objective: Objective = OBJECTIVE,
) -> list[Option]:
    """Return the identified candidates that are worth a change, as options; an option's id is the candidate's index.

    They are those whose net gain passes the hysteresis. If there are none, they are those that finish the job at a
    clearly lower cost. Under the objective ``cost``, only those of them that are cheaper.
    """
    if computed.throughput <= 0:
        return []
    throughput, cost_now = computed.throughput, profile.cost_per_hour(plan)
    rows = list(enumerate(computed.candidates))

    def possible(candidate: Candidate) -> bool:
        return candidate.plan != plan and identified(candidate) and holdable(candidate.plan, profile.limits, plan)

    # the cheapest test comes first: few candidates come near the hysteresis
    faster = [
        (index, candidate)
        for index, candidate in rows
        if candidate.gain / throughput >= gain_fraction_min
        and candidate.gain / throughput >= required_gain(candidate, gain_fraction_min)
        and possible(candidate)
    ]
    chosen = faster or [
        (index, candidate)
        for index, candidate in rows
        if candidate.cost_per_hour <= cost_now * (1 + candidate.gain / throughput)
        and saves(computed, candidate, plan, profile, gain_fraction_min)
        and possible(candidate)
    ]
    if objective == "cost":
        chosen = cheaper(chosen, throughput, cost_now)
    here = profile.resources(plan)
    return [as_option(index, candidate, computed, here, profile) for index, candidate in chosen]


def cheaper(
    candidates: list[tuple[int, Candidate]], throughput: float, cost_per_hour: float
) -> list[tuple[int, Candidate]]:
    """Return the candidates that train a sample for less than the present plan, none faster than the cheapest of them.

    What is faster still costs more a sample, however little it gains. Throughputs are net of the overhead (Eq. 8).
    """

    def sample(candidate: Candidate) -> float:
        return candidate.cost_per_hour / max(throughput + candidate.gain, 1e-12)

    found = [each for each in candidates if sample(each[1]) < cost_per_hour / throughput]
    most = max((each.gain for _, each in found if sample(each) <= min(sample(one) for _, one in found)), default=0.0)
    return [each for each in found if each[1].gain <= most]


def saves(
    computed: CandidatesComputed, candidate: Candidate, plan: Plan, profile: JobProfile, gain_fraction_min: float
) -> bool:
    """Return True if the rest of the job gets cheaper by the hysteresis, and ends later by at most ``LATER_MAX``.

    Both include the change's overhead. The time also includes one standard deviation of the prediction.
    """
    kept = 1 + candidate.gain / computed.throughput  # share of the present throughput, net of the overhead (Eq. 8)
    cost_now = profile.cost_per_hour(plan)
    need = required_gain(candidate, gain_fraction_min)
    in_time = kept * (1 - relative_error(candidate)) >= 1 / (1 + LATER_MAX)
    return in_time and candidate.cost_per_hour / kept <= cost_now * (1 - need)


def holdable(plan: Plan, limits: JobLimits, current: Plan | None = None) -> bool:
    """Return True if the limits allow the memory of the plan's servers, or if they have as much already."""
    had = current.ps_memory_bytes if current is not None and current.ps == plan.ps else 0
    return plan.ps_memory_bytes <= max(limits.high.ps_memory_bytes, had)


def same_shape(one: Plan, other: Plan) -> bool:
    """Return True if two plans have the same counts and cores, and so the same throughput."""
    memory = {"worker_memory_bytes": one.worker_memory_bytes, "ps_memory_bytes": one.ps_memory_bytes}
    return replace(other, **memory) == one


def as_option(
    index: int, candidate: Candidate, computed: CandidatesComputed, here: Resources, profile: JobProfile
) -> Option:
    """Return a candidate as an option: additions to ``here``, the resources of the plan in force.

    Resources that it gives back are held until it is applied, so no other job can get them in the same round. The gain
    of a plan that only saves is the throughput that the saved money pays for at present.
    """
    there, gain = profile.resources(candidate.plan), candidate.gain
    cost = profile.prices.cost_per_hour(there - here)
    if gain <= 0 and cost < 0:
        gain = max(gain - computed.throughput * cost / max(profile.prices.cost_per_hour(here), 1e-12), 0.0)
    return Option(str(index), by_resource(larger(there, here) - here), cost, gain, candidate.throughput)


def by_resource(amount: Resources) -> dict[str, float]:
    """Return the amount by the resource names of a selection problem."""
    amounts = {"cpu_cores": amount.cpu_cores, "memory_bytes": float(amount.memory_bytes)}
    return amounts | dict(amount.extended) if amount.extended else amounts


def in_words(amount: Resources, of: Resources = NOTHING) -> str:
    """Describe the amount for the reasons of a decision; extended resources of ``of`` also where there are none."""
    words = f"{amount.cpu_cores:g} core{'s' * (amount.cpu_cores != 1)} and {amount.memory_bytes / GIB:.2f} GiB"
    names = sorted({name for name, _ in (*amount.extended, *of.extended)})
    return words + "".join(f" and {amount.count_of(name)} {name}" for name in names)


def fit_into(plan: Plan, profile: JobProfile, free: Resources) -> Plan | None:
    """Return the plan reduced towards its lower limits until it fits: counts first, then cores, memory last.

    None if it does not fit at its lower limits. Fewer PSes get more memory each: they hold the same embeddings.
    """
    limits = profile.limits
    for name in PLAN_FIELDS:
        low = getattr(limits.low, name)
        while not profile.resources(plan).fits(free) and getattr(plan, name) > low:
            half = getattr(plan, name) / 2
            if name == "workers":
                plan = plan.fewer_workers(max(int(half), low))
                continue
            changes: dict[str, Any] = {name: max(half if name.endswith("_cores") else int(half), low)}
            if name == "ps":
                held = math.ceil(plan.ps * plan.ps_memory_bytes / changes["ps"])
                changes["ps_memory_bytes"] = min(held, limits.high.ps_memory_bytes)
            plan = replace(plan, **changes)
        if profile.resources(plan).fits(free):
            return plan
    return None


def give_back(plan: Plan, profile: JobProfile, missing: Resources) -> Plan:
    """Return the plan with workers, then cores, reduced until ``missing`` is free or the lower limits are reached.

    Parameter servers and their memory stay: their parameters would be lost, or would take long to move. Devices that
    the workers do not have are for other jobs to give back. Workers on devices that are missing go first.
    """
    limits, held = profile.limits, profile.resources(plan)
    of_workers = {name for name, _ in profile.extended.worker} | {DEVICES + group.device for group in plan.groups}
    devices = tuple((name, count) for name, count in missing.extended if name in of_workers)
    by_workers, by_cores = replace(missing, extended=devices), replace(missing, extended=())

    def enough(wanted: Resources, smaller: Plan) -> bool:
        return wanted.fits(held - profile.resources(smaller))

    smaller = plan
    while not enough(by_workers, smaller) and smaller.workers > limits.low.workers:
        smaller = _without_one(smaller, devices)
    for name in ("worker_cpu_cores", "ps_cpu_cores"):
        if not enough(by_cores, smaller):
            smaller = replace(smaller, **{name: max(getattr(smaller, name) / 2, getattr(limits.low, name))})
    return smaller


def _without_one(plan: Plan, devices: Extended) -> Plan:
    """Return the plan with a worker less: one on ``devices`` if there is any, else one on cores.

    No stage loses its last worker as long as another worker can go.
    """
    wanted = {name for name, count in devices if count > 0}
    for group in plan.groups:
        if DEVICES + group.device in wanted and (plan.stages == 1 or group.workers > 1):
            less = [replace(each, workers=each.workers - (each is group)) for each in plan.groups]
            return plan.with_workers(plan.cpu_workers, less)
    return plan.fewer_workers(plan.workers - 1)

"""Parts of the arbiter: a plan's value to a job, its claim while it is applied, and its reduction to fit."""

from __future__ import annotations

import math
from dataclasses import replace

from stretto_messages.base import GIB
from stretto_messages.planner import CandidatesComputed
from stretto_messages.values import PLAN_FIELDS, Candidate, Plan, Resources

from stretto_core.arbiter.selection import Option
from stretto_core.model.pareto import half_width, relative_error
from stretto_core.model.types import JobLimits, JobProfile

HALF_WIDTH_MAX = 0.5  # of the 90 % interval of log throughput: beyond it a plan is not identified, only guessed

LATER_MAX = 0.05  # of the time to the end: so much a clearly cheaper plan may cost


def identified(candidate: Candidate) -> bool:
    """Return True if the model knows enough about the plan to decide on it."""
    return half_width(candidate) <= HALF_WIDTH_MAX


def required_gain(candidate: Candidate, gain_fraction_min: float) -> float:
    """The least relative gain that is worth a change: the hysteresis plus one standard deviation of the prediction."""
    return gain_fraction_min + relative_error(candidate)


def worthwhile(computed: CandidatesComputed, plan: Plan, profile: JobProfile, gain_fraction_min: float) -> list[Option]:
    """The identified candidates that are worth a change, as options; their id is the candidate's index.

    Those whose net gain passes the hysteresis; if there are none, those that finish the job for clearly less.
    """
    if computed.throughput <= 0:
        return []
    throughput, cost_now = computed.throughput, profile.prices.cost_per_hour(plan.resources)
    rows = list(enumerate(computed.candidates))

    def possible(candidate: Candidate) -> bool:
        return candidate.plan != plan and identified(candidate) and holdable(candidate.plan, profile.limits, plan)

    # what is cheap to see is looked at first: few candidates come near the hysteresis
    faster = [
        (i, candidate)
        for i, candidate in rows
        if candidate.gain / throughput >= gain_fraction_min
        and candidate.gain / throughput >= required_gain(candidate, gain_fraction_min)
        and possible(candidate)
    ]
    chosen = faster or [
        (i, candidate)
        for i, candidate in rows
        if candidate.cost_per_hour <= cost_now * (1 + candidate.gain / throughput)
        and saves(computed, candidate, plan, profile, gain_fraction_min)
        and possible(candidate)
    ]
    here = plan.resources
    return [as_option(i, candidate, computed, here, profile) for i, candidate in chosen]


def saves(
    computed: CandidatesComputed, candidate: Candidate, plan: Plan, profile: JobProfile, gain_fraction_min: float
) -> bool:
    """Return True if the rest of the job gets cheaper by the hysteresis, and later by at most ``LATER_MAX``.

    Both count the change's overhead; the time counts one standard deviation of the prediction against it too.
    """
    kept = 1 + candidate.gain / computed.throughput  # of the throughput, net of the overhead (Eq. 8)
    cost_now = profile.prices.cost_per_hour(plan.resources)
    need = required_gain(candidate, gain_fraction_min)
    in_time = kept * (1 - relative_error(candidate)) >= 1 / (1 + LATER_MAX)
    return in_time and candidate.cost_per_hour / kept <= cost_now * (1 - need)


def holdable(plan: Plan, limits: JobLimits, current: Plan | None = None) -> bool:
    """Return True if the plan's servers may get the memory that they need; memory that they already have is allowed."""
    had = current.ps_memory_bytes if current is not None and current.ps == plan.ps else 0
    return plan.ps_memory_bytes <= max(limits.high.ps_memory_bytes, had)


def same_shape(one: Plan, other: Plan) -> bool:
    """Return True if two plans have the same counts and cores, and so the same throughput."""
    memory = {"worker_memory_bytes": one.worker_memory_bytes, "ps_memory_bytes": one.ps_memory_bytes}
    return replace(other, **memory) == one


def as_option(
    index: int, candidate: Candidate, computed: CandidatesComputed, here: Resources, profile: JobProfile
) -> Option:
    """A candidate as additions to ``here``, what the plan in force takes, under its index.

    What it gives back is still held while it is applied, so nobody else can have it in the same round. The gain of a
    plan that only saves is the throughput which the money it saves pays for at present.
    """
    there, gain = candidate.plan.resources, candidate.gain
    cost = profile.prices.cost_per_hour(there - here)
    if gain <= 0 and cost < 0:
        gain = max(gain - computed.throughput * cost / max(profile.prices.cost_per_hour(here), 1e-12), 0.0)
    return Option(str(index), by_resource(larger(there, here) - here), cost, gain, candidate.throughput)


def by_resource(amount: Resources) -> dict[str, float]:
    """The amount as a selection problem names it."""
    return {"cpu_cores": amount.cpu_cores, "memory_bytes": float(amount.memory_bytes)}


def larger(one: Resources, other: Resources) -> Resources:
    """Return the claim while pods of both plans may run: the larger in each resource."""
    return Resources(max(one.cpu_cores, other.cpu_cores), max(one.memory_bytes, other.memory_bytes))


def shortage(wanted: Resources, free: Resources) -> Resources:
    """Return the part of ``wanted`` that is not free; zero for a resource that suffices."""
    gap = wanted - free
    return Resources(max(gap.cpu_cores, 0.0), max(gap.memory_bytes, 0))


def in_words(amount: Resources) -> str:
    """The amount for reasons that people read."""
    return f"{amount.cpu_cores:g} cores and {amount.memory_bytes / GIB:.2f} GiB"


def fit_into(plan: Plan, limits: JobLimits, free: Resources) -> Plan | None:
    """The plan reduced towards its lower limits until it fits: counts first, then cores, memory last. None if never.

    Fewer PSes get more memory each: together they have to hold the same embeddings.
    """
    for name in PLAN_FIELDS:
        low = getattr(limits.low, name)
        while not plan.resources.fits(free) and getattr(plan, name) > low:
            half = getattr(plan, name) / 2
            changes = {name: max(half if name.endswith("_cores") else int(half), low)}
            if name == "ps":
                held = math.ceil(plan.ps * plan.ps_memory_bytes / changes["ps"])
                changes["ps_memory_bytes"] = min(held, limits.high.ps_memory_bytes)
            plan = replace(plan, **changes)
        if plan.resources.fits(free):
            return plan
    return None


def give_back(plan: Plan, limits: JobLimits, missing: Resources) -> Plan:
    """The plan with workers, then cores, reduced until ``missing`` is free or the lower limits are reached.

    Parameter servers and their memory stay: what they hold would be lost, and moving it takes long.
    """

    def enough(smaller: Plan) -> bool:
        return missing.fits(plan.resources - smaller.resources)

    smaller = plan
    while not enough(smaller) and smaller.workers > limits.low.workers:
        smaller = replace(smaller, workers=smaller.workers - 1)
    for name in ("worker_cpu_cores", "ps_cpu_cores"):
        if not enough(smaller):
            smaller = replace(smaller, **{name: max(getattr(smaller, name) / 2, getattr(limits.low, name))})
    return smaller

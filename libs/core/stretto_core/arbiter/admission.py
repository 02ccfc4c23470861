"""Steps 2 and 3 of the cycle: who may start, with what, at whose expense; and who may measure or have their wish."""

from __future__ import annotations

import math
from dataclasses import replace

from stretto_messages.arbiter import PlanRefused, ReplacementDecided
from stretto_messages.planner import PlanProposed
from stretto_messages.values import Plan, Resources

from stretto_core.arbiter.desk import Answer, Desk
from stretto_core.arbiter.state import JobState
from stretto_core.arbiter.worth import fit_into, give_back, in_words, larger, shortage

ROUNDING = Resources(1e-6, 0)


def start_waiting(desk: Desk, now: float) -> list[Answer]:
    """Start the waiting jobs that fit into the free resources."""
    facts: list[Answer] = []
    for job in desk.register.to_try(desk.register.waiting):
        if job.proposal is not None:
            facts += _start(desk, job, job.proposal, now)
    return facts


def _start(desk: Desk, job: JobState, proposal: PlanProposed, now: float) -> list[Answer]:
    """Start the job with the proposed plan, or with what of it fits."""
    free = desk.free()
    state = desk.free_in_words()
    if proposal.plan.resources.fits(free):
        return [desk.decide(job, proposal.kind, proposal.plan, [*proposal.reasons, state], now, proposal)]
    if not job.profile.fixed:
        smaller = fit_into(proposal.plan, job.profile.limits, free)
        if smaller is not None:
            reasons = [*proposal.reasons, f"proposed was {proposal.plan.describe()}; {state}: reduced to fit"]
            return [desk.decide(job, "fit-capacity", smaller, reasons, now)]
    least = job.least(proposal)
    reasons = [state, f"the least that the job can start with is {in_words(least)}: it waits"]
    if not least.fits(desk.settings.capacity):
        reasons.append("that is more than the whole cluster: lower the job's limits, or cancel it")
    return [*desk.refuse(job, proposal.kind, proposal.plan, reasons), *_rebalance(desk, job, least, now)]


def _rebalance(desk: Desk, waiting: JobState, least: Resources, now: float) -> list[Answer]:
    """Take what is missing from jobs of no higher weight, the least important first; nothing if that is too little.

    While any change is applied, room may be about to come free: nobody is asked then.
    """
    if desk.register.in_change:
        return []
    free = desk.free()
    if not least.fits(free + desk.register.could_give(waiting.profile.weight) + ROUNDING):
        return []
    targets: list[tuple[JobState, Plan]] = []
    for job in reversed(desk.register.ordered(desk.state.jobs)):
        if job.plan is None or job.leaving_s is not None:
            continue
        if job.profile.fixed or job.profile.weight > waiting.profile.weight:
            continue
        smaller = give_back(job.plan, job.profile.limits, shortage(least, free))
        if smaller != job.plan:
            targets.append((job, smaller))
            free = free + (job.plan.resources - smaller.resources)
        if least.fits(free):
            reason = f"{waiting.job} waits for {in_words(least)}; this job holds more than its least"
            return [desk.decide(donor, "rebalance", plan, [reason], now) for donor, plan in targets]
    return []


def measure(desk: Desk, now: float) -> list[Answer]:
    """For every running job with a proposal."""
    facts: list[Answer] = []
    for job in desk.register.ordered(desk.register.measuring):
        if job.plan is not None and job.proposal is not None and not job.changing:
            facts += _measure(desk, job, job.plan, job.proposal, now)
    return facts


def _measure(desk: Desk, job: JobState, plan: Plan, proposal: PlanProposed, now: float) -> list[Answer]:
    """A measurement needs room now, or the planner looks for another one; a user's wish gets an answer in any case."""
    # proposed before the last decision on memory was heard: what that gave stays
    held = math.ceil(plan.ps_memory_bytes * max(plan.ps / proposal.plan.ps, 1))
    most = max(job.profile.limits.high.ps_memory_bytes, proposal.plan.ps_memory_bytes)
    memory = max(proposal.plan.ps_memory_bytes, job.ps_memory_bytes, min(held, most))
    wanted = replace(proposal.plan, ps_memory_bytes=memory)
    job.proposal = None
    desk.register.touch(job.job)
    if wanted == plan:
        reason = "the job runs under this plan already: nothing to change"
        same = PlanRefused(job=job.job, kind=proposal.kind, wanted=wanted, reasons=(reason,))
        return [same] if proposal.kind == "requested" else []
    room = desk.to_give() + plan.resources
    if larger(wanted.resources, plan.resources).fits(room):
        return [desk.decide(job, proposal.kind, wanted, proposal.reasons, now, proposal)]
    more, left = in_words(wanted.resources - plan.resources), in_words(room - plan.resources)
    job.refused = None
    return desk.refuse(job, proposal.kind, proposal.plan, [f"it needs {more} more, {left} are free"])


def replace_server(desk: Desk, job: JobState, plan: Plan, pod: str) -> ReplacementDecided:
    """Room for one more server of the plan's size until ``pod`` is gone; none while others wait to start."""
    server = replace(plan, ps=plan.ps + 1).resources - plan.resources
    free = desk.to_give()
    reason = f"it needs {in_words(server)} beyond the plan, {in_words(free)} are free"
    granted = server.fits(free)
    if granted:
        job.replacing = pod
    return ReplacementDecided(job=job.job, pod=pod, granted=granted, reasons=(reason,))

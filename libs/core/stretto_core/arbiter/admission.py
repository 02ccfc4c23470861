"""Steps 2 and 3 of the cycle: starts of waiting jobs, if need be at others' expense; measurements, users' requests."""

from __future__ import annotations

import math
from dataclasses import replace

from stretto_messages.arbiter import PlanRefused, ReplacementDecided
from stretto_messages.planner import PlanProposed
from stretto_messages.values import Plan, Resources, larger, lesser, shortage

from stretto_core.arbiter.context import Answer, StepContext
from stretto_core.arbiter.state import JobState
from stretto_core.arbiter.teams import ROUNDING, Reclaim
from stretto_core.arbiter.worth import fit_into, give_back, in_words


def start_waiting(context: StepContext, now: float) -> list[Answer]:
    """Start the waiting jobs that fit into the free resources: first those within the quotas of their teams."""
    facts: list[Answer] = []
    borrowing: list[JobState] = []
    for job in context.register.to_try(context.register.waiting):
        if context.teams.limited and not context.teams.entitled(job):
            borrowing.append(job)
        elif job.proposal is not None:
            facts += _start(context, job, job.proposal, now)
    for job in borrowing:
        if job.proposal is not None:
            facts += _start(context, job, job.proposal, now)
    return facts


def _start(context: StepContext, job: JobState, proposal: PlanProposed, now: float) -> list[Answer]:
    """Start the job with the proposed plan, or with a smaller one that fits."""
    free = context.teams.room(job, context.free())
    free_in_words, limit_reasons = context.free_in_words(), context.teams.limit_in_words(job, context.free())
    if job.profile.resources(proposal.plan).fits(free) and context.teams.returnable(job, proposal.plan):
        return [context.decide(job, proposal.kind, proposal.plan, [*proposal.reasons, free_in_words], now, proposal)]
    if not job.profile.fixed:
        smaller = _fitted(context, job, proposal.plan, free)
        if smaller is not None:
            reasons = [*proposal.reasons, f"proposed was {proposal.plan.describe()}; {free_in_words}: reduced to fit"]
            return [context.decide(job, "fit-capacity", smaller, [*reasons, *limit_reasons], now)]
    least = job.least(proposal)
    waits = f"the least that the job can start with is {in_words(least)}: it waits"
    last = [*limit_reasons, waits] if context.teams.entitled(job) else [waits, *limit_reasons]  # lists show the last
    reasons = [free_in_words, *last]
    if not least.fits(context.settings.capacity):
        lacking = in_words(shortage(least, context.settings.capacity))
        reasons.append(f"that is more than the whole cluster, by {lacking}: lower the job's limits, or cancel it")
    return [*context.refuse(job, proposal.kind, proposal.plan, reasons), *_rebalance(context, job, least, now)]


def _fitted(context: StepContext, job: JobState, plan: Plan, free: Resources) -> Plan | None:
    """Return the plan reduced to fit; where its team would borrow more than it can give back, reduced further."""
    within = lesser(free, context.teams.headroom(job.team))
    found = (fit_into(plan, job.profile, room) for room in (free, within))
    smaller = next((each for each in found if each is not None and context.teams.returnable(job, each)), None)
    least = job.profile.limits.low
    fits = job.profile.resources(least).fits(free) and context.teams.returnable(job, least)
    return least if smaller is None and fits else smaller


def _rebalance(context: StepContext, waiting: JobState, least: Resources, now: float) -> list[Answer]:
    """Take the missing resources from jobs of no higher weight, the least important first; nothing if it is not enough.
    Teams that borrow what the job's team has a right to give it back before, whatever their jobs' weights.

    Nothing is taken while any change is being applied, because it may free room soon.
    """
    if context.register.in_change:
        return []
    free = context.free()
    weight = math.inf if context.teams.limited else waiting.profile.weight
    if not least.fits(free + context.register.could_give(weight) + ROUNDING):
        return []
    reclaim = Reclaim(context.teams, waiting, least, free)
    targets: list[tuple[JobState, Plan]] = []
    for job in reclaim.ordered(reversed(context.register.ordered(context.state.jobs))):
        if job.plan is None or job.leaving_s is not None or job.profile.fixed:
            continue
        smaller = give_back(job.plan, job.profile, reclaim.missing_from(job))
        if smaller != job.plan:
            targets.append((job, smaller))
            reclaim.take(job, job.profile.resources(job.plan) - job.profile.resources(smaller))
        if reclaim.complete:
            return [context.decide(donor, "rebalance", to, [_why(waiting, least, donor)], now) for donor, to in targets]
    return []


def _why(waiting: JobState, least: Resources, donor: JobState) -> str:
    """Return the reason for a donor, whose team does not learn what another team calls its jobs."""
    asking = waiting.job if waiting.team == donor.team else "a job of another team"
    return f"{asking} waits for {in_words(least)}; this job holds more than its least"


def measure(context: StepContext, now: float) -> list[Answer]:
    """Answer the proposal of every running job that has one."""
    facts: list[Answer] = []
    for job in context.register.ordered(context.register.measuring):
        if job.plan is not None and job.proposal is not None and not job.changing:
            facts += _measure(context, job, job.plan, job.proposal, now)
    return facts


def _measure(context: StepContext, job: JobState, plan: Plan, proposal: PlanProposed, now: float) -> list[Answer]:
    """Give the job the proposed plan if there is room now; else refuse, and the planner proposes another measurement.

    A user's request gets an answer in any case, also when there is nothing to change.
    """
    # the proposal may be older than the last decision on memory, which the job keeps
    held = math.ceil(plan.ps_memory_bytes * max(plan.ps / proposal.plan.ps, 1))
    most = max(job.profile.limits.high.ps_memory_bytes, proposal.plan.ps_memory_bytes)
    memory = max(proposal.plan.ps_memory_bytes, job.ps_memory_bytes, min(held, most))
    wanted = replace(proposal.plan, ps_memory_bytes=memory)
    job.proposal = None
    context.register.touch(job.job)
    if wanted == plan:
        reason = "the job runs under this plan already: nothing to change"
        same = PlanRefused(job=job.job, kind=proposal.kind, wanted=wanted, reasons=(reason,))
        return [same] if proposal.kind == "requested" else []
    holds, needs = job.profile.resources(plan), job.profile.resources(wanted)
    room = context.available_to(job) + holds
    if larger(needs, holds).fits(room) and context.teams.returnable(job, wanted):
        return [context.decide(job, proposal.kind, wanted, proposal.reasons, now, proposal)]
    more, left = in_words(needs - holds), in_words(room - holds, needs)
    job.refused = None
    reasons = [f"it needs {more} more, {left} are free", *context.teams.limit_in_words(job, context.free())]
    if not context.teams.returnable(job, wanted):
        reasons.append("its team borrows only what its jobs can give back")
    return context.refuse(job, proposal.kind, proposal.plan, reasons)


def replace_server(context: StepContext, job: JobState, plan: Plan, pod: str) -> ReplacementDecided:
    """Decide if one more server of the plan's size may run until ``pod`` is gone; not while jobs wait to start."""
    server = job.profile.resources(replace(plan, ps=plan.ps + 1)) - job.profile.resources(plan)
    free = context.available_to(job)
    reason = f"it needs {in_words(server)} beyond the plan, {in_words(free)} are free"
    granted = server.fits(free)
    if granted:
        job.replacing = pod
    return ReplacementDecided(job=job.job, pod=pod, granted=granted, reasons=(reason,))

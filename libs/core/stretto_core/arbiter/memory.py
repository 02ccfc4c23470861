"""Steps 1 and 5 of the cycle: memory that a forecast asks for, or disk instead, and memory that it does not need."""

from __future__ import annotations

import math
from dataclasses import replace

from stretto_messages.base import GIB
from stretto_messages.oom import OomForecast
from stretto_messages.values import Candidate, Plan, Remedy, larger

from stretto_core.arbiter.context import Answer, StepContext
from stretto_core.arbiter.state import JobState
from stretto_core.arbiter.worth import in_words
from stretto_core.model.pareto import MEMORY_STEP_BYTES
from stretto_core.model.spilling import in_words_of, speed_interval, worth
from stretto_core.model.types import servers_to_hold

SHRINK_GAIN_MIN = 0.1
"""Least share of the servers' memory that is worth a change (taste)."""


def note_forecast(job: JobState, event: OomForecast) -> None:
    """Note the memory that each PS of the job needs by the forecast."""
    need, high = event.recommended_ps_memory_bytes, job.profile.limits.high.ps_memory_bytes
    wanted = math.ceil(need / MEMORY_STEP_BYTES) * MEMORY_STEP_BYTES
    if need <= high < wanted:
        wanted = high  # a maximum need not be a whole number of steps
    job.ps_memory_bytes = wanted if event.action == "grow" else 0
    job.ps_base_bytes = event.base_bytes
    job.shrink_to_bytes = wanted if event.action == "shrink" else 0
    job.spill = next((way for way in event.remedies if way.kind == "spill"), None)


def grow(context: StepContext, now: float) -> list[Answer]:
    """Give more memory to every job whose servers need it."""
    facts: list[Answer] = []
    for job in context.register.to_try(context.register.short_of_memory):
        if job.plan is not None:
            facts += _grow(context, job, job.plan, now)
    return facts


def _grow(context: StepContext, job: JobState, plan: Plan, now: float) -> list[Answer]:
    """Give every PS more memory or, above the limit of one PS, the job more PSes; or neither, if spilling is cheaper.

    There is no hysteresis: a PS that runs out of memory is lost.
    """
    need, high = job.ps_memory_bytes, job.profile.limits.high
    forecast = f"the forecast asks for {need / GIB:.2f} GiB per PS, each has {plan.ps_memory_bytes / GIB:.2f} GiB"
    spread = min(servers_to_hold(plan.ps, need, job.ps_base_bytes, high.ps_memory_bytes), high.ps)
    more = replace(plan, ps_memory_bytes=min(need, high.ps_memory_bytes))
    wider = replace(more, ps=max(spread, plan.ps))
    target = wider if need > high.ps_memory_bytes else more
    if target == plan:
        job.ps_memory_bytes = 0
        context.register.touch(job.job)
        reason = f"the job's limits end at {high.ps} PSes of {high.ps_memory_bytes / GIB:.2f} GiB: raise them"
        return context.refuse(job, "memory", plan, [forecast, reason, *_meanwhile(job)])
    if job.spill is not None and job.profile.spill == "auto" and worth(job.spill) <= job.profile.cost_per_hour(target):
        return _spill(context, job, plan, target, job.spill, now)
    has, would_have, free = job.footprint(plan), job.footprint(target), context.free()
    limit_reasons = context.teams.limit_in_words(job, free)
    free = context.teams.room(job, free)
    if not larger(would_have, has).fits(free + has):
        reason = f"{in_words(free)} are free, {in_words(would_have - has)} are missing"
        return context.refuse(job, "memory", target, [forecast, reason, *limit_reasons, *_meanwhile(job)])
    job.ps_memory_bytes = 0
    reasons = [forecast, "memory is decided at once: a PS that runs out loses more than any plan gains"]
    if target.ps > plan.ps:
        reasons.append(f"one PS may have {high.ps_memory_bytes / GIB:.2f} GiB: its buckets move to {target.ps} PSes")
    return [context.decide(job, "memory", target, reasons, now)]


def _spill(context: StepContext, job: JobState, plan: Plan, more: Plan, way: Remedy, now: float) -> list[Answer]:
    """Let the servers evict rows instead: decided once, until another plan is."""
    spilling, job.ps_memory_bytes = job.spilling, 0
    context.register.touch(job.job)
    if spilling:
        return []
    slow, cost = way.slowdown_interval, job.profile.cost_per_hour(plan)
    left = job.throughput / (1 + way.slowdown)
    predicted = Candidate(
        id="spill",
        plan=plan,
        cost_per_hour=cost,
        throughput=left,
        throughput_interval=speed_interval(job.throughput, slow, way.noise),
        gain=left - job.throughput,
        overhead_s=0.0,
    )
    dearer = job.profile.cost_per_hour(more) / way.cost_per_hour - 1
    reasons = [
        f"rows go to the servers' disks: {in_words_of(way)}",
        f"{more.ps} PS of {more.ps_memory_bytes / GIB:.2f} GiB, which hold all rows, cost {dearer:.1%} more",
    ]
    decided = context.decide(job, "memory", plan, reasons, now, predicted if job.throughput else None)
    job.spilling = True
    return [replace(decided, reads_per_step=way.reads_per_step)]


def _meanwhile(job: JobState) -> list[str]:
    return [f"meanwhile rows go to the servers' disks: {in_words_of(job.spill)}"] if job.spill is not None else []


def shrink(context: StepContext, now: float) -> list[Answer]:
    """Take memory back from every job whose servers need clearly less, a while after its last change."""
    facts: list[Answer] = []
    for job in context.register.ordered(context.register.shrinking):
        if job.plan is not None:
            facts += _shrink(context, job, job.plan, now)
    return facts


def _shrink(context: StepContext, job: JobState, plan: Plan, now: float) -> list[Answer]:
    target = replace(plan, ps_memory_bytes=max(job.shrink_to_bytes, job.profile.limits.low.ps_memory_bytes))
    saved = plan.ps * (plan.ps_memory_bytes - target.ps_memory_bytes)
    if saved < SHRINK_GAIN_MIN * plan.ps * plan.ps_memory_bytes:
        job.shrink_to_bytes = 0
        context.register.touch(job.job)
        return []
    if now - job.changed_s < context.settings.shrink_after_s:
        context.register.shrinking.discard(job.job)
        context.register.set_alarm(job.job, job.changed_s + context.settings.shrink_after_s)
        return []
    job.shrink_to_bytes = 0
    reason = f"the forecast needs {target.ps_memory_bytes / GIB:.2f} GiB per PS: {saved / GIB:.2f} GiB given back"
    return [context.decide(job, "memory", target, [reason], now)]

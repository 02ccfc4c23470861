"""Steps 1 and 5 of the cycle: memory that a forecast asks for, and memory that it does not need."""

from __future__ import annotations

import math
from dataclasses import replace

from stretto_messages.base import GIB
from stretto_messages.oom import OomForecast
from stretto_messages.values import Plan, larger

from stretto_core.arbiter.context import Answer, StepContext
from stretto_core.arbiter.state import JobState
from stretto_core.arbiter.worth import in_words
from stretto_core.model.pareto import MEMORY_STEP_BYTES

SHRINK_GAIN_MIN = 0.1
"""Least share of the servers' memory that is worth a change (taste)."""


def note_forecast(job: JobState, event: OomForecast) -> None:
    """Note the memory that each PS of the job needs by the forecast."""
    need, high = event.recommended_ps_memory_bytes, job.profile.limits.high.ps_memory_bytes
    wanted = math.ceil(need / MEMORY_STEP_BYTES) * MEMORY_STEP_BYTES
    if need <= high < wanted:
        wanted = high  # a maximum need not be a whole number of steps
    job.ps_memory_bytes = wanted if event.action == "grow" else 0
    job.shrink_to_bytes = wanted if event.action == "shrink" else 0


def grow(context: StepContext, now: float) -> list[Answer]:
    """Give more memory to every job whose servers need it."""
    facts: list[Answer] = []
    for job in context.register.to_try(context.register.short_of_memory):
        if job.plan is not None:
            facts += _grow(context, job, job.plan, now)
    return facts


def _grow(context: StepContext, job: JobState, plan: Plan, now: float) -> list[Answer]:
    """Give every PS more memory or, above the limit of one PS, the job more PSes.

    There is no hysteresis: a PS that runs out of memory is lost.
    """
    need, high = job.ps_memory_bytes, job.profile.limits.high
    forecast = f"the forecast asks for {need / GIB:.2f} GiB per PS, each has {plan.ps_memory_bytes / GIB:.2f} GiB"
    spread = min(math.ceil(plan.ps * need / high.ps_memory_bytes), high.ps)
    more = replace(plan, ps_memory_bytes=min(need, high.ps_memory_bytes))
    wider = replace(more, ps=max(spread, plan.ps))
    target = wider if need > high.ps_memory_bytes else more
    if target == plan:
        job.ps_memory_bytes = 0
        context.register.touch(job.job)
        reason = f"the job's limits end at {high.ps} PSes of {high.ps_memory_bytes / GIB:.2f} GiB: raise them"
        return context.refuse(job, "memory", plan, [forecast, reason])
    has, would_have, free = job.footprint(plan), job.footprint(target), context.free()
    limit_reasons = context.teams.limit_in_words(job, free)
    free = context.teams.room(job, free)
    if not larger(would_have, has).fits(free + has):
        reason = f"{in_words(free)} are free, {in_words(would_have - has)} are missing"
        return context.refuse(job, "memory", target, [forecast, reason, *limit_reasons])
    job.ps_memory_bytes = 0
    reasons = [forecast, "memory is decided at once: a PS that runs out loses more than any plan gains"]
    if target.ps > plan.ps:
        reasons.append(f"one PS may have {high.ps_memory_bytes / GIB:.2f} GiB: its buckets move to {target.ps} PSes")
    return [context.decide(job, "memory", target, reasons, now)]


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

"""Steps 1 and 5 of the cycle: memory that a forecast asks for, and memory that it does not need."""

from __future__ import annotations

import math
from dataclasses import replace

from stretto_messages.base import GIB
from stretto_messages.oom import OomForecast
from stretto_messages.values import Plan

from stretto_core.arbiter.desk import Answer, Desk
from stretto_core.arbiter.state import JobState
from stretto_core.arbiter.worth import in_words, larger
from stretto_core.model.pareto import MEMORY_STEP_BYTES

SHRINK_GAIN_MIN = 0.1


def hear_forecast(job: JobState, event: OomForecast) -> None:
    """Note what each PS of the job is said to need."""
    need, high = event.recommended_ps_memory_bytes, job.profile.limits.high.ps_memory_bytes
    wanted = math.ceil(need / MEMORY_STEP_BYTES) * MEMORY_STEP_BYTES
    if need <= high < wanted:
        wanted = high  # a maximum need not be a whole number of steps
    job.ps_memory_bytes = wanted if event.action == "grow" else 0
    job.shrink_to_bytes = wanted if event.action == "shrink" else 0


def grow(desk: Desk, now: float) -> list[Answer]:
    """For every job whose servers need more."""
    facts: list[Answer] = []
    for job in desk.register.to_try(desk.register.needy):
        if job.plan is not None:
            facts += _grow(desk, job, job.plan, now)
    return facts


def _grow(desk: Desk, job: JobState, plan: Plan, now: float) -> list[Answer]:
    """More memory for every PS or, beyond what one PS may have, more PSes. No hysteresis: it would be lost."""
    need, high = job.ps_memory_bytes, job.profile.limits.high
    forecast = f"the forecast asks for {need / GIB:.2f} GiB per PS, each has {plan.ps_memory_bytes / GIB:.2f} GiB"
    spread = min(math.ceil(plan.ps * need / high.ps_memory_bytes), high.ps)
    more = replace(plan, ps_memory_bytes=min(need, high.ps_memory_bytes))
    wider = replace(more, ps=max(spread, plan.ps))
    target = wider if need > high.ps_memory_bytes else more
    if target == plan:
        job.ps_memory_bytes = 0
        desk.register.touch(job.job)
        reason = f"the job's limits end at {high.ps} PSes of {high.ps_memory_bytes / GIB:.2f} GiB: raise them"
        return desk.refuse(job, "memory", plan, [forecast, reason])
    has, would_have, free = job.footprint(plan), job.footprint(target), desk.free()
    if not larger(would_have, has).fits(free + has):
        reason = f"{in_words(free)} are free, {in_words(would_have - has)} are missing"
        return desk.refuse(job, "memory", target, [forecast, reason])
    job.ps_memory_bytes = 0
    reasons = [forecast, "memory is decided at once: a PS that runs out loses more than any plan gains"]
    if target.ps > plan.ps:
        reasons.append(f"one PS may have {high.ps_memory_bytes / GIB:.2f} GiB: its buckets move to {target.ps} PSes")
    return [desk.decide(job, "memory", target, reasons, now)]


def shrink(desk: Desk, now: float) -> list[Answer]:
    """For every job whose servers need clearly less, a while after its last change."""
    facts: list[Answer] = []
    for job in desk.register.ordered(desk.register.shrinking):
        if job.plan is not None:
            facts += _shrink(desk, job, job.plan, now)
    return facts


def _shrink(desk: Desk, job: JobState, plan: Plan, now: float) -> list[Answer]:
    target = replace(plan, ps_memory_bytes=max(job.shrink_to_bytes, job.profile.limits.low.ps_memory_bytes))
    saved = plan.resources.memory_bytes - target.resources.memory_bytes
    if saved < SHRINK_GAIN_MIN * plan.ps * plan.ps_memory_bytes:
        job.shrink_to_bytes = 0
        desk.register.touch(job.job)
        return []
    if now - job.changed_s < desk.settings.shrink_after_s:
        desk.register.shrinking.discard(job.job)
        desk.register.wake(job.job, job.changed_s + desk.settings.shrink_after_s)
        return []
    job.shrink_to_bytes = 0
    reason = f"the forecast needs {target.ps_memory_bytes / GIB:.2f} GiB per PS: {saved / GIB:.2f} GiB given back"
    return [desk.decide(job, "memory", target, [reason], now)]

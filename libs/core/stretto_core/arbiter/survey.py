"""Answer who holds the cluster and who waits for it. It reads the state, and changes nothing."""

from __future__ import annotations

from itertools import islice

from stretto_messages.arbiter import (
    HOLDERS_MAX,
    WAITING_MAX,
    Amount,
    GetCluster,
    GetClusterReply,
    Holder,
    Unplaceable,
    Waiting,
)
from stretto_messages.base import bounded
from stretto_messages.planner import PlanProposed
from stretto_messages.values import NOTHING, Plan, Resources, larger, shortage

from stretto_core.arbiter.context import StepContext
from stretto_core.arbiter.state import JobState


def survey(context: StepContext, asked: GetCluster) -> GetClusterReply:
    """Return the cluster as it is, with the holders after the job that was asked for."""
    jobs, data = context.state.jobs, context.register.data_workers
    free = larger(context.free() - data.held, NOTHING)
    holding = sorted(name for name, job in jobs.items() if job.plan is not None and name > asked.after)
    held = [_holder(jobs[name], plan) for name in holding[:HOLDERS_MAX] if (plan := jobs[name].plan) is not None]
    queue = [job for job in context.register.ordered(context.register.waiting.jobs) if job.proposal is not None]
    unplaced = (_unplaceable(context, job, pod) for _, job in sorted(jobs.items()) for pod in sorted(job.unplaced))
    return GetClusterReply(
        capacity=amount(context.settings.capacity),
        held=amount(context.register.held + data.held),
        free=amount(free),
        unplaceable=tuple(islice(unplaced, WAITING_MAX)),
        holders=tuple(held),
        more=len(holding) > HOLDERS_MAX,
        waiting=tuple(_waiting(job, job.proposal, free) for job in queue[:WAITING_MAX] if job.proposal is not None),
        waiting_count=len(queue),
    )


def amount(found: Resources) -> Amount:
    """Return an amount as messages state it; a negative part counts as none."""
    there = larger(found, NOTHING)
    extended = {name: count for name, count in there.extended if count > 0}
    return Amount(cpu_cores=there.cpu_cores, memory_bytes=there.memory_bytes, extended=extended)


def _holder(job: JobState, plan: Plan) -> Holder:
    return Holder(
        job=job.job,
        team=job.team,
        plan_version=job.version,
        plan=plan,
        held=amount(job.held),
        data_workers=job.data,
        data_held=amount(job.profile.data.of(job.data)),
        changing=job.changing,
        leaving=job.leaving_s is not None,
    )


def _waiting(job: JobState, proposal: PlanProposed, free: Resources) -> Waiting:
    least = job.least(proposal)
    return Waiting(
        job=job.job,
        team=job.team,
        submitted_at_s=job.submitted_s,
        priority=job.profile.weight,
        wanted=proposal.plan,
        least=amount(least),
        lacking=amount(shortage(least, free)),
        reason=bounded(job.refused.reasons[-1]) if job.refused is not None and job.refused.reasons else "",
    )


def _unplaceable(context: StepContext, job: JobState, pod: str) -> Unplaceable:
    waiting = job.unplaced[pod]
    return Unplaceable(
        job=job.job,
        team=job.team,
        pod=pod,
        amount=amount(waiting.amount),
        until_s=waiting.since_s + context.settings.no_room_s,
        detail=bounded(waiting.detail),
    )

"""What planner and arbiter do alike: plans, intervals and a job's profile between wire and core.

It is here because services do not import each other and core does not know the wire; only those two import it, so that
no other service loads the models of planning.
"""

from __future__ import annotations

from stretto_core import jobs
from stretto_core.model.types import PLAN_FIELDS, JobLimits, JobProfile, Plan, Prices
from stretto_wire import JobSpec, events, values


def plan_of(plan: values.Plan) -> Plan:
    """A plan as the core has it."""
    return Plan(**plan.model_dump())


def sent_plan(plan: Plan) -> values.Plan:
    """A plan as it is sent. Field by field: a round of decisions has a thousand, and ``asdict`` copies deeply."""
    return values.Plan(**{name: getattr(plan, name) for name in PLAN_FIELDS})


def sent_interval(low: float | None, high: float | None) -> values.Interval | None:
    """An interval as it is sent; None unless both ends are known."""
    return None if low is None or high is None else values.Interval(low=low, high=high)


NO_END_IN_SIGHT = 10**13
"""samples of a dataset that grows, for decisions: a change of plan has all the time to pay off"""


def profile_of(spec: JobSpec) -> JobProfile:
    """What the decisions need to know of a specification."""
    resources = spec.resources
    return JobProfile(
        batch_size=spec.dataset.batch_size,
        samples=NO_END_IN_SIGHT if spec.dataset.growing else spec.samples_total,
        limits=JobLimits(plan_of(resources.least), plan_of(resources.most)),
        prices=Prices(spec.prices.cpu_core_hour, spec.prices.memory_gib_hour),
        weight=spec.priority,
        metadata=dict(spec.model.metadata),
        initial=plan_of(resources.initial) if resources.initial else None,
        fixed=resources.fixed,
        deadline_s=spec.deadline_s,
    )


def submitted(message: events.JobSubmitted) -> jobs.JobSubmitted:
    """The job exists."""
    return jobs.JobSubmitted(message.job, profile_of(message.spec))


def applied(message: events.PlanApplied) -> jobs.PlanApplied:
    """All pods match the plan."""
    return jobs.PlanApplied(message.job, message.version, plan_of(message.plan), message.took_s)

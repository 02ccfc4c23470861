"""Shared mapping of planner and arbiter: plans, intervals and a job's profile between wire and core.

It is here because services do not import each other and core does not know the wire; only those two import it, so that
no other service loads the models of planning.
"""

from __future__ import annotations

from stretto_core import jobs
from stretto_core.model.types import JobLimits, JobProfile, Prices
from stretto_messages.actuator import PlanApplied
from stretto_messages.values import Interval
from stretto_wire import JobSpec
from stretto_wire.submission import JobSubmitted


def sent_interval(low: float | None, high: float | None) -> Interval | None:
    """An interval as it is sent; None unless both ends are known."""
    return None if low is None or high is None else Interval(low=low, high=high)


NO_END_IN_SIGHT = 10**13
"""samples of a dataset that grows, for decisions: a change of plan has all the time to pay off"""


def profile_of(spec: JobSpec) -> JobProfile:
    """Return the parts of a specification that decisions need."""
    resources = spec.resources
    return JobProfile(
        batch_size=spec.dataset.batch_size,
        samples=NO_END_IN_SIGHT if spec.dataset.growing else spec.samples_total,
        limits=JobLimits(resources.least, resources.most),
        prices=Prices(spec.prices.cpu_core_hour, spec.prices.memory_gib_hour),
        weight=spec.priority,
        metadata=dict(spec.model.metadata),
        initial=resources.initial,
        fixed=resources.fixed,
        deadline_s=spec.deadline_s,
    )


def submitted(message: JobSubmitted) -> jobs.JobSubmitted:
    """The job exists."""
    return jobs.JobSubmitted(message.job, profile_of(message.spec))


def applied(message: PlanApplied) -> jobs.PlanApplied:
    """All pods match the plan."""
    return jobs.PlanApplied(message.job, message.version, message.plan, message.took_s)

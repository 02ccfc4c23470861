"""Wire message <-> core event and fact. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from stretto_core import jobs
from stretto_core.candidates import Candidate
from stretto_core.types import JobLimits, JobProfile, Plan, Prices
from stretto_runtime import Meta
from stretto_wire import events, values
from stretto_wire.base import Message


def _plan(plan: values.Plan) -> Plan:
    return Plan(**plan.model_dump())


def _sent(plan: Plan) -> values.Plan:
    return values.Plan(**asdict(plan))


def _submitted(message: events.JobSubmitted) -> jobs.JobSubmitted:
    spec = message.spec
    resources = spec.resources
    profile = JobProfile(
        batch_size=spec.dataset.batch_size,
        samples=spec.samples_total,
        limits=JobLimits(_plan(resources.least), _plan(resources.most)),
        prices=Prices(spec.prices.cpu_core_hour, spec.prices.memory_gib_hour),
        weight=spec.priority,
        metadata=dict(spec.model.metadata),
        initial=_plan(resources.initial) if resources.initial else None,
        fixed=resources.fixed,
        deadline_s=spec.deadline_s,
    )
    return jobs.JobSubmitted(message.job, profile)


def _proposed(message: events.PlanProposed) -> jobs.PlanProposed:
    interval = message.throughput_interval
    return jobs.PlanProposed(
        job=message.job,
        kind=message.kind,
        plan=_plan(message.plan),
        cost_per_hour=message.cost_per_hour,
        reasons=message.reasons,
        throughput=message.throughput,
        throughput_low=interval.low if interval else None,
        throughput_high=interval.high if interval else None,
    )


def _computed(message: events.CandidatesComputed) -> jobs.CandidatesComputed:
    return jobs.CandidatesComputed(
        job=message.job,
        plan_version=message.plan_version,
        plan=_plan(message.plan),
        throughput=message.throughput,
        algorithm=message.algorithm,
        plans_considered=message.plans_considered,
        candidates=tuple(
            Candidate(
                plan=_plan(candidate.plan),
                throughput=candidate.throughput,
                throughput_low=candidate.throughput_interval.low,
                throughput_high=candidate.throughput_interval.high,
                cost_per_hour=candidate.cost_per_hour,
                overhead_s=candidate.overhead_s,
                gain=candidate.gain,
            )
            for candidate in message.candidates
        ),
    )


_EVENTS: dict[type[Message], Callable[[Any], Any]] = {
    events.JobSubmitted: _submitted,
    events.JobCancelled: lambda m: jobs.JobEnded(m.job, "cancelled"),
    events.PlanProposed: _proposed,
    events.CandidatesComputed: _computed,
    events.OomForecast: lambda m: jobs.OomForecast(m.job, m.action, m.recommended_ps_memory_bytes, m.reason),
    events.PlanApplied: lambda m: jobs.PlanApplied(m.job, m.version, _plan(m.plan), m.took_s),
    events.JobProgressed: lambda m: jobs.JobProgressed(m.job, m.samples_done, m.samples_total, m.samples_per_s),
    events.JobCompleted: lambda m: jobs.JobEnded(m.job, "completed"),
    events.JobFinished: lambda m: jobs.JobEnded(m.job, "gone"),
    events.JobFailed: lambda m: jobs.JobEnded(m.job, "failed"),
}


def to_event(message: Message, meta: Meta) -> Any:
    """The machine's event of a message."""
    return _EVENTS[type(message)](message)


def _interval(low: float | None, high: float | None) -> values.Interval | None:
    return None if low is None or high is None else values.Interval(low=low, high=high)


def _send_decided(fact: jobs.PlanDecided) -> events.PlanDecided:
    return events.PlanDecided(
        job=fact.job,
        version=fact.version,
        kind=fact.kind,
        plan=_sent(fact.plan),
        previous=_sent(fact.previous) if fact.previous else None,
        throughput=fact.throughput,
        throughput_interval=_interval(fact.throughput_low, fact.throughput_high),
        throughput_before=fact.throughput_before,
        cost_per_hour=fact.cost_per_hour,
        reasons=fact.reasons,
        alternatives=tuple(
            values.Alternative(
                plan=_sent(row.plan),
                throughput=row.throughput,
                cost_per_hour=row.cost_per_hour,
                efficiency=row.efficiency,
                why_not=row.why_not,
            )
            for row in fact.alternatives
        ),
        algorithm=fact.algorithm,
        free_cpu_cores=fact.free.cpu_cores,
        free_memory_bytes=fact.free.memory_bytes,
    )


def to_message(key: str, fact: Any) -> Message:
    """The message of a fact."""
    if isinstance(fact, jobs.PlanRefused):
        return events.PlanRefused(job=fact.job, kind=fact.kind, wanted=_sent(fact.wanted), reasons=fact.reasons)
    return _send_decided(fact)

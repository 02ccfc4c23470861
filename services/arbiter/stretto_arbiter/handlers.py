"""Wire message <-> core event and fact. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from stretto_core import jobs
from stretto_core.model.pareto import Candidate
from stretto_messages.actuator import (
    JobFailed,
    JobFinished,
    PlanApplied,
    PodExited,
    PodPending,
    PodStarted,
    ReplacementAsked,
    ReplacementEnded,
)
from stretto_messages.arbiter import PlanDecided, PlanRefused, ReplacementDecided
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import JobCancelled, PlanRequested
from stretto_messages.oom import OomForecast
from stretto_messages.planner import CandidatesComputed, PlanProposed
from stretto_messages.values import Alternative, Round, Studied
from stretto_runtime import Meta
from stretto_runtime.planning import applied, sent_interval, submitted
from stretto_wire.submission import JobSubmitted

from stretto_arbiter.observations import StudyDone


def _proposed(message: PlanProposed) -> jobs.PlanProposed:
    interval = message.throughput_interval
    return jobs.PlanProposed(
        job=message.job,
        kind=message.kind,
        plan=message.plan,
        cost_per_hour=message.cost_per_hour,
        reasons=message.reasons,
        throughput=message.throughput,
        throughput_low=interval.low if interval else None,
        throughput_high=interval.high if interval else None,
    )


def _requested(message: PlanRequested) -> jobs.PlanProposed:
    reason = f"{message.by} asks for it: the job gets it if there is room, whatever it brings"
    return jobs.PlanProposed(message.job, "requested", message.plan, 0.0, (reason,))


def _computed(message: CandidatesComputed) -> jobs.CandidatesComputed:
    return jobs.CandidatesComputed(
        job=message.job,
        plan_version=message.plan_version,
        plan=message.plan,
        throughput=message.throughput,
        algorithm=message.algorithm,
        plans_considered=message.plans_considered,
        candidates=tuple(
            Candidate(
                plan=candidate.plan,
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


def _pending(message: PodPending) -> jobs.PodUnplaced | jobs.PodSettled | None:
    """A pod whose image is on its way has found room; data workers are beyond the plan."""
    if message.role == "data":
        return None
    if message.reason == "image-pull":
        return jobs.PodSettled(message.job, message.pod)
    return jobs.PodUnplaced(message.job, message.pod, message.role, message.detail or message.reason)


def _studied(message: StudyDone) -> jobs.StudyDone:
    plans = {job: plan for job, plan in message.plans.items()}
    return jobs.StudyDone(message.number, plans, message.gap, message.took_s, message.fault)


def seen(job: str, done: jobs.StudyDone) -> StudyDone:
    """The observation of a study's answer."""
    plans = {name: plan for name, plan in done.plans.items()}
    return StudyDone(
        job=job, number=done.number, plans=plans, gap=done.gap, took_s=done.took_s, fault=done.fault[:2000]
    )


_EVENTS: dict[type[Message], Callable[[Any], Any]] = {
    JobSubmitted: submitted,
    JobCancelled: lambda m: jobs.JobEnded(m.job, "cancelled"),
    PlanProposed: _proposed,
    PlanRequested: _requested,
    CandidatesComputed: _computed,
    OomForecast: lambda m: jobs.OomForecast(m.job, m.action, m.recommended_ps_memory_bytes, m.reason),
    PlanApplied: applied,
    PodPending: _pending,
    PodStarted: lambda m: jobs.PodSettled(m.job, m.pod),
    PodExited: lambda m: jobs.PodSettled(m.job, m.pod),
    ReplacementAsked: lambda m: jobs.ReplacementAsked(m.job, m.pod),
    ReplacementEnded: lambda m: jobs.ReplacementEnded(m.job, m.pod),
    JobProgressed: lambda m: jobs.JobProgressed(m.job, m.samples_done, m.samples_total, m.samples_per_s),
    JobCompleted: lambda m: jobs.JobEnded(m.job, "completed"),
    JobFinished: lambda m: jobs.JobEnded(m.job, "gone"),
    JobFailed: lambda m: jobs.JobEnded(m.job, "failed"),
    StudyDone: _studied,
}


def to_event(message: Message, meta: Meta) -> Any:
    """The machine's event of a message; None: it decides nothing here."""
    return _EVENTS[type(message)](message)


def _sent_study(found: jobs.Studied) -> Studied:
    return Studied(**{**asdict(found), "reason": found.reason[:2000]})


def _sent_round(found: jobs.Round) -> Round:
    return Round(
        algorithm=found.algorithm,
        objective=found.objective,
        jobs=found.jobs,
        value=found.value,
        bound=found.bound,
        gap=found.gap,
        term=found.term,
        study=_sent_study(found.study) if found.study else None,
    )


def _send_decided(fact: jobs.PlanDecided) -> PlanDecided:
    return PlanDecided(
        job=fact.job,
        version=fact.version,
        kind=fact.kind,
        plan=fact.plan,
        previous=fact.previous,
        throughput=fact.throughput,
        throughput_interval=sent_interval(fact.throughput_low, fact.throughput_high),
        throughput_before=fact.throughput_before,
        cost_per_hour=fact.cost_per_hour,
        reasons=fact.reasons,
        alternatives=tuple(
            Alternative(
                plan=row.plan,
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
        round=_sent_round(fact.round) if fact.round else None,
    )


def to_message(key: str, fact: Any) -> Message:
    """The message of a fact."""
    if isinstance(fact, jobs.PlanRefused):
        return PlanRefused(job=fact.job, kind=fact.kind, wanted=fact.wanted, reasons=fact.reasons)
    if isinstance(fact, jobs.ReplacementDecided):
        return ReplacementDecided(job=fact.job, pod=fact.pod, granted=fact.granted, reasons=fact.reasons)
    return _send_decided(fact)

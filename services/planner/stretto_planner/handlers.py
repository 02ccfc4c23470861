"""Wire message <-> core event and fact. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from stretto_core import jobs
from stretto_core.model.pareto import Candidate
from stretto_core.model.throughput import Configuration, FittedModel, KnownModel
from stretto_core.model.types import Resources
from stretto_core.planner.warmstart import PastJob, SimilarJob
from stretto_runtime import Meta
from stretto_runtime.planning import applied, plan_of, sent_interval, sent_plan, submitted
from stretto_wire import events, values
from stretto_wire.base import Message


def _recorded(message: events.HistoryRecorded) -> jobs.HistoryRecorded:
    past = PastJob(
        job=message.job,
        metadata=dict(message.metadata),
        plan=plan_of(message.plan),
        throughput=message.throughput,
        duration_s=message.duration_s,
        ps_memory_peak_bytes=message.ps_memory_peak_bytes,
        samples=message.samples,
        model=_known(message.model),
    )
    return jobs.HistoryRecorded(message.job, past)


def _known(model: values.KnownModel | None) -> KnownModel | None:
    return None if model is None else KnownModel(**model.model_dump())


def _sent_known(model: KnownModel | None) -> values.KnownModel | None:
    return None if model is None else values.KnownModel(**asdict(model))


def _matched(message: events.HistoryMatched) -> jobs.HistoryMatched:
    matches = tuple(
        SimilarJob(
            past=PastJob(match.job, {}, plan_of(match.plan), match.throughput, 0.0, 0, 0),
            similarity=match.similarity,
            features=dict(match.features),
            weight=match.weight,
        )
        for match in message.matches
    )
    plan = plan_of(message.plan) if message.plan else None
    metadata, model = dict(message.metadata), _known(message.model)
    return jobs.HistoryMatched(message.job, metadata, matches, message.smoothing, plan, model)


def _decided(message: events.PlanDecided) -> jobs.PlanDecided:
    return jobs.PlanDecided(
        job=message.job,
        version=message.version,
        kind=message.kind,
        plan=plan_of(message.plan),
        previous=plan_of(message.previous) if message.previous else None,
        cost_per_hour=message.cost_per_hour,
        reasons=message.reasons,
        algorithm=message.algorithm,
        free=Resources(message.free_cpu_cores, message.free_memory_bytes),
    )


def _fitted(message: events.ModelFitted) -> jobs.ModelFitted:
    measured = tuple(
        jobs.MeasuredConfiguration(
            Configuration(row.workers, row.ps, row.worker_cpu_cores, row.ps_cpu_cores, row.batch_size),
            row.step_time_s,
            row.windows,
            row.log_sd,
        )
        for row in message.measured
    )
    model = FittedModel(
        form=message.form,
        coefficients=dict(message.coefficients),
        covariance=message.covariance,
        noise_sd=message.log_sd,
        dof=message.degrees_of_freedom,
        rmsle=message.rmsle,
        unidentified=message.unidentified,
        measured=tuple(row.configuration for row in measured),
        overlap=message.overlap,
    )
    return jobs.ModelFitted(
        job=message.job,
        model=model,
        windows=message.points,
        measured=measured,
        plan_version=message.plan_version,
        plan=plan_of(message.plan),
        batch_size=message.batch_size,
        measured_step_time_s=message.measured_step_time_s,
        predicted_step_time_s=message.predicted_step_time_s,
        predicted_low_s=message.predicted_interval_s.low,
        predicted_high_s=message.predicted_interval_s.high,
    )


def _measured(message: events.ProfileMeasured) -> jobs.ProfileMeasured:
    return jobs.ProfileMeasured(
        job=message.job,
        plan_version=message.plan_version,
        plan=plan_of(message.plan),
        batch_size=message.batch_size,
        window_s=message.window_s,
        step_time_s=message.step_time_s,
        components_s={},
        throughput=message.throughput,
        ps_memory_used_bytes=max((ps.memory_used_bytes for ps in message.ps), default=0),
        settled=message.settled,
    )


_EVENTS: dict[type[Message], Callable[[Any], Any]] = {
    events.JobSubmitted: submitted,
    events.HistoryRecorded: _recorded,
    events.HistoryMatched: _matched,
    events.PlanDecided: _decided,
    events.PlanRefused: lambda m: jobs.PlanRefused(m.job, m.kind, plan_of(m.wanted), m.reasons),
    events.PlanApplied: applied,
    events.ModelFitted: _fitted,
    events.ProfileMeasured: _measured,
    events.JobProgressed: lambda m: jobs.JobProgressed(m.job, m.samples_done, m.samples_total, m.samples_per_s),
    events.JobCompleted: lambda m: jobs.JobEnded(m.job, "completed"),
    events.JobCancelled: lambda m: jobs.JobEnded(m.job, "cancelled"),
    events.JobFailed: lambda m: jobs.JobEnded(m.job, "failed"),
}


def to_event(message: Message, meta: Meta) -> Any:
    """The machine's event of a message."""
    return _EVENTS[type(message)](message)


def _send_matched(fact: jobs.HistoryMatched) -> events.HistoryMatched:
    return events.HistoryMatched(
        job=fact.job,
        metadata=fact.metadata,
        matches=tuple(
            values.Match(
                job=match.past.job,
                similarity=min(match.similarity, 1.0),
                weight=min(match.weight, 1.0),
                plan=sent_plan(match.past.plan),
                throughput=match.past.throughput,
                features=match.features,
            )
            for match in fact.matches
        ),
        smoothing=fact.smoothing,
        plan=sent_plan(fact.plan) if fact.plan else None,
        model=_sent_known(fact.model),
    )


def _send_recorded(fact: jobs.HistoryRecorded) -> events.HistoryRecorded:
    past = fact.past
    return events.HistoryRecorded(
        job=fact.job,
        metadata=past.metadata,
        plan=sent_plan(past.plan),
        throughput=past.throughput,
        duration_s=past.duration_s,
        ps_memory_peak_bytes=past.ps_memory_peak_bytes,
        samples=past.samples,
        model=_sent_known(past.model),
    )


def _send_proposed(fact: jobs.PlanProposed) -> events.PlanProposed:
    return events.PlanProposed(
        job=fact.job,
        kind=fact.kind,
        plan=sent_plan(fact.plan),
        throughput=fact.throughput,
        throughput_interval=sent_interval(fact.throughput_low, fact.throughput_high),
        cost_per_hour=fact.cost_per_hour,
        reasons=fact.reasons,
    )


def _send_candidate(index: int, candidate: Candidate) -> values.Candidate:
    return values.Candidate(
        id=f"c{index}",
        plan=sent_plan(candidate.plan),
        cost_per_hour=candidate.cost_per_hour,
        throughput=candidate.throughput,
        throughput_interval=values.Interval(low=candidate.throughput_low, high=candidate.throughput_high),
        gain=candidate.gain,
        overhead_s=candidate.overhead_s,
    )


def _send_candidates(fact: jobs.CandidatesComputed) -> events.CandidatesComputed:
    return events.CandidatesComputed(
        job=fact.job,
        plan_version=fact.plan_version,
        plan=sent_plan(fact.plan),
        throughput=fact.throughput,
        algorithm=fact.algorithm,
        plans_considered=fact.plans_considered,
        candidates=tuple(_send_candidate(i, candidate) for i, candidate in enumerate(fact.candidates)),
    )


_MESSAGES: dict[type, Callable[[Any], Message]] = {
    jobs.HistoryMatched: _send_matched,
    jobs.HistoryRecorded: _send_recorded,
    jobs.PlanProposed: _send_proposed,
    jobs.CandidatesComputed: _send_candidates,
}


def to_message(key: str, fact: Any) -> Message:
    """The message of a fact."""
    return _MESSAGES[type(fact)](fact)

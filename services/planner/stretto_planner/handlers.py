"""Wire message <-> core event and fact. Nothing is decided here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from stretto_core import jobs
from stretto_core.model.pareto import Candidate as CoreCandidate
from stretto_core.model.throughput import Configuration, FittedModel
from stretto_core.model.throughput import KnownModel as CoreKnownModel
from stretto_core.planner.warmstart import PastJob, SimilarJob
from stretto_messages.actuator import JobFailed, PlanApplied
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.fitter import ModelFitted
from stretto_messages.gateway import JobCancelled
from stretto_messages.planner import CandidatesComputed, HistoryMatched, HistoryRecorded, PlanProposed
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Candidate, Interval, KnownModel, Match, Resources
from stretto_runtime import Meta
from stretto_runtime.planning import applied, sent_interval, submitted
from stretto_wire.submission import JobSubmitted


def _recorded(message: HistoryRecorded) -> jobs.HistoryRecorded:
    past = PastJob(
        job=message.job,
        metadata=dict(message.metadata),
        plan=message.plan,
        throughput=message.throughput,
        duration_s=message.duration_s,
        ps_memory_peak_bytes=message.ps_memory_peak_bytes,
        samples=message.samples,
        model=_known(message.model),
    )
    return jobs.HistoryRecorded(message.job, past)


def _known(model: KnownModel | None) -> CoreKnownModel | None:
    return None if model is None else CoreKnownModel(**asdict(model))


def _sent_known(model: CoreKnownModel | None) -> KnownModel | None:
    return None if model is None else KnownModel(**asdict(model))


def _matched(message: HistoryMatched) -> jobs.HistoryMatched:
    matches = tuple(
        SimilarJob(
            past=PastJob(match.job, {}, match.plan, match.throughput, 0.0, 0, 0),
            similarity=match.similarity,
            features=dict(match.features),
            weight=match.weight,
        )
        for match in message.matches
    )
    plan = message.plan
    metadata, model = dict(message.metadata), _known(message.model)
    return jobs.HistoryMatched(message.job, metadata, matches, message.smoothing, plan, model)


def _decided(message: PlanDecided) -> jobs.PlanDecided:
    return jobs.PlanDecided(
        job=message.job,
        version=message.version,
        kind=message.kind,
        plan=message.plan,
        previous=message.previous,
        cost_per_hour=message.cost_per_hour,
        reasons=message.reasons,
        algorithm=message.algorithm,
        free=Resources(message.free_cpu_cores, message.free_memory_bytes),
    )


def _fitted(message: ModelFitted) -> jobs.ModelFitted:
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
        plan=message.plan,
        batch_size=message.batch_size,
        measured_step_time_s=message.measured_step_time_s,
        predicted_step_time_s=message.predicted_step_time_s,
        predicted_low_s=message.predicted_interval_s.low,
        predicted_high_s=message.predicted_interval_s.high,
    )


def _measured(message: ProfileMeasured) -> jobs.ProfileMeasured:
    return jobs.ProfileMeasured(
        job=message.job,
        plan_version=message.plan_version,
        plan=message.plan,
        batch_size=message.batch_size,
        window_s=message.window_s,
        step_time_s=message.step_time_s,
        components_s={},
        throughput=message.throughput,
        ps_memory_used_bytes=max((ps.memory_used_bytes for ps in message.ps), default=0),
        settled=message.settled,
    )


_EVENTS: dict[type[Message], Callable[[Any], Any]] = {
    JobSubmitted: submitted,
    HistoryRecorded: _recorded,
    HistoryMatched: _matched,
    PlanDecided: _decided,
    PlanRefused: lambda m: jobs.PlanRefused(m.job, m.kind, m.wanted, m.reasons),
    PlanApplied: applied,
    ModelFitted: _fitted,
    ProfileMeasured: _measured,
    JobProgressed: lambda m: jobs.JobProgressed(m.job, m.samples_done, m.samples_total, m.samples_per_s),
    JobCompleted: lambda m: jobs.JobEnded(m.job, "completed"),
    JobCancelled: lambda m: jobs.JobEnded(m.job, "cancelled"),
    JobFailed: lambda m: jobs.JobEnded(m.job, "failed"),
}


def to_event(message: Message, meta: Meta) -> Any:
    """The machine's event of a message."""
    return _EVENTS[type(message)](message)


def _send_matched(fact: jobs.HistoryMatched) -> HistoryMatched:
    return HistoryMatched(
        job=fact.job,
        metadata=fact.metadata,
        matches=tuple(
            Match(
                job=match.past.job,
                similarity=min(match.similarity, 1.0),
                weight=min(match.weight, 1.0),
                plan=match.past.plan,
                throughput=match.past.throughput,
                features=match.features,
            )
            for match in fact.matches
        ),
        smoothing=fact.smoothing,
        plan=fact.plan,
        model=_sent_known(fact.model),
    )


def _send_recorded(fact: jobs.HistoryRecorded) -> HistoryRecorded:
    past = fact.past
    return HistoryRecorded(
        job=fact.job,
        metadata=past.metadata,
        plan=past.plan,
        throughput=past.throughput,
        duration_s=past.duration_s,
        ps_memory_peak_bytes=past.ps_memory_peak_bytes,
        samples=past.samples,
        model=_sent_known(past.model),
    )


def _send_proposed(fact: jobs.PlanProposed) -> PlanProposed:
    return PlanProposed(
        job=fact.job,
        kind=fact.kind,
        plan=fact.plan,
        throughput=fact.throughput,
        throughput_interval=sent_interval(fact.throughput_low, fact.throughput_high),
        cost_per_hour=fact.cost_per_hour,
        reasons=fact.reasons,
    )


def _send_candidate(index: int, candidate: CoreCandidate) -> Candidate:
    return Candidate(
        id=f"c{index}",
        plan=candidate.plan,
        cost_per_hour=candidate.cost_per_hour,
        throughput=candidate.throughput,
        throughput_interval=Interval(low=candidate.throughput_low, high=candidate.throughput_high),
        gain=candidate.gain,
        overhead_s=candidate.overhead_s,
    )


def _send_candidates(fact: jobs.CandidatesComputed) -> CandidatesComputed:
    return CandidatesComputed(
        job=fact.job,
        plan_version=fact.plan_version,
        plan=fact.plan,
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

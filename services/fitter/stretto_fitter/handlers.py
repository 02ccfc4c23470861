"""Wire message <-> core event and fact. Nothing is decided here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stretto_core import jobs
from stretto_core.model.throughput import KnownModel
from stretto_messages.actuator import JobFailed
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted
from stretto_messages.fitter import ModelFitted
from stretto_messages.gateway import JobCancelled
from stretto_messages.planner import HistoryMatched
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import Interval, MeasuredConfiguration, Plan
from stretto_runtime import Meta

_OUTCOMES: dict[type[Message], jobs.Outcome] = {
    JobCompleted: "completed",
    JobCancelled: "cancelled",
    JobFailed: "failed",
}


def to_event(message: Message, meta: Meta) -> Any:
    """The machine's event of a message."""
    if isinstance(message, JobCompleted | JobCancelled | JobFailed):
        return jobs.JobEnded(message.job, _OUTCOMES[type(message)])
    if isinstance(message, HistoryMatched):  # of the matches only what was learned matters here
        model = None if message.model is None else KnownModel(**asdict(message.model))
        return jobs.HistoryMatched(message.job, {}, (), message.smoothing, None, model)
    if not isinstance(message, ProfileMeasured):
        return None
    times = message.times
    components = {"emb": times.emb_s, "grad": times.grad_s, "upd": times.upd_s, "sync": times.sync_s}
    return jobs.ProfileMeasured(
        job=message.job,
        plan_version=message.plan_version,
        plan=message.plan,
        batch_size=message.batch_size,
        window_s=message.window_s,
        step_time_s=message.step_time_s,
        components_s=components if any(components.values()) else {},
        throughput=message.throughput,
        ps_memory_used_bytes=max((ps.memory_used_bytes for ps in message.ps), default=0),
        settled=message.settled,
    )


def to_message(key: str, fact: Any) -> Message:
    """The message of a fact: a fitter has only one kind."""
    fitted: jobs.ModelFitted = fact
    model = fitted.model
    return ModelFitted(
        job=fitted.job,
        form=model.form,  # type: ignore[arg-type]
        coefficients=model.coefficients,
        overlap=model.overlap,
        log_sd=model.noise_sd,
        covariance=model.covariance,
        degrees_of_freedom=model.dof,
        measured=tuple(_measured(row) for row in fitted.measured),
        rmsle=model.rmsle,
        points=fitted.windows,
        configurations=len(fitted.measured),
        unidentified=model.unidentified,
        plan_version=fitted.plan_version,
        plan=Plan(**asdict(fitted.plan)),
        batch_size=fitted.batch_size,
        measured_step_time_s=fitted.measured_step_time_s,
        predicted_step_time_s=fitted.predicted_step_time_s,
        predicted_interval_s=Interval(low=fitted.predicted_low_s, high=fitted.predicted_high_s),
    )


def _measured(row: jobs.MeasuredConfiguration) -> MeasuredConfiguration:
    at = row.configuration
    return MeasuredConfiguration(
        workers=at.workers,
        ps=at.ps,
        worker_cpu_cores=at.worker_cpu_cores,
        ps_cpu_cores=at.ps_cpu_cores,
        batch_size=at.batch_size,
        step_time_s=row.step_time_s,
        windows=row.windows,
        log_sd=row.log_sd,
    )

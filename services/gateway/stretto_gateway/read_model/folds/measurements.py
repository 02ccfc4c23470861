"""Folds of measurements into the view of their job: profiles, telemetry, fitted models and forecasts.

A pod's limits come from the actuator's events, not from its telemetry: a pod reports the limits of its start. The
histories of throughput, memory and fits are thinned when they are full, so that they always span the whole job.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import singledispatchmethod

from stretto_core.model.stages import measured_times_s
from stretto_messages.base import Message
from stretto_messages.fitter import ModelFitted
from stretto_messages.oom import OomForecast
from stretto_messages.pods import PsReported, WorkerReported
from stretto_messages.profiler import HotPsCleared, HotPsDetected, ProfileMeasured, StragglerCleared, StragglerDetected
from stretto_wire.rest import views
from stretto_wire.rest.sentences import sentence

from .fold import Fold, push, record

HISTORY_POINTS = 1024
FITS = 256
MEMORY_FIGURES = 8192
"""Memory figures in the history of a job, of all its servers together; a job has up to 1,000 servers."""
MEMORY_POINTS_MIN = 32


class MeasurementFold(Fold):
    """Fold of profiles, telemetry, stragglers, hot servers, models and forecasts."""

    @singledispatchmethod
    def fold(self, message: Message) -> None:
        """Ignore messages of other kinds."""

    @fold.register
    def _(self, message: ProfileMeasured) -> None:
        view = self.view
        point = views.ThroughputPoint(
            self.time_s,
            message.plan_version,
            message.plan.workers,
            message.plan.ps,
            message.throughput,
            message.step_time_s,
            message.settled,
        )
        if message.step_time_s > 0:  # a watched program may tell no steps
            record(view.throughput, point, HISTORY_POINTS)
        measured = views.Measured(
            self.time_s,
            message.plan_version,
            message.plan,
            message.throughput,
            message.step_time_s,
            message.times,
            message.window_s,
            message.samples_total,
            message.categories,
            message.settled,
            message.prepared_elsewhere,
            message.rows,
        )
        self.evidence.measured = measured
        for worker in message.workers:
            if (pod := view.pods.get(worker.pod)) is not None:
                pod.samples_per_s, pod.step_time_s = worker.samples_per_s, worker.step_time_s
        if message.settled and view.level:  # of a watched program no speed was predicted
            self.evidence.measured_settled = measured
            self._bring(message)

    def _bring(self, message: ProfileMeasured) -> None:
        """Update the outcome of the decision that made this plan: medians over the plan's settled windows."""
        windows = self.evidence.settled.setdefault(message.plan_version, [])
        push(windows, (message.throughput, message.step_time_s))
        steps = message.throughput * message.window_s / message.batch_size
        reads = max((server.rows_read for server in message.ps), default=0) / steps if steps >= 1 else 0.0
        for decision in reversed(self.view.decisions):
            if decision.version != message.plan_version:
                continue
            outcome = decision.outcome
            outcome.windows += 1
            brought = statistics.median(rate for rate, _ in windows)
            outcome.throughput = brought
            outcome.step_time_s = statistics.median(step for _, step in windows)
            outcome.reads_per_step = reads or outcome.reads_per_step
            outcome.stage_times_s = measured_times_s(message) or outcome.stage_times_s
            if decision.throughput_before:
                outcome.gain = brought / decision.throughput_before
            if decision.throughput:
                outcome.prediction_error = (brought - decision.throughput) / decision.throughput
            if decision.throughput_interval is not None:
                interval = decision.throughput_interval
                outcome.inside_interval = interval.low <= brought <= interval.high
            decision.in_words = sentence(decision)
            return

    @fold.register
    def _(self, message: WorkerReported) -> None:
        pod = self.view.pods.get(message.pod)
        if pod is not None:
            pod.cpu_used_cores, pod.memory_used_bytes = message.cpu_used_cores, message.memory_used_bytes
            pod.samples_total = message.samples_total
            pod.step_bytes, pod.step_bytes_exact = message.step_bytes, message.step_bytes_exact
            pod.reported_at_s = self.time_s
        if message.steps == 0:
            return
        # the gap ended within the window; it may have begun before it
        opened_at_s = message.ended_at_s - message.window_s - message.longest_gap_s
        for phase in self.view.phases[-4:]:
            if phase.ended_at_s is not None and phase.ended_at_s < opened_at_s:
                continue
            if phase.started_at_s > message.ended_at_s:
                continue
            phase.reports += 1
            if phase.longest_gap_s is None or message.longest_gap_s > phase.longest_gap_s:
                phase.longest_gap_s, phase.longest_gap_pod = message.longest_gap_s, message.pod
        for migration in self.view.migrations[-4:]:
            if migration.finished_at_s is not None and migration.finished_at_s < opened_at_s:
                continue
            migration.longest_gap_s = max(migration.longest_gap_s or 0.0, message.longest_gap_s)

    @fold.register
    def _(self, message: PsReported) -> None:
        pod = self.view.pods.get(message.pod)
        if pod is None:
            return
        pod.cpu_used_cores, pod.memory_used_bytes = message.cpu_used_cores, message.memory_used_bytes
        pod.update_time_s, pod.categories, pod.buckets = message.update_time_s, message.categories, message.buckets
        pod.cold_rows, pod.log_bytes, pod.spill_fault = message.cold_rows, message.log_bytes, message.spill_fault
        pod.warm_rows, pod.warm_bytes = message.warm_rows, message.warm_bytes
        pod.row_bytes = message.row_bytes
        pod.reported_at_s = self.time_s

    @fold.register
    def _(self, message: StragglerDetected) -> None:
        self._mark(message.pod, lambda pod: setattr(pod, "straggler", True))

    @fold.register
    def _(self, message: StragglerCleared) -> None:
        self._mark(message.pod, lambda pod: setattr(pod, "straggler", False))

    @fold.register
    def _(self, message: HotPsDetected) -> None:
        self._mark(message.pod, lambda pod: setattr(pod, "hot", True))

    @fold.register
    def _(self, message: HotPsCleared) -> None:
        self._mark(message.pod, lambda pod: setattr(pod, "hot", False))

    def _mark(self, pod: str, change: Callable[[views.PodView], None]) -> None:
        if (found := self.view.pods.get(pod)) is not None:
            change(found)

    @fold.register
    def _(self, message: ModelFitted) -> None:
        self.view.model = views.Model.of(message, self.time_s)
        record(self.view.fits, views.Fit.of(message, self.time_s), FITS)

    @fold.register
    def _(self, message: OomForecast) -> None:
        forecast = views.Forecast(
            self.time_s,
            message.ps,
            message.samples_done,
            message.samples_total,
            message.horizon_s,
            message.recommended_ps_memory_bytes,
            message.limit_ps_memory_bytes,
            message.action,
            message.reason,
            message.remedies,
        )
        self.view.forecast = forecast
        push(self.view.forecasts, forecast)
        # a point has a figure of each server, so that a job with many servers has fewer points
        points = max(MEMORY_POINTS_MIN, min(HISTORY_POINTS, MEMORY_FIGURES // max(1, len(message.ps))))
        record(self.view.memory, views.MemoryPoint(self.time_s, message.samples_done, message.ps), points)

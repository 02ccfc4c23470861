"""How one event changes the view of its job.

Limits of a pod are those that the actuator has set: a pod tells the ones that it was started with.

Lists are bounded; the throughput history is thinned to every second point when it is full, so that it always spans
the whole job.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import singledispatchmethod
from typing import TypeVar

from stretto_messages.actuator import JobFailed, JobFinished, PlanApplied
from stretto_messages.arbiter import PlanDecided, PlanRefused
from stretto_messages.base import Message
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.fitter import ModelFitted
from stretto_messages.gateway import JobCancelled
from stretto_messages.oom import OomForecast
from stretto_messages.planner import CandidatesComputed, HistoryMatched, PlanProposed
from stretto_messages.pods import PsReported, WorkerReported
from stretto_messages.profiler import HotPsCleared, HotPsDetected, ProfileMeasured, StragglerCleared, StragglerDetected

from . import views as v

HISTORY_POINTS = 1024
LIST_LIMIT = 500

T = TypeVar("T")


def push(items: list[T], item: T, limit: int = LIST_LIMIT) -> None:
    items.append(item)
    if len(items) > limit:
        del items[0]


class Evidence:
    """What the next decision of a job will rest on, and the settled windows of each plan."""

    def __init__(self) -> None:
        self.measured: v.Measured | None = None
        self.measured_settled: v.Measured | None = None
        self.front: v.Front | None = None
        self.proposals: dict[str, v.Proposal] = {}
        self.warm_start: v.WarmStart | None = None
        self.settled: dict[int, list[tuple[float, float]]] = {}
        self.completed: JobCompleted | None = None
        self.finished: JobFinished | None = None


class Fold:
    """One event on one job."""

    def __init__(self, view: v.JobView, evidence: Evidence, seq: int, time_s: float) -> None:
        self.view = view
        self.evidence = evidence
        self.seq = seq
        self.time_s = time_s

    def _train(self) -> None:
        if self.view.status in ("submitted", "waiting", "starting"):
            self.view.status, self.view.reason = "training", ""
            self.view.started_at_s = self.view.progress.advanced_at_s = self.time_s

    def _enter(self, kind: v.PhaseKind, detail: str) -> None:
        self.view.phases[-1].ended_at_s = self.time_s
        push(self.view.phases, v.Phase(kind, self.view.plan_version, detail, self.time_s))


class JobFold(Fold):
    """The job itself: its course, its measurements, its decisions."""

    @singledispatchmethod
    def fold(self, message: Message) -> None:
        """Messages that change no view (fleeting requests, telemetry of other kinds) are passed over."""

    # the job -----------------------------------------------------------------------------------------------------

    @fold.register
    def _(self, message: JobCancelled) -> None:
        self._end("cancelled", message.reason or f"by {message.by}")

    @fold.register
    def _(self, message: JobFailed) -> None:
        self._end("failed", message.reason)

    @fold.register
    def _(self, message: JobProgressed) -> None:
        self._train()
        progress = self.view.progress
        if message.samples_done != progress.samples_done:  # fewer after a restore: then it trains, too
            progress.advanced_at_s = self.time_s
        progress.samples_done = message.samples_done
        progress.samples_total = message.samples_total
        progress.epoch = message.epoch
        progress.samples_per_s = message.samples_per_s
        progress.updated_at_s = self.time_s

    @fold.register
    def _(self, message: JobCompleted) -> None:
        self.evidence.completed = message
        self.view.progress.samples_done = message.samples
        self.view.progress.updated_at_s = self.time_s
        if self.view.status not in v.OVER:
            self.view.status = "finishing"
            self._enter("finishing", "every sample trained; books and evaluation")

    @fold.register
    def _(self, message: JobFinished) -> None:
        completed, self.evidence.finished = self.evidence.completed, message
        self.view.books = v.Books(
            samples_expected=message.samples_expected,
            samples_applied=message.samples_applied,
            samples_lost=message.samples_lost,
            samples_repeated=message.samples_repeated,
            repeats_recognised=message.repeats_recognised,
            samples_abandoned=completed.samples_abandoned if completed else 0,
            rows=message.rows,
            checksum=message.checksum,
            evaluation=message.evaluation,
            shards=completed.shards if completed else self.view.shards.completed,
            requeued=completed.requeued if completed else self.view.shards.requeued,
        )
        self._end("finished", "")

    def _end(self, status: v.Status, reason: str) -> None:
        if self.view.status in v.OVER:
            return
        self.view.status = status
        self.view.reason = reason
        self.view.ended_at_s = self.time_s
        self.view.progress.samples_per_s = 0.0
        self.view.shards.leased.clear()
        self.view.phases[-1].ended_at_s = self.time_s

    # measurements ------------------------------------------------------------------------------------------------

    @fold.register
    def _(self, message: ProfileMeasured) -> None:
        view = self.view
        view.throughput.append(
            v.ThroughputPoint(
                self.time_s,
                message.plan_version,
                message.plan.workers,
                message.plan.ps,
                message.throughput,
                message.step_time_s,
                message.settled,
            )
        )
        if len(view.throughput) > HISTORY_POINTS:
            del view.throughput[:-1:2]
        measured = v.Measured(
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
        )
        self.evidence.measured = measured
        for worker in message.workers:
            if (pod := view.pods.get(worker.pod)) is not None:
                pod.samples_per_s, pod.step_time_s = worker.samples_per_s, worker.step_time_s
        if message.settled:
            self.evidence.measured_settled = measured
            self._bring(message)

    def _bring(self, message: ProfileMeasured) -> None:
        """What the decision of this plan has brought so far: medians of its settled windows."""
        windows = self.evidence.settled.setdefault(message.plan_version, [])
        push(windows, (message.throughput, message.step_time_s))
        for decision in reversed(self.view.decisions):
            if decision.version != message.plan_version:
                continue
            outcome = decision.outcome
            outcome.windows += 1
            brought = statistics.median(rate for rate, _ in windows)
            outcome.throughput = brought
            outcome.step_time_s = statistics.median(step for _, step in windows)
            if decision.throughput_before:
                outcome.gain = brought / decision.throughput_before
            if decision.throughput:
                outcome.prediction_error = (brought - decision.throughput) / decision.throughput
            if decision.throughput_interval is not None:
                interval = decision.throughput_interval
                outcome.inside_interval = interval.low <= brought <= interval.high
            return

    @fold.register
    def _(self, message: WorkerReported) -> None:
        pod = self.view.pods.get(message.pod)
        if pod is not None:
            pod.cpu_used_cores, pod.memory_used_bytes = message.cpu_used_cores, message.memory_used_bytes
            pod.samples_total = message.samples_total
            pod.reported_at_s = self.time_s
        if message.steps == 0:
            return
        # the gap ended with a step of the window; it may have begun before the window did
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

    def _mark(self, pod: str, change: Callable[[v.PodView], None]) -> None:
        if (found := self.view.pods.get(pod)) is not None:
            change(found)

    @fold.register
    def _(self, message: ModelFitted) -> None:
        self.view.model = v.Fitted(
            self.time_s,
            message.form,
            message.coefficients,
            message.rmsle,
            message.log_sd,
            message.points,
            message.configurations,
            message.unidentified,
            message.measured_step_time_s,
            message.predicted_step_time_s,
            message.predicted_interval_s,
        )

    @fold.register
    def _(self, message: OomForecast) -> None:
        forecast = v.Forecast(
            self.time_s,
            message.ps,
            message.samples_done,
            message.samples_total,
            message.horizon_s,
            message.recommended_ps_memory_bytes,
            message.limit_ps_memory_bytes,
            message.action,
            message.reason,
        )
        self.view.forecast = forecast
        push(self.view.forecasts, forecast)

    # decisions ---------------------------------------------------------------------------------------------------

    @fold.register
    def _(self, message: HistoryMatched) -> None:
        self.evidence.warm_start = v.WarmStart(self.time_s, message.matches, message.smoothing, message.plan)

    @fold.register
    def _(self, message: CandidatesComputed) -> None:
        self.evidence.front = v.Front(
            self.time_s, message.algorithm, message.plans_considered, message.throughput, message.candidates
        )

    @fold.register
    def _(self, message: PlanProposed) -> None:
        self.evidence.proposals[message.kind] = v.Proposal(
            self.time_s,
            message.kind,
            message.plan,
            message.throughput,
            message.throughput_interval,
            message.reasons,
        )

    @fold.register
    def _(self, message: PlanDecided) -> None:
        view, evidence = self.view, self.evidence
        measured = evidence.measured_settled or evidence.measured
        before = message.throughput_before or (measured.throughput if measured else None)
        view.plan, view.plan_version, view.cost_per_hour = message.plan, message.version, message.cost_per_hour
        push(
            view.decisions,
            v.Decision(
                version=message.version,
                kind=message.kind,
                time_s=self.time_s,
                seq=self.seq,
                plan=message.plan,
                previous=message.previous,
                throughput=message.throughput,
                throughput_interval=message.throughput_interval,
                throughput_before=before,
                cost_per_hour=message.cost_per_hour,
                reasons=message.reasons,
                alternatives=message.alternatives,
                algorithm=message.algorithm,
                free_cpu_cores=message.free_cpu_cores,
                free_memory_bytes=message.free_memory_bytes,
                round=message.round,
                measured=measured,
                fitted=view.model,
                front=evidence.front if message.kind in ("improve", "measure", "fit-capacity") else None,
                proposal=evidence.proposals.get(message.kind),
                warm_start=evidence.warm_start if message.previous is None else None,
                forecast=view.forecast if message.kind == "memory" else None,
            ),
        )
        if view.status in ("submitted", "waiting"):
            view.status, view.reason = "starting", ""
        self._enter("applying", f"plan {message.version} ({message.kind})")

    @fold.register
    def _(self, message: PlanRefused) -> None:
        push(self.view.refusals, v.Refusal(self.time_s, message.kind, message.wanted, message.reasons))
        if self.view.status in ("submitted", "waiting"):
            self.view.status, self.view.reason = "waiting", message.reasons[-1] if message.reasons else ""

    @fold.register
    def _(self, message: PlanApplied) -> None:
        self.view.applied_version = message.version
        for decision in reversed(self.view.decisions):
            if decision.version == message.version:
                decision.outcome.applied_at_s, decision.outcome.took_s = self.time_s, message.took_s
                break
        if message.version == self.view.plan_version and self.view.status not in (*v.OVER, "finishing"):
            self._enter("steady", f"plan {message.version}")

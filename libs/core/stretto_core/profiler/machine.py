"""Telemetry of one job: checked, put together into windows, and compared to find stragglers and hot servers.

A window spans ``window_s`` of stored time and one plan. A report is believed only after it was checked against the
earlier reports of its pod, and figures of the job are medians over pods, so that one liar or one slow machine does not
bend a profile. The comparisons follow DLRover-RM section 5.2: a pod is judged by its peers of the same job.
"""

from __future__ import annotations

from statistics import median
from typing import Any, TypeVar

from stretto_messages.actuator import (
    JobFailed,
    MigrationFinished,
    MigrationStarted,
    PlanApplied,
    PodExited,
    PodResized,
    PodStarted,
)
from stretto_messages.arbiter import PlanDecided
from stretto_messages.books import total_rows
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import JobCancelled
from stretto_messages.pods import DataWorkerReported, PsReported, WorkerReported
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import MISS_POINTS, Plan, PsProfile, WorkerProfile

from stretto_core.machine import Action, Emit
from stretto_core.profiler.peers import ClosedWindow, Detector, cusum
from stretto_core.profiler.state import (
    ImpossibleTelemetry,
    JobOpened,
    PodWindow,
    ProfilerState,
    ProfilingRules,
    ReportingRole,
    WindowSums,
)
from stretto_core.profiler.window import (
    add_data_worker,
    add_ps,
    add_worker,
    feed_profile,
    group_profiles,
    is_complete,
    median_times,
    miss_ratios,
    prepared_elsewhere,
    ps_profile,
    spill_fault,
    worker_profile,
)

EXITED_MAX = 1000
"""Names of exited pods that are kept, the latest."""

PODS_MAX = 400
"""Single pods of a role in a profile: the bound of the message."""

LANES_MAX = 1024
"""Most lanes of a data worker: a job's specification gives it no more cores."""

Profile = TypeVar("Profile", WorkerProfile, PsProfile)

ProfilerEvent = (
    JobOpened
    | PlanDecided
    | PlanApplied
    | PodStarted
    | PodResized
    | PodExited
    | MigrationStarted
    | MigrationFinished
    | JobCompleted
    | JobProgressed
    | JobFailed
    | JobCancelled
    | WorkerReported
    | PsReported
    | DataWorkerReported
)


Report = WorkerReported | PsReported | DataWorkerReported


class ProfilerMachine:
    """The profiler of one job: reports, pods and windows. Sums and comparisons are in files of their own."""

    version = 3

    def __init__(
        self, state: ProfilerState | None = None, rules: ProfilingRules | None = None, detector: Detector = cusum
    ) -> None:
        self.state = state if state is not None else ProfilerState()
        self.rules = rules or ProfilingRules()
        self.detector = detector

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Continue a state of version 1, which measured no program without steps, or 2, which told no rounded rows."""
        return state

    @property
    def ended(self) -> bool:
        """True once the job is over. Only a restore can open a completed one again."""
        return self.state.ended

    def handle(self, event: ProfilerEvent, now: float) -> list[Action]:
        """Advance by one event. Raises ImpossibleTelemetry for a report that cannot be true."""
        state = self.state
        match event:
            case WorkerReported() | PsReported() | DataWorkerReported():
                return self._reported(event, now)
            case JobOpened() if not state.batch_size:
                state.batch_size, state.watched = event.batch_size, event.watched
            case PlanDecided(version=version) if state.batch_size and version > state.decided_version:
                state.decided_version = version
                return self._cut(event.job, now)
            case PlanApplied(version=version) if version > state.plan_version:
                return self._plan_applied(event, now)
            case PodStarted():
                return self._pod_started(event, now)
            case PodResized(pod=pod) if pod in state.pods:
                _set_limits(state.pods[pod], event)
                return self._cut(event.job, now)
            case PodExited(pod=pod) if pod not in state.exited:
                return self._pod_exited(event, now)
            case MigrationStarted() | MigrationFinished():
                state.migrating = isinstance(event, MigrationStarted)
                return self._cut(event.job, now)
            case JobCompleted() | JobFailed() | JobCancelled():
                state.ended, state.completed = True, isinstance(event, JobCompleted)
            case JobProgressed() if state.completed:  # a restore took the completed job back
                state.ended = state.completed = False
                return self._cut(event.job, now)
            case _:
                pass
        return []

    # the plan and its pods -------------------------------------------------------------------------------------

    def _plan_applied(self, event: PlanApplied, now: float) -> list[Action]:
        state = self.state
        actions = self._cut(event.job, now)
        state.plan_version, state.plan = event.version, event.plan
        for window in state.pods.values():
            window.baseline_update_s = 0.0  # another number of workers has another baseline
        state.decided_version = max(state.decided_version, event.version)
        return actions

    def _pod_started(self, event: PodStarted, now: float) -> list[Action]:
        state = self.state
        if event.pod in state.exited:
            return []
        window = state.pods.setdefault(event.pod, PodWindow(event.role))
        if window.started:
            return []
        window.started, window.device, window.stage = True, event.device, event.stage
        _set_limits(window, event)
        _note_number(state, event.pod)
        return self._cut(event.job, now)

    def _pod_exited(self, event: PodExited, now: float) -> list[Action]:
        state = self.state
        _note_number(state, event.pod)
        window = state.pods.pop(event.pod, None)
        if window is not None:
            state.samples_of_exited += window.samples_total
        state.exited = [*state.exited[-EXITED_MAX + 1 :], event.pod]
        return self._cut(event.job, now)

    # reports ---------------------------------------------------------------------------------------------------

    def _reported(self, report: Report, now: float) -> list[Action]:
        match report:
            case WorkerReported():
                return self._worker_reported(report, now)
            case PsReported():
                return self._ps_reported(report, now)
            case DataWorkerReported():
                return self._data_worker_reported(report, now)

    def _worker_reported(self, report: WorkerReported, now: float) -> list[Action]:
        window = self._window_of(report.pod, "worker")
        if not _is_fresh(report, window, self.rules, now):
            return []
        samples = _check_counters(report, window, self.state.batch_size)
        first = window.reports == 0
        self._remember(window, report)
        self.state.longest_report_s = max(self.state.longest_report_s, report.window_s)
        window.steps_total, window.samples_total = report.steps_total, report.samples_total
        window.prepare_s, window.prepare_cpu_s = report.prepare_s, report.prepare_cpu_s
        current = report.plan_version == self.state.plan_version
        if current and window.started and not self.state.ended:
            most = report.steps * self.state.batch_size
            counted = most if first and not report.stage else min(samples, most)
            add_worker(window.sums, report, counted)
        return self._close_if_due(report.job, now)

    def _ps_reported(self, report: PsReported, now: float) -> list[Action]:
        window = self._window_of(report.pod, "ps")
        if not _is_fresh(report, window, self.rules, now):
            return []
        _check_server(report)
        self._remember(window, report)
        window.told = report
        window.categories, window.buckets = report.categories, report.buckets
        window.row_bytes, window.table_bytes, window.rows = report.row_bytes, report.table_bytes, report.rows
        add_ps(window.sums, report)
        return self._close_if_due(report.job, now)

    def _data_worker_reported(self, report: DataWorkerReported, now: float) -> list[Action]:
        window = self._window_of(report.pod, "data")
        if not _is_fresh(report, window, self.rules, now):
            return []
        # a batch that took longer than the report counts whole in the report of its end
        if report.batches and report.busy_s <= 0:
            raise ImpossibleTelemetry("busy_s", report.busy_s, "positive when batches were prepared")
        if report.lanes > LANES_MAX:
            raise ImpossibleTelemetry("lanes", report.lanes, f"at most {LANES_MAX}, one for each core")
        self._remember(window, report)
        window.lanes = report.lanes
        add_data_worker(window.sums, report)
        return self._close_if_due(report.job, now)

    def _window_of(self, pod: str, role: ReportingRole) -> PodWindow:
        """Return the window of a pod. An unknown name may belong to a pod that starts now; one far ahead cannot."""
        state = self.state
        if not state.batch_size:
            raise ImpossibleTelemetry("job", "unknown", "a job that was submitted")
        if not pod.startswith(f"{role}-"):
            raise ImpossibleTelemetry("pod", pod, f"a pod named {role}-<number>")
        window = state.pods.get(pod)
        if window is None:
            if pod in state.exited:
                raise ImpossibleTelemetry(
                    "pod", pod, "has exited and its name is not used again; restart it as a new pod"
                )
            if _number(pod) > state.highest_number.get(role, -1) + self.rules.numbers_ahead:
                raise ImpossibleTelemetry("pod", pod, "a pod that the actuator has started")
            window = PodWindow(role)  # kept only once its report has been believed
        return window

    def _remember(self, window: PodWindow, report: Report) -> None:
        self.state.pods[report.pod] = window
        window.reports += 1
        window.ended_at_s = report.ended_at_s
        window.memory_used_bytes = report.memory_used_bytes
        # the actuator's limits are right; a pod may not know that it was resized
        window.cpu_limit_cores = window.cpu_limit_cores or report.cpu_limit_cores
        window.memory_limit_bytes = window.memory_limit_bytes or report.memory_limit_bytes

    # windows ---------------------------------------------------------------------------------------------------

    def _cut(self, job: str, now: float) -> list[Action]:
        """Close the open window early because something changes, so that no profile mixes two configurations."""
        state, actions = self.state, list[Action]()
        state.changed_at_s = now
        if state.plan is not None and not state.ended and now - state.window_began_s >= self.rules.window_s / 2:
            actions = self._close(job, state.plan, now)
        self._begin(now)
        return actions

    def _begin(self, now: float) -> None:
        self.state.window_began_s, self.state.longest_report_s = now, 0.0
        for window in self.state.pods.values():
            if window.sums.span_s or window.sums.count:  # most are empty in a window shorter than their reports
                window.sums = WindowSums()

    @property
    def _window_s(self) -> float:
        """Least length of the open window. Reports get longer when an installation has very many pods."""
        return max(self.rules.window_s, self.rules.reports_per_window * self.state.longest_report_s)

    def _close_if_due(self, job: str, now: float) -> list[Action]:
        state, actions = self.state, list[Action]()
        if not state.window_began_s:
            self._begin(now)
        elif now - state.window_began_s >= self._window_s:
            if state.plan is not None and not state.ended:
                actions = self._close(job, state.plan, now)
            self._begin(now)
        return actions

    def _close(self, job: str, plan: Plan, now: float) -> list[Action]:
        state = self.state
        active = [(pod, window) for pod, window in self._reporting("worker") if window.sums.count or state.watched]
        first = [window for _, window in active if not window.stage]  # later stages do what these ask for
        if not first:
            return []
        workers = [worker_profile(pod, window) for pod, window in active]
        servers = [ps_profile(pod, window) for pod, window in self._reporting("ps")]
        window_s = now - state.window_began_s
        closed = ClosedWindow(job, workers, [] if state.migrating else servers, state.batch_size, window_s)
        judgements = list(self.detector(closed, state.pods, self.rules, now))
        settled = (
            state.plan_version == state.decided_version
            and not state.migrating
            and state.window_began_s - state.changed_at_s >= self.rules.window_s
            and is_complete(plan, workers, servers)
            # a window with a suspect server says nothing about the plan
            and not any(state.pods[server.pod].bad_windows for server in servers)
        )
        profile = ProfileMeasured(
            job=job,
            plan_version=state.plan_version,
            plan=plan,
            batch_size=state.batch_size,
            window_s=window_s,
            step_time_s=median(worker.step_time_s for worker in workers if not worker.stage),
            times=median_times(first),
            throughput=sum(worker.samples_per_s for worker in workers),
            samples_total=state.samples_of_exited + sum(window.samples_total for window in state.pods.values()),
            categories=sum(server.categories for server in servers),
            rows=total_rows(window.rows for _, window in self._reporting("ps")),
            settled=settled,
            prepared_elsewhere=prepared_elsewhere(first),
            miss_ratios=miss_ratios([window for _, window in self._reporting("ps")]),
            spill_fault=spill_fault(self._reporting("ps")),
            feed=feed_profile(first, [window for _, window in self._reporting("data")]),
            workers=_evenly(workers),
            groups=group_profiles(plan, [*zip(workers, (window for _, window in active), strict=True)]),
            ps=_evenly(servers),
        )
        assert min(profile.step_time_s or state.watched, profile.window_s) > 0, profile
        return [Emit(message) for message in (profile, *judgements)]

    def _reporting(self, role: ReportingRole) -> list[tuple[str, PodWindow]]:
        """Return the started pods that reported in this window, by number."""
        reporting = [
            (pod, window)
            for pod, window in self.state.pods.items()
            if window.sums.span_s > 0 and window.role == role and window.started
        ]
        return sorted(reporting, key=lambda item: _number(item[0]))


def _is_fresh(report: Report, window: PodWindow, rules: ProfilingRules, now: float) -> bool:
    """Return whether a report is new: neither repeated nor overtaken by a newer report of its pod.

    A server of the bus that was stopped delivers late what a pod told it before it went to another server. Raises
    ImpossibleTelemetry when the report's times cannot be.
    """
    ended_at_s = report.ended_at_s
    if abs(ended_at_s - now) > rules.clock_skew_s:
        raise ImpossibleTelemetry(
            "ended_at_s", ended_at_s, f"within {rules.clock_skew_s:g} s of {now:.3f}; set its clock"
        )
    if report.window_s > rules.report_span_s:
        raise ImpossibleTelemetry("window_s", report.window_s, f"at most {rules.report_span_s:g} s")
    return ended_at_s > window.ended_at_s


def _check_counters(report: WorkerReported, window: PodWindow, batch_size: int) -> int:
    """Return the samples trained since the last report. Raises when counters and times contradict each other."""
    steps, samples = report.steps_total - window.steps_total, report.samples_total - window.samples_total
    if steps < 0:
        raise ImpossibleTelemetry(
            "steps_total", report.steps_total, f"not below {window.steps_total}, which it reported before"
        )
    if samples < 0:
        raise ImpossibleTelemetry(
            "samples_total", report.samples_total, f"not below {window.samples_total}, reported before"
        )
    if report.steps > steps:
        raise ImpossibleTelemetry("steps", report.steps, f"at most {steps}, by which steps_total has grown")
    if samples > (most := steps * batch_size):
        raise ImpossibleTelemetry("samples_total", report.samples_total, f"at most {most} more in {steps} steps")
    if report.steps:
        busy_s, span_s = report.steps * report.step_time_s, max(report.window_s, report.longest_gap_s)
        if report.step_time_s <= 0:
            raise ImpossibleTelemetry("step_time_s", report.step_time_s, "positive when steps were done")
        if busy_s > 2 * span_s + 2 * report.step_time_s:
            raise ImpossibleTelemetry("step_time_s", report.step_time_s, f"{report.steps} in {span_s:g} s")
    return samples


def _note_number(state: ProfilerState, pod: str) -> None:
    highest, role = state.highest_number, pod.partition("-")[0]
    highest[role] = max(highest.get(role, -1), _number(pod))


def _set_limits(window: PodWindow, event: PodStarted | PodResized) -> None:
    window.cpu_limit_cores, window.memory_limit_bytes = event.cpu_cores, event.memory_bytes


def _evenly(pods: list[Profile]) -> tuple[Profile, ...]:
    """Return at most PODS_MAX pods, evenly spaced: the same ones in every window while the pods are the same."""
    count = min(len(pods), PODS_MAX)
    return tuple(pods[index * len(pods) // count] for index in range(count))


def _number(pod: str) -> int:
    return int(pod.rpartition("-")[2])


def _check_server(report: PsReported) -> None:
    if report.updates and report.update_time_s <= 0:
        raise ImpossibleTelemetry("update_time_s", report.update_time_s, "positive when updates were done")
    for name, rows in (("cold_rows", report.cold_rows), ("warm_rows", report.warm_rows)):
        if rows > report.categories:
            raise ImpossibleTelemetry(name, rows, f"at most its {report.categories} categories")
        if rows and not report.row_bytes:
            raise ImpossibleTelemetry("row_bytes", report.row_bytes, f"positive while {name} is {rows}")
    if len(report.miss_ratios) not in (0, MISS_POINTS):
        raise ImpossibleTelemetry("miss_ratios", len(report.miss_ratios), f"{MISS_POINTS} of them, or none")

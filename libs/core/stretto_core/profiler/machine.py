"""Telemetry of one job, validated and put together into windows; stragglers and hot parameter servers by comparison.

A window spans ``window_s`` of stored time and one plan. What a pod reports is believed only after it was checked
against what it said before, and figures of the job are medians over pods, so that one liar or one slow machine does
not bend a profile. The comparisons follow DLRover-RM section 5.2: a pod is judged by its peers of the same job.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any, ClassVar, TypeVar

from stretto_messages.values import Plan

from stretto_core.machine import Action, Emit, as_it_was
from stretto_core.profiler.books import (
    PodBook,
    ProfilerState,
    Sums,
    add_ps,
    add_worker,
    median_times,
    ps_profile,
    worker_profile,
)
from stretto_core.profiler.facts import (
    ImpossibleTelemetry,
    JobEnded,
    JobProgressed,
    JobSubmitted,
    MigrationFinished,
    MigrationStarted,
    PlanApplied,
    PlanDecided,
    PodExited,
    PodResized,
    PodStarted,
    ProfileMeasured,
    ProfilingRules,
    PsProfile,
    PsReported,
    Role,
    WorkerProfile,
    WorkerReported,
)
from stretto_core.profiler.peers import Detector, Window, cusum

GONE_KEPT = 1000
"""names of pods that have exited, the latest"""

PODS_TOLD = 400
"""single pods of a role in a profile: what a message has room for"""

Profile = TypeVar("Profile", WorkerProfile, PsProfile)


class ProfilerMachine:
    """See the module."""

    version = 4
    migrate = staticmethod(as_it_was)  # until version 3 one slow update in each of two windows was enough to be hot

    def __init__(
        self, state: ProfilerState | None = None, rules: ProfilingRules | None = None, detector: Detector = cusum
    ) -> None:
        self.state = state if state is not None else ProfilerState()
        self.rules = rules or ProfilingRules()
        self.detector = detector
        self._out: list[Action] = []

    def handle(self, event: Any, now: float) -> list[Action]:
        """Advance by one event. Raises ImpossibleTelemetry for a report that cannot be true."""
        self._out = []
        handler = self._HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event, now)
        return self._out

    # the job ---------------------------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted, now: float) -> None:
        if not self.state.batch_size:
            self.state.batch_size = event.batch_size

    def _decided(self, event: PlanDecided, now: float) -> None:
        if event.version > self.state.decided_version:
            self.state.decided_version = event.version
            self._change(now)

    def _applied(self, event: PlanApplied, now: float) -> None:
        if event.version > self.state.plan_version:
            self._change(now)
            self.state.plan_version, self.state.plan = event.version, event.plan
            for book in self.state.pods.values():
                book.usual_update_s = 0.0  # with other workers another time is usual
            self.state.decided_version = max(self.state.decided_version, event.version)

    def _started(self, event: PodStarted, now: float) -> None:
        st = self.state
        if event.pod in st.gone:
            return
        book = st.pods.setdefault(event.pod, PodBook(event.role))
        if not book.announced:
            book.announced = True
            book.cpu_limit_cores, book.memory_limit_bytes = event.cpu_limit_cores, event.memory_limit_bytes
            st.highest[event.role] = max(st.highest[event.role], _number(event.pod))
            self._change(now)

    def _resized(self, event: PodResized, now: float) -> None:
        book = self.state.pods.get(event.pod)
        if book is not None:
            book.cpu_limit_cores, book.memory_limit_bytes = event.cpu_limit_cores, event.memory_limit_bytes
            self._change(now)

    def _exited(self, event: PodExited, now: float) -> None:
        st = self.state
        if event.pod in st.gone:
            return
        role = "ps" if event.pod.startswith("ps-") else "worker"
        st.highest[role] = max(st.highest[role], _number(event.pod))
        book = st.pods.pop(event.pod, None)
        if book is not None:
            st.samples_of_gone += book.samples_total
        st.gone = [*st.gone[-GONE_KEPT + 1 :], event.pod]
        self._change(now)

    def _moves(self, event: MigrationStarted, now: float) -> None:
        self.state.migrating = True
        self._change(now)

    def _moved(self, event: MigrationFinished, now: float) -> None:
        self.state.migrating = False
        self._change(now)

    def _ended(self, event: JobEnded, now: float) -> None:
        self.state.ended, self.state.completed = True, event.completed

    def _progressed(self, event: JobProgressed, now: float) -> None:
        if self.state.completed:
            self.state.ended = self.state.completed = False
            self._change(now)

    def _change(self, now: float) -> None:
        """What was measured until now is told by itself, so that the next window is of one piece."""
        st = self.state
        st.changed_at_s = now
        if st.plan is not None and not st.ended and now - st.window_began_s >= self.rules.window_s / 2:
            self._close(now, st.plan)
        self._begin(now)

    # reports ---------------------------------------------------------------------------------------------------

    def _worker(self, event: WorkerReported, now: float) -> None:
        book = self._book(event.pod, "worker")
        if not self._fresh(book, event.ended_at_s, event.window_s, now):
            return
        steps, samples = event.steps_total - book.steps_total, event.samples_total - book.samples_total
        if steps < 0:
            raise ImpossibleTelemetry(
                "steps_total", event.steps_total, f"not below {book.steps_total}, which it said before"
            )
        if samples < 0:
            raise ImpossibleTelemetry(
                "samples_total", event.samples_total, f"not below {book.samples_total}, said before"
            )
        if event.steps > steps:
            raise ImpossibleTelemetry("steps", event.steps, f"at most {steps}, by which steps_total has grown")
        if samples > (most := steps * self.state.batch_size):
            raise ImpossibleTelemetry("samples_total", event.samples_total, f"at most {most} more in {steps} steps")
        if event.steps:
            busy_s, span_s = event.steps * event.step_time_s, max(event.window_s, event.longest_gap_s)
            if event.step_time_s <= 0:
                raise ImpossibleTelemetry("step_time_s", event.step_time_s, "positive when steps were done")
            if busy_s > 2 * span_s + 2 * event.step_time_s:
                raise ImpossibleTelemetry("step_time_s", event.step_time_s, f"{event.steps} in {span_s:g} s")
        first = book.reports == 0
        self._remember(book, event)
        book.steps_total, book.samples_total = event.steps_total, event.samples_total
        current = event.plan_version == self.state.plan_version
        if current and book.announced and not self.state.ended:
            own = samples if not first else event.steps * self.state.batch_size
            add_worker(book.sums, event, min(own, event.steps * self.state.batch_size))
        self._close_if_due(now)

    def _ps(self, event: PsReported, now: float) -> None:
        book = self._book(event.pod, "ps")
        if not self._fresh(book, event.ended_at_s, event.window_s, now):
            return
        if event.updates and event.update_time_s <= 0:
            raise ImpossibleTelemetry("update_time_s", event.update_time_s, "positive when updates were done")
        self._remember(book, event)
        book.categories, book.buckets = event.categories, event.buckets
        add_ps(book.sums, event)
        self._close_if_due(now)

    def _book(self, pod: str, role: Role) -> PodBook:
        """Its book. A name that nobody announced yet may be just about to be; one far ahead cannot be."""
        st = self.state
        if not st.batch_size:
            raise ImpossibleTelemetry("job", "unknown", "a job that was submitted")
        if not pod.startswith(f"{role}-"):
            raise ImpossibleTelemetry("pod", pod, f"a pod named {role}-<number>")
        book = st.pods.get(pod)
        if book is None:
            if pod in st.gone:
                raise ImpossibleTelemetry(
                    "pod", pod, "has exited and its name is not used again; restart it as a new pod"
                )
            if _number(pod) > st.highest[role] + self.rules.names_ahead:
                raise ImpossibleTelemetry("pod", pod, "a pod that the actuator has started")
            book = PodBook(role)  # kept only once its report has been believed
        return book

    def _fresh(self, book: PodBook, ended_at_s: float, window_s: float, now: float) -> bool:
        """Whether the report is new; the same again is harmless. Raises when its times cannot be."""
        rules = self.rules
        if abs(ended_at_s - now) > rules.clock_skew_s:
            raise ImpossibleTelemetry(
                "ended_at_s", ended_at_s, f"within {rules.clock_skew_s:g} s of {now:.3f}; set its clock"
            )
        if window_s > rules.report_span_s:
            raise ImpossibleTelemetry("window_s", window_s, f"at most {rules.report_span_s:g} s")
        if book.reports and ended_at_s == book.ended_at_s:
            return False
        if ended_at_s <= book.ended_at_s:
            raise ImpossibleTelemetry(
                "ended_at_s", ended_at_s, f"after {book.ended_at_s:.3f}, the end of its last report"
            )
        return True

    def _remember(self, book: PodBook, event: WorkerReported | PsReported) -> None:
        self.state.pods[event.pod] = book
        book.reports += 1
        book.ended_at_s = event.ended_at_s
        book.memory_used_bytes = event.memory_used_bytes
        book.cpu_limit_cores = book.cpu_limit_cores or event.cpu_limit_cores  # the actuator knows better
        book.memory_limit_bytes = book.memory_limit_bytes or event.memory_limit_bytes

    # windows ---------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        self.state.window_began_s = now
        for book in self.state.pods.values():
            if book.sums.span_s or book.sums.count:  # most have not reported in a window that is shorter than their own
                book.sums = Sums()

    def _close_if_due(self, now: float) -> None:
        st = self.state
        if not st.window_began_s:
            self._begin(now)
        elif now - st.window_began_s >= self.rules.window_s:
            if st.plan is not None and not st.ended:
                self._close(now, st.plan)
            self._begin(now)

    def _close(self, now: float, plan: Plan) -> None:
        st = self.state
        active = [(pod, book) for pod, book in self._reporting("worker") if book.sums.count]
        if not active:
            return
        workers = [worker_profile(pod, book) for pod, book in active]
        servers = [ps_profile(pod, book) for pod, book in self._reporting("ps")]
        window_s = now - st.window_began_s
        seen = Window(workers, [] if st.migrating else servers, st.batch_size, window_s)
        told = list(self.detector(seen, st.pods, self.rules, now))
        settled = (
            st.plan_version == st.decided_version
            and not st.migrating
            and st.window_began_s - st.changed_at_s >= self.rules.window_s
            and (len(workers), len(servers)) == (plan.workers, plan.ps)
            and not any(st.pods[server.pod].bad_windows for server in servers)  # it says nothing about the plan
        )
        profile = ProfileMeasured(
            plan_version=st.plan_version,
            plan=plan,
            batch_size=st.batch_size,
            window_s=window_s,
            step_time_s=median(worker.step_time_s for worker in workers),
            times=median_times(book for _, book in active),
            throughput=sum(worker.samples_per_s for worker in workers),
            samples_total=st.samples_of_gone + sum(book.samples_total for book in st.pods.values()),
            categories=sum(server.categories for server in servers),
            settled=settled,
            workers=_sample(workers),
            ps=_sample(servers),
        )
        self._out += [Emit(fact) for fact in (profile, *told)]

    def _reporting(self, role: Role) -> list[tuple[str, PodBook]]:
        """Announced pods that reported in this window, by number."""
        pods = self.state.pods.items()
        told = [(pod, book) for pod, book in pods if book.sums.span_s > 0 and book.role == role and book.announced]
        return sorted(told, key=lambda item: _number(item[0]))

    _HANDLERS: ClassVar[dict[type, Callable[[ProfilerMachine, Any, float], None]]] = {
        JobSubmitted: _submitted,
        PlanDecided: _decided,
        PlanApplied: _applied,
        PodStarted: _started,
        PodResized: _resized,
        PodExited: _exited,
        MigrationStarted: _moves,
        MigrationFinished: _moved,
        JobEnded: _ended,
        JobProgressed: _progressed,
        WorkerReported: _worker,
        PsReported: _ps,
    }


def _sample(pods: list[Profile]) -> tuple[Profile, ...]:
    """The same ones in every window while the pods are the same: evenly spaced over their numbers."""
    told = min(len(pods), PODS_TOLD)
    return tuple(pods[index * len(pods) // told] for index in range(told))


def _number(pod: str) -> int:
    return int(pod.rpartition("-")[2])

"""The machine that decides every job's plan: it takes an event in, then runs one cycle of numbered steps.

1 memory that is about to run out
2 jobs that wait to start
3 measurements, and plans that users asked for
4 the round: one choice over all jobs with candidates (DLRover-RM Eq. 11-14)
5 memory that can be given back
6 data workers, of what plans leave

No job gets a decision while its last one is being applied, except for memory (``JobState.may_get_memory``). The answer
of a slower algorithm to a round comes later, as an event (``background``).
"""

from __future__ import annotations

from typing import Any

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
from stretto_messages.arbiter import GetCluster, GetClusterReply, ReplacementDecided
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import DataWorkersRequested, JobCancelled, PlanRequested
from stretto_messages.objects.decider import ObjectReleased
from stretto_messages.oom import OomForecast
from stretto_messages.planner import CandidatesComputed, DataWorkersProposed, PlanProposed
from stretto_messages.values import Resources

from stretto_core.algorithms import SELECT, SHARE
from stretto_core.arbiter import admission, background, memory, rounds, sharing
from stretto_core.arbiter.context import Answer, StepContext
from stretto_core.arbiter.observations import BackgroundSolved
from stretto_core.arbiter.register import holds_s
from stretto_core.arbiter.selection import SelectionAlgorithm
from stretto_core.arbiter.selection.exact import exact_or_hull
from stretto_core.arbiter.state import ArbiterSettings, ArbiterState, JobState, Unplaced
from stretto_core.arbiter.survey import survey
from stretto_core.machine import Action, Emit, Tick
from stretto_core.model.sharing import Ranking, shortest_remaining
from stretto_core.model.types import JobOpened

JobEvent = (
    PlanProposed
    | PlanRequested
    | CandidatesComputed
    | DataWorkersProposed
    | DataWorkersRequested
    | PlanApplied
    | OomForecast
    | ReplacementAsked
    | ReplacementEnded
    | PodPending
    | PodStarted
    | PodExited
    | JobProgressed
    | JobCompleted
    | JobCancelled
    | JobFailed
    | JobFinished
    | ObjectReleased
    | BackgroundSolved
)
ArbiterEvent = Tick | JobOpened | JobEvent


class ArbiterMachine:
    """Decides plans; one for the whole cluster."""

    version = 3
    parted = "jobs"

    def __init__(
        self,
        state: ArbiterState | None = None,
        settings: ArbiterSettings | None = None,
        select: SelectionAlgorithm = exact_or_hull,
        select_name: str = SELECT.default,
        ranking: Ranking = shortest_remaining,
        ranking_name: str = SHARE.default,
    ) -> None:
        self.state = state or ArbiterState()
        self.settings = settings or ArbiterSettings(Resources(1e9, 2**60))
        self.select = select
        for job in self.state.jobs.values():  # types may have come, gone or another price since the state was saved
            job.profile = job.profile.among(self.settings.devices)
        looks_ahead = getattr(select, "looks_ahead", False)
        self._context = StepContext(self.state, self.settings, select_name, ranking, ranking_name, looks_ahead)

    @staticmethod
    def migrate(state: dict[str, Any], from_version: int) -> dict[str, Any]:
        """Continue a state of an earlier version. Before 2, a finished job was forgotten at once: of such a job no pod
        is known. Before 3, what interruptions cost was told by a default."""
        return state

    def handle(self, event: ArbiterEvent, now: float) -> list[Action]:
        """Take in an event of any job, or a Tick, then run the cycle."""
        answers = self._take_in(event, now)
        self._expire(now)
        pending = self.state.background_solve.number if self.state.background_solve else None
        background_answer = event if isinstance(event, BackgroundSolved) and event.number == pending else None
        return [Emit(fact) for fact in (*answers, *self._cycle(now, background_answer))]

    def task(self) -> background.BackgroundTask | None:
        """Input of the pending background solve, or None if none is pending."""
        return background.task(self._context)

    @property
    def ticking(self) -> bool:
        """True while the machine needs ticks: a cluster without jobs needs none."""
        return bool(self.state.jobs)

    @property
    def changed(self) -> set[str]:
        """Jobs changed since the last snapshot. The snapshot writer clears this set."""
        return self._context.register.changed

    def survey(self, asked: GetCluster) -> GetClusterReply:
        """Return who holds the cluster, and who waits for it."""
        return survey(self._context, asked)

    def free(self) -> Resources:
        """Resources that no job holds; negative where the capacity was lowered below the claims."""
        return self._context.free()

    def _cycle(self, now: float, background_answer: BackgroundSolved | None) -> list[Answer]:
        """Run the steps of the module's docstring."""
        context = self._context
        facts = memory.grow(context, now)  # 1
        facts += admission.start_waiting(context, now)  # 2
        facts += admission.measure(context, now)  # 3
        if background_answer is not None or rounds.due(context, now):
            facts += rounds.choose(context, self.select, now, background_answer)  # 4
        facts += memory.shrink(context, now)  # 5
        return [*facts, *sharing.share(context)]  # 6

    # ---- events -----------------------------------------------------------------------------------------------

    def _take_in(self, event: ArbiterEvent, now: float) -> list[Answer]:
        match event:
            case Tick():
                return []
            case JobOpened():
                self._opened(event, now)
                return []
            case _:
                job = self.state.jobs.get(event.job)
                return [] if job is None else self._take_in_of(job, event, now)

    def _take_in_of(self, job: JobState, event: JobEvent, now: float) -> list[Answer]:
        """Take in an event of a known job, and index the job anew if the event changed it."""
        if isinstance(event, JobProgressed):
            self._progressed(job, event)
            return []
        answers: list[Answer] = []
        match event:
            case PlanProposed() if not job.requested:
                job.proposal = event
            case PlanRequested():
                job.proposal = proposal_of(event)
            case CandidatesComputed(plan_version=version) if version == job.version:
                job.candidates, job.throughput = event, event.throughput
            case DataWorkersProposed() | DataWorkersRequested():
                sharing.note(job, event)
            case PlanApplied(version=version) if version == job.version and job.applying:
                self._applied(job, event, now)
            case OomForecast():
                memory.note_forecast(job, event)
            case JobCompleted() | JobCancelled() | JobFailed() | JobFinished() | ObjectReleased():
                self._ended(job, event, now)
            case ReplacementAsked() | ReplacementEnded():
                answers += self._replacement(job, event)
            case PodPending() | PodStarted() | PodExited():
                self._pod_placed(job, event, now)
                if job.finished and not job.pods:
                    self._forget(job)
            case _:
                return []
        self._context.register.touch(job.job)
        return answers

    def _opened(self, event: JobOpened, now: float) -> None:
        if event.job in self.state.jobs:
            return
        self.state.submitted += 1
        self.state.jobs[event.job] = JobState(
            event.job,
            event.profile.among(self.settings.devices),
            self.state.submitted,
            submitted_s=now,
            team=event.team,
        )
        self._context.register.touch(event.job)

    def _progressed(self, job: JobState, event: JobProgressed) -> None:
        self.state.samples_done[job.job] = event.samples_done  # less than before after a restore
        if job.completed:
            job.leaving_s, job.completed = None, False
            self._context.register.touch(job.job)

    @staticmethod
    def _applied(job: JobState, event: PlanApplied, now: float) -> None:
        if job.before is not None and job.before.ps != event.plan.ps:
            job.ps_memory_bytes = job.shrink_to_bytes = 0  # the forecast was for another number of servers
        job.applying, job.before, job.changed_s, job.unplaced = False, None, now, {}
        if not job.had_before(event.plan):
            job.applied_plans.append(event.plan)

    @staticmethod
    def _pod_placed(job: JobState, event: PodPending | PodStarted | PodExited, now: float) -> None:
        """Note if a pod finds no room. A pod that pulls its image has found it. Data workers are given up at once."""
        if isinstance(event, PodExited) and event.pod in job.pods:
            job.pods.remove(event.pod)
        elif isinstance(event, PodStarted) and event.pod not in job.pods:
            job.pods.append(event.pod)
        if not isinstance(event, PodPending) or event.reason == "image-pull":
            job.unplaced.pop(event.pod, None)
        elif event.role == "data":
            job.data_limit, job.data_limited_s = max(job.data - 1, 0), now
        elif job.plan is not None:
            job.unplaced[event.pod] = Unplaced(
                job.plan.pod(event.role, job.profile.extended, event.device), now, event.detail or event.reason
            )

    def _ended(
        self, job: JobState, event: JobCompleted | JobCancelled | JobFailed | JobFinished | ObjectReleased, now: float
    ) -> None:
        """Count its pods until they are gone: a completed job still saves and evaluates; others are stopped."""
        job.finished = job.finished or isinstance(event, JobFinished | ObjectReleased)
        if job.plan is None or (job.finished and not job.pods):
            self._forget(job)
        elif isinstance(event, JobFinished):
            job.leaving_s, job.completed = now, False
        elif job.leaving_s is None or job.completed:
            job.leaving_s, job.completed = now, isinstance(event, JobCompleted)

    def _replacement(self, job: JobState, event: ReplacementAsked | ReplacementEnded) -> list[Answer]:
        if isinstance(event, ReplacementAsked):
            return [self._replace(job, event)]
        if event.pod == job.replacing:
            job.replacing = ""
        return []

    def _replace(self, job: JobState, event: ReplacementAsked) -> ReplacementDecided:
        """Decide if one server more than the plan's may run, which replaces another."""
        if job.replacing == event.pod:
            reason = "there is room for it already"
            return ReplacementDecided(job=job.job, pod=event.pod, granted=True, reasons=(reason,))
        if job.plan is None or job.changing or job.leaving_s is not None:
            reason = "the job's pods are changing meanwhile"
            return ReplacementDecided(job=job.job, pod=event.pod, granted=False, reasons=(reason,))
        return admission.replace_server(self._context, job, job.plan, event.pod)

    def _forget(self, job: JobState) -> None:
        del self.state.jobs[job.job]
        self.state.samples_done.pop(job.job, None)
        self.state.deferred.pop(job.job, None)
        self._context.register.touch(job.job)

    def _expire(self, now: float) -> None:
        """End the waits that last too long: for the actuator, for room, for pods to leave, for a background solve."""
        background.expire(self._context, now)
        for job in self._context.register.due(now):
            if job.leaving_s is not None and now - job.leaving_s > holds_s(job, self.settings):
                self._forget(job)
                continue
            unplaced_before = len(job.unplaced)
            tried_again = job.data_limit is not None and now - job.data_limited_s >= self.settings.no_room_s
            if tried_again:
                job.data_limit = None
            job.unplaced = {
                pod: waiting for pod, waiting in job.unplaced.items() if now - waiting.since_s < self.settings.no_room_s
            }
            silent = job.applying and now - job.changed_s > self.settings.apply_timeout_s
            if silent:
                job.applying, job.before, job.changed_s = False, None, now
            if silent or tried_again or len(job.unplaced) < unplaced_before:
                self._context.register.touch(job.job)
            else:
                self._context.register.reindex(job.job)


def proposal_of(event: PlanRequested) -> PlanProposed:
    """Return a user's request in the form of a planner's proposal."""
    reason = f"{event.by} asks for it: the job gets it if there is room, whatever it brings"
    return PlanProposed(job=event.job, kind="requested", plan=event.plan, cost_per_hour=0.0, reasons=(reason,))

"""The machine that decides every job's plan: it hears what happens, then runs one cycle of numbered steps.

1 memory that is about to run out, 2 jobs that wait to start, 3 measurements and users' wishes, 4 the round: one choice
over all jobs with candidates (DLRover-RM Eq. 11-14), 5 memory that can be given back. No job is decided on while its
last decision is being applied, but for memory (``JobState.may_get_memory``). What a slower algorithm makes of a round
comes later, as an event (``studies``).
"""

from __future__ import annotations

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
from stretto_messages.arbiter import ReplacementDecided
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.gateway import JobCancelled, PlanRequested
from stretto_messages.oom import OomForecast
from stretto_messages.planner import CandidatesComputed, PlanProposed
from stretto_messages.values import Resources

from stretto_core.algorithms import SELECT
from stretto_core.arbiter import admission, memory, rounds, studies
from stretto_core.arbiter.desk import Answer, Desk
from stretto_core.arbiter.observations import StudyDone
from stretto_core.arbiter.register import holds_s
from stretto_core.arbiter.selection import SelectionAlgorithm
from stretto_core.arbiter.selection.hull import hull
from stretto_core.arbiter.state import ArbiterSettings, ArbiterState, JobState, Unplaced
from stretto_core.machine import Action, Emit, Tick
from stretto_core.model.types import JobOpened

JobEvent = (
    PlanProposed
    | PlanRequested
    | CandidatesComputed
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
    | StudyDone
)
ArbiterEvent = Tick | JobOpened | JobEvent


class ArbiterMachine:
    """Decides plans; one for the whole cluster."""

    version = 1
    parted = "jobs"

    def __init__(
        self,
        state: ArbiterState | None = None,
        settings: ArbiterSettings | None = None,
        select: SelectionAlgorithm = hull,
        select_name: str = SELECT.default,
    ) -> None:
        self.state = state or ArbiterState()
        self.settings = settings or ArbiterSettings(Resources(1e9, 2**60))
        self.select = select
        self._desk = Desk(self.state, self.settings, select_name)

    def handle(self, event: ArbiterEvent, now: float) -> list[Action]:
        """Take in an event of any job, or a Tick, then run the cycle."""
        answers = self._hear(event, now)
        self._expire(now)
        awaited = self.state.study.number if self.state.study else None
        done = event if isinstance(event, StudyDone) and event.number == awaited else None
        return [Emit(fact) for fact in (*answers, *self._cycle(now, done))]

    def task(self) -> studies.Task | None:
        """Input of the background solver for the pending study, or None."""
        return studies.task(self._desk)

    @property
    def ticking(self) -> bool:
        """True while the machine needs ticks: a cluster without jobs needs none."""
        return bool(self.state.jobs)

    @property
    def changed(self) -> set[str]:
        """The jobs that are others than when their documents were saved last; whoever saves them takes them out."""
        return self._desk.register.changed

    def free(self) -> Resources:
        """Resources that no job holds; negative where the capacity was lowered below the claims."""
        return self._desk.free()

    def _cycle(self, now: float, done: StudyDone | None) -> list[Answer]:
        desk = self._desk
        facts = [*memory.grow(desk, now), *admission.start_waiting(desk, now), *admission.measure(desk, now)]
        if done is not None or rounds.due(desk, now):
            facts += rounds.choose(desk, self.select, now, done)
        return [*facts, *memory.shrink(desk, now)]

    # ---- what is heard ----------------------------------------------------------------------------------------

    def _hear(self, event: ArbiterEvent, now: float) -> list[Answer]:
        match event:
            case Tick():
                return []
            case JobOpened():
                self._opened(event, now)
                return []
            case _:
                job = self.state.jobs.get(event.job)
                return [] if job is None else self._hear_of(job, event, now)

    def _hear_of(self, job: JobState, event: JobEvent, now: float) -> list[Answer]:
        """Take in an event of a known job; one that changes anything is touched."""
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
            case PlanApplied(version=version) if version == job.version and job.applying:
                self._applied(job, event, now)
            case OomForecast():
                memory.hear_forecast(job, event)
            case JobCompleted() | JobCancelled() | JobFailed() | JobFinished():
                self._ended(job, event, now)
            case ReplacementAsked():
                answers.append(self._replace(job, event))
            case ReplacementEnded(pod=pod) if pod == job.replacing:
                job.replacing = ""
            case PodPending() | PodStarted() | PodExited():
                self._room_of(job, event, now)
            case _:
                return []
        self._desk.register.touch(job.job)
        return answers

    def _opened(self, event: JobOpened, now: float) -> None:
        if event.job in self.state.jobs:
            return
        self.state.submitted += 1
        self.state.jobs[event.job] = JobState(event.job, event.profile, self.state.submitted, submitted_s=now)
        self._desk.register.touch(event.job)

    def _progressed(self, job: JobState, event: JobProgressed) -> None:
        self.state.samples_done[job.job] = event.samples_done  # less than before after a restore
        if job.completed:
            job.leaving_s, job.completed = None, False
            self._desk.register.touch(job.job)

    @staticmethod
    def _applied(job: JobState, event: PlanApplied, now: float) -> None:
        if job.before is not None and job.before.ps != event.plan.ps:
            job.ps_memory_bytes = job.shrink_to_bytes = 0  # said of servers that held more, or less
        job.applying, job.before, job.changed_s, job.unplaced = False, None, now, {}
        if not job.had_before(event.plan):
            job.had.append(event.plan)

    @staticmethod
    def _room_of(job: JobState, event: PodPending | PodStarted | PodExited, now: float) -> None:
        """Note that a pod finds no room; one whose image is on its way has found it. Data workers are beyond plans."""
        if not isinstance(event, PodPending) or event.reason == "image-pull":
            job.unplaced.pop(event.pod, None)
        elif job.plan is not None and event.role != "data":
            job.unplaced[event.pod] = Unplaced(job.plan.pod(event.role), now, event.detail or event.reason)

    def _ended(self, job: JobState, event: JobCompleted | JobCancelled | JobFailed | JobFinished, now: float) -> None:
        """Pods hold their resources until they are gone: a completed job saves and evaluates, others are stopped."""
        if isinstance(event, JobFinished) or job.plan is None:
            self._forget(job)
        elif job.leaving_s is None or job.completed:
            job.leaving_s, job.completed = now, isinstance(event, JobCompleted)

    def _replace(self, job: JobState, event: ReplacementAsked) -> ReplacementDecided:
        """Decide if a server may start next to the one that it replaces, beyond the plan."""
        if job.replacing == event.pod:
            reason = "there is room for it already"
            return ReplacementDecided(job=job.job, pod=event.pod, granted=True, reasons=(reason,))
        if job.plan is None or job.changing or job.leaving_s is not None:
            reason = "the job's pods are changing meanwhile"
            return ReplacementDecided(job=job.job, pod=event.pod, granted=False, reasons=(reason,))
        return admission.replace_server(self._desk, job, job.plan, event.pod)

    def _forget(self, job: JobState) -> None:
        del self.state.jobs[job.job]
        self.state.samples_done.pop(job.job, None)
        self.state.deferred.pop(job.job, None)
        self._desk.register.touch(job.job)

    def _expire(self, now: float) -> None:
        """Nobody waits for ever for an actuator that says nothing, nor for a study."""
        studies.expire(self._desk, now)
        for job in self._desk.register.ripe(now):
            if job.leaving_s is not None and now - job.leaving_s > holds_s(job, self.settings):
                self._forget(job)
                continue
            known = len(job.unplaced)
            job.unplaced = {
                pod: waiting for pod, waiting in job.unplaced.items() if now - waiting.since_s < self.settings.no_room_s
            }
            silent = job.applying and now - job.changed_s > self.settings.apply_timeout_s
            if silent:
                job.applying, job.before, job.changed_s = False, None, now
            if silent or len(job.unplaced) < known:
                self._desk.register.touch(job.job)
            else:
                self._desk.register.look_again(job.job)


def proposal_of(event: PlanRequested) -> PlanProposed:
    """Return a user's wish as what the arbiter decides on."""
    reason = f"{event.by} asks for it: the job gets it if there is room, whatever it brings"
    return PlanProposed(job=event.job, kind="requested", plan=event.plan, cost_per_hour=0.0, reasons=(reason,))

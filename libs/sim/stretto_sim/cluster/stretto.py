"""The services' own machines, connected as the services connect them, with the simulated cluster for the actuator.

Each job has a ``PlanMachine`` (warm start, exploration, exact Pareto candidates), a ``FitMachine`` (the throughput
model) and an ``OomMachine`` (growth of memory). The cluster has an ``ArbiterMachine`` (admission, rounds, memory, room
for replacements) and a ``HistoryMachine`` (past jobs). The profiler's detector finds hot servers. They are always
replaced here, while the actuator would also give them a smaller share. The simulation stands for the profiler's
windows, the ledger (with shards as small as necessary, see ``Policy.dynamic``), the actuator and the checkpoints.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stretto_core.algorithms import SELECT
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.selection import OBJECTIVE, RHO, Objective
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.fitter.machine import FitMachine
from stretto_core.fitter.state import FitterSettings
from stretto_core.machine import Emit, Tick
from stretto_core.model.throughput import AXES, COUNTS
from stretto_core.model.types import JobOpened, JobProfile
from stretto_core.oom.growth import GrowthLaw, fit_growth
from stretto_core.oom.machine import OomMachine, WatchEvent
from stretto_core.oom.state import JobOpened as OomJobOpened
from stretto_core.oom.state import WatchSettings
from stretto_core.planner.exploration import ExplorationLimits
from stretto_core.planner.history import HistoryMachine
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.state import PlannerSettings
from stretto_core.profiler.peers import ClosedWindow, Detector, cusum
from stretto_core.profiler.state import PodWindow, ProfilingRules
from stretto_messages.actuator import JobFailed, JobFinished, PlanApplied, PodExited, ReplacementAsked, ReplacementEnded
from stretto_messages.arbiter import PlanDecided, PlanRefused, ReplacementDecided
from stretto_messages.base import GIB
from stretto_messages.dispatcher import JobCompleted, JobProgressed
from stretto_messages.fitter import ModelFitted
from stretto_messages.oom import OomForecast
from stretto_messages.planner import CandidatesComputed, HistoryMatched, HistoryRecorded, PlanProposed
from stretto_messages.profiler import HotPsDetected, ProfileMeasured
from stretto_messages.values import BUCKETS, Plan, PsProfile, StepTimes

from stretto_sim.cluster import policies
from stretto_sim.cluster.live import FIRST_WINDOWS, LONGEST_WINDOW_S, WINDOW_S
from stretto_sim.cluster.trace import ClusterTraceSettings, TraceJob

ROW_BYTES = 152.6
"""Bytes of a category as a server tells them: 16 weights, as many slots of Adagrad, its entry and share of the
index."""
COLD_START = Plan(1, 1, 4.0, 4.0, 4 * GIB, 8 * GIB)
"""Plan of a job without any similar one before it."""
NOT_MEASURED = StepTimes(emb_s=0.0, grad_s=0.0, upd_s=0.0, sync_s=0.0)


@dataclass(frozen=True, slots=True)
class Knobs:
    """An operator's settings for such a cluster; all others keep the machines' defaults."""

    warm_start: bool = True
    round_s: float = 60.0
    settle_s: float = 180.0
    objective: Objective = OBJECTIVE
    rho: float = RHO
    explorations_max: int = 12
    step_factor_max: float = 4.0
    explore_cpu: bool = False
    cpu_step: float = 2.0
    candidates_max: int = 32
    select: str = SELECT.default
    law: GrowthLaw = fit_growth
    detector: Detector = cusum


@dataclass(slots=True)
class _JobMachines:
    """The services' machines of one job."""

    job: TraceJob
    profile: JobProfile
    planner: PlanMachine
    fitter: FitMachine
    watch: OomMachine
    pods: dict[str, PodWindow] = field(default_factory=dict[str, PodWindow])
    replacing: str = ""


class Services:
    """The services at work on one trace: a session of the simulation."""

    def __init__(self, trace: Sequence[TraceJob], settings: ClusterTraceSettings, knobs: Knobs) -> None:
        self.trace, self.settings, self.knobs = trace, settings, knobs
        capacity = settings.capacity
        arbiter = ArbiterSettings(
            capacity,
            objective=knobs.objective,
            rho=knobs.rho,
            round_s=knobs.round_s,
            settle_s=knobs.settle_s,
            apply_timeout_s=6 * settings.pod_start_s + 300.0,
        )
        self.arbiter = ArbiterMachine(None, arbiter, SELECT.named(knobs.select), knobs.select)
        self.history = HistoryMachine()
        self.planning = PlannerSettings(
            room=capacity,
            cold_start=COLD_START,
            windows_min=FIRST_WINDOWS,
            window_s=WINDOW_S,
            cpu_step=knobs.cpu_step,
            candidates_max=knobs.candidates_max,
            exploration=ExplorationLimits(
                explorations_max=knobs.explorations_max,
                axes=AXES if knobs.explore_cpu else COUNTS,
                step_factor_max=knobs.step_factor_max,
            ),
        )
        self.fitting = FitterSettings(half_life_s=6 * 3600.0, first_windows=FIRST_WINDOWS, every_windows=8)
        lead_s = LONGEST_WINDOW_S + settings.pod_start_s
        self.watching = WatchSettings(lead_s=lead_s, move_lead_s=2 * lead_s, shrink_patience_s=2 * LONGEST_WINDOW_S)
        self.rules = ProfilingRules()
        self.machines: dict[str, _JobMachines] = {}
        self.facts: deque[Any] = deque()
        self.commands: list[policies.Command] = []

    def handle(self, event: policies.Event, now: float) -> list[policies.Command]:
        """Deliver the job's events to the services, and carry out their decisions."""
        now += 1.0  # to the machines, a time of 0 means never
        self._HEARS[type(event)](self, event, now)
        while self.facts:
            fact = self.facts.popleft()
            self._ROUTES[type(fact)](self, fact, now)
        commands, self.commands = self.commands, []
        return commands

    # ---- from the cluster -------------------------------------------------------------------------------------

    def _submitted(self, event: policies.Submitted, now: float) -> None:
        job, name = self.trace[event.job], _name(event.job)
        profile = JobProfile(job.batch_size, job.samples, job.limits, metadata=dict(job.metadata))
        self.machines[name] = machines = _JobMachines(
            job,
            profile,
            PlanMachine(None, self.planning),
            FitMachine(None, self.fitting),
            OomMachine(None, self.watching, self.knobs.law),
        )
        low, high = job.limits.low.ps_memory_bytes, job.limits.high.ps_memory_bytes
        machines.watch.handle(OomJobOpened(job.samples, low, high), now)
        self.facts.append(JobOpened(name, profile))

    def _applied(self, event: policies.PlanInForce, now: float) -> None:
        self.facts.append(
            PlanApplied(job=_name(event.job), version=event.version, plan=event.plan, took_s=event.took_s)
        )

    def _window(self, event: policies.MeasuredWindow, now: float) -> None:
        name = _name(event.job)
        machines = self.machines[name]
        measured = _measured(name, machines.job, event)
        self.facts.append(_progressed(name, event.samples_done, machines.job.samples, event.samples_per_s))
        hot = self._look_for_hot(machines, event, measured.ps, now)
        self.facts.append(replace(measured, settled=event.settled and not hot))
        self._watch(name, measured, now)

    def _look_for_hot(
        self, machines: _JobMachines, event: policies.MeasuredWindow, profiles: Sequence[PsProfile], now: float
    ) -> bool:
        """Return True if any server is hot. A server that stays hot is marked for replacement."""
        machines.pods = {each.pod: machines.pods.get(each.pod) or PodWindow("ps", started=True) for each in profiles}
        for each in event.servers:
            machines.pods[f"ps-{each.number}"].sums.count = each.updates
        window = ClosedWindow(_name(event.job), [], list(profiles), machines.job.batch_size, event.seconds)
        for found in self.knobs.detector(window, machines.pods, self.rules, now):
            if isinstance(found, HotPsDetected) and not machines.replacing:
                self.facts.append(ReplacementAsked(job=_name(event.job), pod=found.pod))
        return any(pod.bad_windows for pod in machines.pods.values())

    def _died(self, event: policies.ServerDied, now: float) -> None:
        self._watch(_name(event.job), _server_exited(event), now)

    def _replaced(self, event: policies.Replaced, now: float) -> None:
        machines = self.machines[_name(event.job)]
        if machines.replacing:
            self.facts.append(ReplacementEnded(job=_name(event.job), pod=machines.replacing))
            machines.replacing = ""

    def _ended(self, event: policies.Ended, now: float) -> None:
        name = _name(event.job)
        samples = self.trace[event.job].samples
        if event.how == "completed":
            self.facts.append(_progressed(name, samples, samples, 0.0))
            self.facts.append(
                JobCompleted(
                    job=name, samples=samples, samples_abandoned=0, epochs=1, shards=1, requeued=0, started_at_s=0.0
                )
            )
        else:
            self.facts.append(JobFailed(job=name, reason=event.how))
        self.facts.append(
            JobFinished(
                job=name,
                samples_expected=samples,
                samples_applied=samples,
                samples_lost=0,
                samples_repeated=0,
                repeats_recognised=0,
                rows=0,
            )
        )

    def _period(self, event: policies.Period, now: float) -> None:
        self._to_arbiter(Tick(), now)

    def _nothing(self, event: policies.Event, now: float) -> None:
        pass

    # ---- from one service to the others -----------------------------------------------------------------------

    def _take(self, machine: Any, event: Any, now: float) -> None:
        for action in machine.handle(event, now):
            if isinstance(action, Emit):
                self.facts.append(action.fact)

    def _watch(self, name: str, event: WatchEvent, now: float) -> None:
        """Pass an event to the job's memory watch, and its forecast on."""
        for action in self.machines[name].watch.handle(event, now):
            if isinstance(action, Emit):
                self.facts.append(action.fact)

    def _job_opened(self, fact: JobOpened, now: float) -> None:
        if self.knobs.warm_start:
            self._take(self.history, fact, now)
        else:
            self.facts.append(HistoryMatched(job=fact.job, metadata={}, matches=(), smoothing=0.5, plan=None))
        self._to_planner(fact, now)
        self._to_arbiter(fact, now)

    def _to_planner(self, fact: Any, now: float) -> None:
        self._take(self.machines[fact.job].planner, fact, now)

    def _matched(self, fact: HistoryMatched, now: float) -> None:
        self._to_planner(fact, now)
        self._take(self.machines[fact.job].fitter, fact, now)

    def _to_arbiter(self, fact: Any, now: float) -> None:
        """Deliver a fact to the arbiter, and solve its background task at once, as the service's other process does."""
        self._take(self.arbiter, fact, now)
        if (task := self.arbiter.task()) is not None:
            self._take(self.arbiter, task.solved(), now)

    def _recorded(self, fact: HistoryRecorded, now: float) -> None:
        self._take(self.history, fact, now)

    def _plan_decided(self, fact: PlanDecided, now: float) -> None:
        self._to_planner(fact, now)
        self._watch(fact.job, fact, now)
        self.commands.append(policies.Want(int(fact.job), fact.plan))

    def _plan_applied(self, fact: PlanApplied, now: float) -> None:
        self._to_planner(fact, now)
        self._watch(fact.job, fact, now)
        self._to_arbiter(fact, now)

    def _measured(self, fact: ProfileMeasured, now: float) -> None:
        self._to_planner(fact, now)
        self._take(self.machines[fact.job].fitter, fact, now)

    def _progressed(self, fact: JobProgressed, now: float) -> None:
        self._to_planner(fact, now)
        self._to_arbiter(fact, now)
        self._watch(fact.job, fact, now)

    def _job_ended(self, fact: JobCompleted | JobFailed, now: float) -> None:
        self._to_planner(fact, now)
        self._to_arbiter(fact, now)

    def _replacement(self, fact: ReplacementDecided, now: float) -> None:
        if fact.granted:
            self.machines[fact.job].replacing = fact.pod
            self.commands.append(policies.Replace(int(fact.job), int(fact.pod.removeprefix("ps-"))))

    _HEARS: dict[type, Callable[..., None]] = {  # noqa: RUF012
        policies.Submitted: _submitted,
        policies.PlanInForce: _applied,
        policies.MeasuredWindow: _window,
        policies.ServerDied: _died,
        policies.Replaced: _replaced,
        policies.Ended: _ended,
        policies.Period: _period,
        policies.RestartRefused: _nothing,
    }
    """The handler of each event of the simulated cluster."""
    _ROUTES: dict[type, Callable[..., None]] = {  # noqa: RUF012
        JobOpened: _job_opened,
        HistoryMatched: _matched,
        HistoryRecorded: _recorded,
        PlanProposed: _to_arbiter,
        CandidatesComputed: _to_arbiter,
        PlanDecided: _plan_decided,
        PlanRefused: _to_planner,
        PlanApplied: _plan_applied,
        ProfileMeasured: _measured,
        ModelFitted: _to_planner,
        JobProgressed: _progressed,
        OomForecast: _to_arbiter,
        ReplacementAsked: _to_arbiter,
        ReplacementDecided: _replacement,
        ReplacementEnded: _to_arbiter,
        JobCompleted: _job_ended,
        JobFailed: _job_ended,
        JobFinished: _to_arbiter,
    }
    """The receiver of each message that a machine emits."""


def _progressed(job: str, samples_done: int, samples_total: int, samples_per_s: float) -> JobProgressed:
    return JobProgressed(
        job=job,
        samples_done=samples_done,
        samples_total=samples_total,
        epoch=0,
        samples_per_s=samples_per_s,
        shards_leased=0,
        shards_requeued_total=0,
    )


def _name(job: int) -> str:
    return f"{job:06d}"


def _measured(name: str, job: TraceJob, event: policies.MeasuredWindow) -> ProfileMeasured:
    """Return the profile of a window; its rows are those that the servers' memory holds."""
    servers = tuple(
        PsProfile(
            pod=f"ps-{each.number}",
            cpu_used_cores=each.busy_cores,
            cpu_limit_cores=each.cores,
            memory_used_bytes=each.used_bytes,
            memory_limit_bytes=each.limit_bytes,
            categories=int(max(each.used_bytes - job.server_base_bytes, 0) / ROW_BYTES),
            row_bytes=ROW_BYTES,
            table_bytes=max(each.used_bytes - job.server_base_bytes, 0),
            buckets=BUCKETS // len(event.servers),
            update_time_s=each.update_s,
        )
        for each in event.servers
    )
    return ProfileMeasured(
        job=name,
        plan_version=event.version,
        plan=event.plan,
        batch_size=job.batch_size,
        window_s=event.seconds,
        step_time_s=event.step_time_s,
        times=NOT_MEASURED,
        throughput=event.samples_per_s,
        samples_total=event.samples_done,
        categories=sum(server.categories for server in servers),
        settled=event.settled,
        workers=(),
        ps=servers,
    )


def _server_exited(event: policies.ServerDied) -> PodExited:
    reason = "oom-killed" if event.oom else "failed"
    return PodExited(job=_name(event.job), pod=f"ps-{event.number}", role="ps", reason=reason, exit_code=None)


def with_knobs(knobs: Knobs) -> policies.Policy:
    """Stretto's policy with these settings."""
    return policies.Policy(
        lambda trace, settings: Services(trace, settings, knobs),
        dynamic=True,
        when_pods_die="the pod is replaced",
        windows=True,
        period_s=knobs.round_s,
    )


STRETTO = with_knobs(Knobs())
COLD = with_knobs(replace(Knobs(), warm_start=False))

"""A cluster in a loop for tests: the real machines, a known truth, an actuator that takes its time."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from job_builders import SERVER, job_ended, job_progressed, plan_applied, profile_measured
from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.fitter.machine import FitMachine
from stretto_core.machine import Emit, Tick
from stretto_core.model.types import JobLimits, JobOpened, JobProfile
from stretto_core.planner.history import HistoryMachine
from stretto_core.planner.machine import PlanMachine
from stretto_core.planner.state import PlannerSettings
from stretto_messages.actuator import PlanApplied
from stretto_messages.arbiter import DataWorkersDecided, PlanDecided
from stretto_messages.base import GIB
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import FeedProfile, GroupProfile, Plan, Resources, StepTimes

MIB = 1024**2


def plan(workers: int = 1, ps: int = 1, worker_cpu: float = 1.0, ps_cpu: float = 1.0, memory: int = GIB) -> Plan:
    return Plan(workers, ps, worker_cpu, ps_cpu, memory, memory)


LIMITS = JobLimits(plan(1, 1, 0.5, 0.5, 512 * MIB), plan(16, 8, 4.0, 4.0, 16 * GIB))


def profile(samples: int = 5_000_000, **changes: Any) -> JobProfile:
    return JobProfile(**{"batch_size": 512, "samples": samples, "limits": LIMITS, **changes})


CORE_COMPUTE_S = 0.02
"""Time in which one core computes a batch."""


def truth(p: Plan) -> float:
    """A step time with every effect of the default form."""
    return (
        CORE_COMPUTE_S / p.worker_cpu_cores + 0.004 + 0.006 * p.workers / (p.ps * p.ps_cpu_cores) + 0.0005 * p.workers
    )


@dataclass
class Loop:
    """Runs every message to all machines that take it, in one order; ``log`` keeps (time, fact)."""

    capacity: Resources
    step_time: Callable[[Plan], float] = truth
    noise: float = 0.03
    window_s: float = 5.0
    apply_s: float = 5.0
    settings: ArbiterSettings | None = None
    planner_settings: PlannerSettings | None = None
    log: list[tuple[float, Any]] = field(default_factory=list)
    now: float = 1000.0
    kept_while_applying: float = 1.0  # of the throughput
    prepare_s: float = 0.0
    """Time in which a worker, or a data worker, prepares a batch; 0: nobody waits, and no queue is measured."""
    data_workers: dict[str, int] = field(default_factory=dict)
    compute_s: dict[str, float] = field(default_factory=dict)
    """Time in which a unit of each type of devices computes a batch, for which cores take ``CORE_COMPUTE_S`` over
    their number."""
    tells_parts: bool = False
    """True if workers tell which part of a step is computing."""
    stage_factor: float = 1.0
    """Time that the first of two stages takes, as a multiple of what a worker takes beside computing."""

    def __post_init__(self) -> None:
        self.arbiter = ArbiterMachine(None, self.settings or ArbiterSettings(self.capacity))
        self.history = HistoryMachine()
        self.planners: dict[str, PlanMachine] = {}
        self.fitters: dict[str, FitMachine] = {}
        self.running: dict[str, tuple[int, Plan]] = {}
        self.due: list[tuple[float, PlanApplied]] = []
        self.done: dict[str, float] = {}
        self.profiles: dict[str, JobProfile] = {}
        self.random = random.Random(0)

    def tell(self, event: Any) -> None:
        """Deliver an event, then what the machines say to it, breadth first."""
        queue = [event]
        while queue:
            heard = queue.pop(0)
            self.log.append((self.now, heard))
            if isinstance(heard, PlanDecided):
                self.due.append(
                    (self.now + self.apply_s, plan_applied(heard.job, heard.version, heard.plan, self.apply_s))
                )
            if isinstance(heard, DataWorkersDecided):
                self.data_workers[heard.job] = heard.count
            machines: list[Any] = [self.history, self.arbiter]
            if job := getattr(heard, "job", None):
                settings = self.planner_settings or PlannerSettings(room=self.capacity, window_s=self.window_s)
                machines.append(self.planners.setdefault(job, PlanMachine(None, settings)))
                machines.append(self.fitters.setdefault(job, FitMachine()))
            for machine in machines:
                queue += [action.fact for action in machine.handle(heard, self.now) if isinstance(action, Emit)]
            if (task := self.arbiter.task()) is not None:
                answer = self.arbiter.handle(task.solved(), self.now)
                queue += [action.fact for action in answer if isinstance(action, Emit)]

    def submit(self, job: str, spec: JobProfile) -> None:
        self.profiles[job], self.done[job] = spec, 0.0
        self.tell(JobOpened(job, spec))

    def run(self, seconds: float) -> None:
        """Let time pass in windows."""
        end = self.now + seconds
        while self.now < end:
            self.now += self.window_s
            for at, applied in [row for row in self.due if row[0] <= self.now]:
                self.due.remove((at, applied))
                self.running[applied.job] = (applied.version, applied.plan)
                self.tell(applied)
            for job in list(self.running):
                self._train(job)
            self.tell(Tick())

    def _train(self, job: str) -> None:
        version, now_plan = self.running[job]
        if now_plan.stages > 1:
            return self._train_in_stages(job, version, now_plan)
        steps = {
            place.device: (self._alone_s(now_plan, place.device) * self.random.lognormvariate(0, self.noise), count)
            for place, count in now_plan.worker_places.items()
        }
        trained = next(iter(steps.values()))[0]
        step = max(trained, self._supply_s(job, now_plan))
        rate = sum(count * 512 / max(one, self._supply_s(job, now_plan)) for one, count in steps.values())
        if any(applied.job == job for _, applied in self.due):
            rate *= self.kept_while_applying
        self.done[job] += rate * self.window_s
        server = replace(SERVER, memory_used_bytes=700 * MIB)
        measured = profile_measured(job, version, now_plan, step, rate, window_s=self.window_s, ps=(server,))
        if self.prepare_s:
            times = replace(measured.times, read_s=step - trained)
            measured = replace(measured, times=times, feed=self._queue(job, now_plan, trained, step))
        if now_plan.groups:
            groups = (
                GroupProfile(
                    device=name, workers=n, step_time_s=s, times=self._times(measured.times, s, now_plan, name)
                )
                for name, (s, n) in steps.items()
            )
            measured = replace(measured, groups=tuple(groups))
        if self.tells_parts:
            first = next(iter(steps))
            measured = replace(measured, times=self._times(measured.times, trained, now_plan, first))
        self._told(job, measured, rate)

    def _times(self, times: StepTimes, step_s: float, now_plan: Plan, device: str) -> StepTimes:
        if not self.tells_parts:
            return times
        compute_s = self.compute_s[device] if device else CORE_COMPUTE_S / now_plan.worker_cpu_cores
        grad_s = step_s * compute_s / self._alone_s(now_plan, device)
        return replace(times, grad_s=grad_s, sync_s=step_s - grad_s)

    def _told(self, job: str, measured: ProfileMeasured, rate: float) -> None:
        total = self.profiles[job].samples
        self.tell(measured)
        self.tell(job_progressed(job, min(int(self.done[job]), total), total, rate))
        if self.done[job] >= total:
            del self.running[job]
            self.tell(job_ended(job, "completed"))
            self.tell(job_ended(job, "gone"))

    def _train_in_stages(self, job: str, version: int, now_plan: Plan) -> None:
        """Let the slowest of two stages bound the steps: a worker of the first waits for the second in each."""
        first = sum(count for place, count in now_plan.worker_places.items() if not place.stage)
        last = now_plan.workers - first
        (device,) = [group.device for group in now_plan.groups if group.stage]
        reading_s = self.step_time(replace(now_plan, workers=first, groups=()))
        reading_s = self.stage_factor * (reading_s - CORE_COMPUTE_S / now_plan.worker_cpu_cores)
        busy_s = self.compute_s[device] * self.random.lognormvariate(0, self.noise)
        rate = 512 / max((reading_s + busy_s) / first, busy_s / last)
        step_s = first * 512 / rate
        self.done[job] += rate * self.window_s
        measured = profile_measured(job, version, now_plan, step_s, rate, window_s=self.window_s, ps=(SERVER,))
        waiting = StepTimes(emb_s=reading_s, grad_s=step_s - reading_s, upd_s=0.0, sync_s=0.0, read_s=0.0)
        groups = [
            GroupProfile(device=place.device, workers=count, step_time_s=step_s, times=waiting)
            for place, count in now_plan.worker_places.items()
            if not place.stage
        ]
        computing = replace(waiting, emb_s=0.0, grad_s=busy_s)
        groups.append(GroupProfile(device=device, workers=last, step_time_s=busy_s, times=computing, stage=1))
        self._told(job, replace(measured, times=waiting, groups=tuple(groups)), rate)

    def _alone_s(self, now_plan: Plan, device: str) -> float:
        """Return the step time of a worker on ``device`` as it would be without noise."""
        on_cores = self.step_time(now_plan)
        return on_cores - CORE_COMPUTE_S / now_plan.worker_cpu_cores + self.compute_s[device] if device else on_cores

    def _supply_s(self, job: str, now_plan: Plan) -> float:
        """Return the least time between two steps of a worker that preparing batches allows."""
        lanes = self.data_workers.get(job, 0)
        return self.prepare_s * now_plan.workers / lanes if lanes else self.prepare_s

    def _queue(self, job: str, now_plan: Plan, trained_s: float, step_s: float) -> FeedProfile:
        lanes = self.data_workers.get(job, 0)
        return FeedProfile(
            dequeued_per_s=now_plan.workers / trained_s,
            enqueued_per_s=lanes / self.prepare_s,
            read_share=1 - trained_s / step_s,
            prepare_s=self.prepare_s,
            prepare_cpu_s=0.0,
            cpu_share=0.5,
            lanes=lanes,
        )

    def facts(self, kind: type, job: str | None = None) -> list[Any]:
        return [fact for _, fact in self.log if isinstance(fact, kind) and job in (None, fact.job)]

"""Optimus (Peng et al., EuroSys 2018), as DLRover-RM compares itself with it (sections 6 and 7).

It models the speed of a job by the numbers of workers w and servers p alone:

    f(p, w) = w / (theta_0 + theta_1 w/p + theta_2 w + theta_3 p),   theta >= 0,

fitted to measurements, at first to some small samples of each job. At every interval it hands out pods one by one. A
pod goes to the job whose remaining time it shortens most for its share of the cluster. Each job then moves by ``step``
pods of each role towards that allocation, by stop and restart; the time of a restart is not considered. Cores and
memory of its pods stay as in the user's request.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from stretto_messages.values import NO_EXTENDED, Plan, Resources

from stretto_sim.cluster import policies, truth
from stretto_sim.cluster.trace import ClusterTraceSettings, TraceJob

SAMPLES = ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4))
"""(workers, servers) measured before a job starts; the measurements cost nothing here"""
PERIOD_S = 180.0
"""Time between two rounds (section 6.2)."""
STEP = 1
MEASURED_WEIGHT = 3.0
"""Weight of a measurement of the job itself, relative to that of a sample."""


@dataclass(slots=True)
class _Seen:
    """The knowledge of a job. ``speeds``: (workers, servers) -> samples per second."""

    job: TraceJob
    speeds: dict[tuple[int, int], float]
    remaining: float
    plan: Plan | None = None
    changing: bool = False
    measured: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    theta: tuple[float, float, float, float] | None = None

    def speed(self, workers: int, ps: int) -> float:
        """Return the fitted samples per second, f(p, w) in the paper."""
        a, b, c, d = self.theta or self._fit()
        return workers / max(a + b * workers / ps + c * workers + d * ps, 1e-12)

    def _fit(self) -> tuple[float, float, float, float]:
        from scipy.optimize import nnls

        rows, target = list[list[float]](), list[float]()
        for (workers, ps), speed in self.speeds.items():
            time = workers / speed  # equal relative errors have equal weight
            weight = (MEASURED_WEIGHT if (workers, ps) in self.measured else 1.0) / time
            rows.append([weight, weight * workers / ps, weight * workers, weight * ps])
            target.append(weight * time)
        found = nnls(np.array(rows), np.array(target))[0]
        self.theta = (float(found[0]), float(found[1]), float(found[2]), float(found[3]))
        return self.theta


class Optimus:
    """The session of the policy."""

    def __init__(self, trace: Sequence[TraceJob], settings: ClusterTraceSettings, step: int | None = STEP) -> None:
        self.trace, self.settings, self.step = trace, settings, step
        self.seen: dict[int, _Seen] = {}

    def handle(self, event: policies.Event, now: float) -> list[policies.Command]:
        """Decide at every interval, and at once for a submitted job."""
        match event:
            case policies.Submitted():
                self.seen[event.job] = self._sampled(event.job)
                return self._decide(newcomer=event.job)
            case policies.PlanInForce() if event.job in self.seen:
                self.seen[event.job].changing = False
            case policies.RestartRefused() if event.job in self.seen:
                self.seen[event.job].changing = False
            case policies.MeasuredWindow() if event.job in self.seen:
                self._measured(self.seen[event.job], event)
            case policies.Ended():
                self.seen.pop(event.job, None)
            case policies.Period():
                return self._decide()
            case _:
                pass
        return []

    def _sampled(self, number: int) -> _Seen:
        job = self.trace[number]
        rng = np.random.default_rng((self.settings.seed, number, len(SAMPLES)))
        speeds = {
            (workers, ps): truth.samples_per_s(job, replace(job.request, workers=workers, ps=ps))
            * float(np.exp(self.settings.noise * rng.standard_normal()))
            for workers, ps in SAMPLES
        }
        return _Seen(job, speeds, job.samples)

    @staticmethod
    def _measured(seen: _Seen, event: policies.MeasuredWindow) -> None:
        seen.remaining = max(seen.job.samples - event.samples_done, 1.0)
        if event.settled:
            at = event.plan.workers, event.plan.ps
            seen.speeds[at], seen.theta = event.samples_per_s, None
            seen.measured.add(at)

    def _decide(self, newcomer: int | None = None) -> list[policies.Command]:
        """Return the changes of all jobs or, between two intervals, the start of the newcomer."""
        wanted, commands = self._allocate(), list[policies.Command]()
        for number, (workers, ps) in wanted.items():
            seen = self.seen[number]
            if seen.changing or (newcomer is not None and number != newcomer):
                continue
            if seen.plan is None:
                plan = replace(seen.job.request, workers=workers, ps=ps)
            else:
                plan = replace(
                    seen.plan, workers=self._towards(seen.plan.workers, workers), ps=self._towards(seen.plan.ps, ps)
                )
            if plan != seen.plan:
                commands.append(policies.Want(number, plan, restart=seen.plan is not None))
                seen.plan, seen.changing = plan, True
        return commands

    def _towards(self, here: int, there: int) -> int:
        if self.step is None:
            return there
        return min(max(there, here - self.step), here + self.step)

    def _allocate(self) -> dict[int, tuple[int, int]]:
        """Return (workers, servers) of each job that gets pods: first one of each, in the order of submission."""
        free, found = self.settings.capacity, dict[int, tuple[int, int]]()
        for number, seen in sorted(self.seen.items()):
            first = replace(seen.job.request, workers=1, ps=1).resources(NO_EXTENDED)
            if first.fits(free):
                free, found[number] = free - first, (1, 1)
        heap = [entry for number in found if (entry := self._best(number, (1, 1)))]
        heapq.heapify(heap)
        while heap:
            _, number, workers, ps = heapq.heappop(heap)
            now = found[number]
            more = _pod(self.seen[number].job, worker=workers > now[0])
            if not more.fits(free):
                continue
            free, found[number] = free - more, (workers, ps)
            if entry := self._best(number, (workers, ps)):
                heapq.heappush(heap, entry)
        return found

    def _best(self, number: int, at: tuple[int, int]) -> tuple[float, int, int, int] | None:
        """Return the pod that shortens the job most for its share of the cluster; None if no pod shortens it."""
        seen, (workers, ps) = self.seen[number], at
        high, capacity = seen.job.limits.high, self.settings.capacity
        now_s = seen.remaining / seen.speed(workers, ps)
        best: tuple[float, int, int, int] | None = None
        for w, s in ((workers + 1, ps), (workers, ps + 1)):
            if w > high.workers or s > high.ps:
                continue
            size = _pod(seen.job, worker=w > workers)
            share = max(size.cpu_cores / capacity.cpu_cores, size.memory_bytes / capacity.memory_bytes)
            gain = (now_s - seen.remaining / seen.speed(w, s)) / share
            if gain > 0 and (best is None or -gain < best[0]):
                best = (-gain, number, w, s)
        return best


def _pod(job: TraceJob, worker: bool) -> Resources:
    plan = job.request
    if worker:
        return Resources(plan.worker_cpu_cores, plan.worker_memory_bytes)
    return Resources(plan.ps_cpu_cores, plan.ps_memory_bytes)


OPTIMUS = policies.Policy(Optimus, when_pods_die="the job restarts", windows=True, period_s=PERIOD_S)

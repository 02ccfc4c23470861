"""ModelArts' simulation (§5.1), from event to event.

Time is whole seconds, as in the paper: an event within a second takes effect at its end. Between two events every job
trains at a constant speed, so nothing is lost by jumping. At each event:

1. delayed growth comes into force,
2. jobs leave,
3. jobs come,
4. the policy decides, if it is due; otherwise idle nodes go to the jobs of the queue in its order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stretto_core.arbiter.ahead import AllocationProblem, ElasticJob
from stretto_messages.base import InvalidValue

from stretto_sim.allocation.policies import Policy
from stretto_sim.allocation.trace import Fate, PoolTraceSettings, TraceJob, fates
from stretto_sim.measures import HORIZON_YEARS, YEAR_S, Durations, EndedJob, Level, Progress, TraceOutcome

FLOOR = 0.05
"""Least share of its estimated demand that a job has left: a job that outlives its estimate goes on."""
HOUR_S = 3600.0
NEARLY = 1e-6
"""Tolerance for rounding, in node-seconds or seconds of demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left(EndedJob):
    """A job that has left.

    ``queued_s``: all time without nodes. ``changes``: changes of its size after its start. ``how``: finished, hung (a
    bug) or terminated (by its user).
    """

    changes: int
    how: str


@dataclass(slots=True, kw_only=True)
class AllocationOutcome(TraceOutcome[Left]):
    """The outcome of a trace. Jobs are numbered by submission; levels count nodes that train."""

    settings: PoolTraceSettings
    in_use: Level = field(default_factory=Level)
    of_job: list[Level] = field(default_factory=list[Level])
    decide_s: list[float] = field(default_factory=list[float])

    @property
    def changes_per_job(self) -> float:
        return Durations.of([float(job.changes) for job in self.jobs]).mean_s

    @property
    def utilisation(self) -> float:
        """Return the share of the pool that trained over the span."""
        return self.in_use.mean(*self.span_s) / self.settings.nodes


@dataclass(slots=True)
class _Active:
    """A job between submission and end; ``assigned`` are its nodes from ``due_s`` on."""

    number: int
    job: TraceJob
    fate: Fate
    nodes: int = 0
    assigned: int = 0
    due_s: float = math.inf
    served: float = 0.0  # node-seconds
    trained_s: float = 0.0
    queued_s: float = 0.0
    started: bool = False
    changes: int = 0


def simulate(
    trace: Sequence[TraceJob],
    policy: Policy,
    settings: PoolTraceSettings,
    *,
    clock: Callable[[], float] = lambda: 0.0,
    progress: Progress = lambda left, total: None,
) -> AllocationOutcome:
    """Simulate all jobs of the trace, to the end of the last one. ``clock`` (seconds) times the decisions.

    Raises:
        InvalidValue: the jobs train for longer than ``HORIZON_YEARS`` under a periodic policy.
    """
    jobs = sorted(trace, key=lambda job: job.submit_s)
    return _Simulation(jobs, policy, settings, clock, progress).run()


class _Simulation:
    def __init__(
        self,
        jobs: list[TraceJob],
        policy: Policy,
        settings: PoolTraceSettings,
        clock: Callable[[], float],
        progress: Progress,
    ) -> None:
        self.policy, self.settings, self.clock, self.progress = policy, settings, clock, progress
        drawn = zip(jobs, fates(jobs, settings), strict=True)
        self.coming = [_Active(number, job, fate) for number, (job, fate) in enumerate(drawn)][::-1]
        self.active: list[_Active] = []
        self.left: dict[int, Left] = {}
        self.outcome = AllocationOutcome(settings=settings, of_job=[Level() for _ in jobs])
        speed = AllocationProblem((), settings.nodes, doubling_efficiency=settings.doubling_efficiency).speed
        self.speeds = {size: speed(size) for size in (0, *settings.sizes)}

        if policy.periodic:
            self._check_horizon()

    def _check_horizon(self) -> None:
        """Refuse a trace that lasts too long even if every job trains at its fastest. Raises InvalidValue."""
        remedy = f"give at most {HORIZON_YEARS} years, or a policy that is asked only when a job comes or goes"
        nodes, together_s = self.settings.nodes, 0.0
        best = max(self.speeds[size] / size for size in self.settings.sizes)
        for one in self.coming:
            fastest = max(speed for size, speed in self.speeds.items() if size <= min(one.job.max_nodes, nodes))
            work_s, hangs_s = one.fate.leaves_after_node_hours * HOUR_S, one.fate.leaves_after_s
            together_s += min(work_s / best, hangs_s) / nodes
            if fastest and (years := min(work_s / fastest, hangs_s) / YEAR_S) > HORIZON_YEARS:
                demand = one.job.demand_node_hours
                raise InvalidValue(f"demand_node_hours is {demand:g}, {years:.3g} years at its fastest; {remedy}")
        if (years := together_s / YEAR_S) > HORIZON_YEARS:
            raise InvalidValue(f"demand_node_hours add up to {years:.3g} years on {nodes} nodes; {remedy}")

    def run(self) -> AllocationOutcome:
        now, total = 0, len(self.coming)
        while self.coming or self.active:
            before, now = now, self._next(now)
            self._train(now - before)
            self._grow(now)
            changed = self._leave(now) + self._come(now)
            asked = self.policy.on_change and changed > 0
            asked |= self.policy.periodic and now % self.settings.period_s == 0
            if asked and self.active:
                self._decide(now)
            else:
                self._start(now)
            self.outcome.in_use.set(now, sum(one.nodes for one in self.active))
            self.progress(len(self.left), total)
        self.outcome.jobs = [self.left[number] for number in range(total)]
        return self.outcome

    def _next(self, now: int) -> int:
        """Return the time of the next event."""
        moments = [max(math.ceil(self.coming[-1].job.submit_s), now)] if self.coming else []
        for one in self.active:
            if one.due_s < math.inf:
                moments.append(math.ceil(one.due_s))
            if one.nodes:
                trains_s = (one.fate.leaves_after_node_hours * HOUR_S - one.served) / self.speeds[one.nodes]
                trains_s = min(trains_s, one.fate.leaves_after_s - one.trained_s)
                moments.append(now + max(math.ceil(trains_s - NEARLY), 1))
        if self.active and self.policy.periodic:
            moments.append((now // self.settings.period_s + 1) * self.settings.period_s)
        return min(moments)

    def _train(self, seconds: int) -> None:
        for one in self.active:
            if one.nodes:
                one.served += self.speeds[one.nodes] * seconds
                one.trained_s += seconds
            if not one.assigned:
                one.queued_s += seconds

    def _grow(self, now: int) -> None:
        for one in self.active:
            if one.due_s <= now:
                self._train_on(one, one.assigned, now)

    def _leave(self, now: int) -> int:
        gone = [
            one
            for one in self.active
            if one.trained_s > 0
            and (
                one.served >= one.fate.leaves_after_node_hours * HOUR_S - NEARLY
                or one.trained_s >= one.fate.leaves_after_s - NEARLY
            )
        ]
        for one in gone:
            self._train_on(one, 0, now)
            finished = one.served >= one.job.demand_node_hours * HOUR_S - NEARLY
            how = "finished" if finished else one.fate.how
            self.left[one.number] = Left(
                submit_s=one.job.submit_s, end_s=float(now), queued_s=one.queued_s, changes=one.changes, how=how
            )
        if gone:
            self.active = [one for one in self.active if one.number not in self.left]
        return len(gone)

    def _come(self, now: int) -> int:
        count = 0
        while self.coming and self.coming[-1].job.submit_s <= now:
            self.active.append(self.coming.pop())
            count += 1
        return count

    def _problem(self) -> AllocationProblem:
        """Return the problem of the known jobs; every job gets a node, unless they outnumber the nodes."""
        least = 1 if len(self.active) <= self.settings.nodes else 0
        jobs = tuple(
            ElasticJob(
                id=str(one.number),
                demand_node_hours=max(
                    one.fate.believed_node_hours - one.served / HOUR_S, FLOOR * one.fate.believed_node_hours
                ),
                min_nodes=least,
                max_nodes=one.job.max_nodes,
                current_nodes=one.assigned,
                trained_s=one.trained_s,
            )
            for one in self.active
        )
        s = self.settings
        return AllocationProblem(jobs, s.nodes, s.steps, s.period_s / HOUR_S, s.sizes, s.doubling_efficiency)

    def _decide(self, now: int) -> None:
        problem = self._problem()
        begun_s = self.clock()
        nodes = self.policy.decide(problem)
        self.outcome.decide_s.append(self.clock() - begun_s)
        if sum(nodes) > self.settings.nodes:
            raise AssertionError(f"the policy hands out {sum(nodes)} of {self.settings.nodes} nodes")
        for one, size in zip(self.active, nodes, strict=True):
            self._assign(one, size, now)

    def _start(self, now: int) -> None:
        idle = self.settings.nodes - sum(one.assigned for one in self.active)
        for one in self.active:
            if idle and not one.assigned:
                most = min(idle, one.job.max_nodes)
                size = max((size for size in self.settings.sizes if size <= most), default=0)
                if not size:
                    return
                self._assign(one, size, now)
                idle -= size

    def _assign(self, one: _Active, size: int, now: int) -> None:
        """Assign nodes from now on, or after the delay if they are more; the same number changes nothing."""
        if size == one.assigned:
            return
        one.changes += one.started
        one.started |= size > 0
        one.assigned = size
        if size <= one.nodes or not self.settings.scaling_delay_s:
            self._train_on(one, size, now)
        else:
            one.due_s = now + self.settings.scaling_delay_s

    def _train_on(self, one: _Active, nodes: int, now: int) -> None:
        one.due_s = math.inf
        if nodes != one.nodes:
            one.nodes = nodes
            self.outcome.of_job[one.number].set(now, nodes)

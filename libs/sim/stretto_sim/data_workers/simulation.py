"""GoldMiner's cluster experiment (§5.6), from event to event.

Jobs start in the order of their submission: the first waits until it has its resources, and all others wait behind it.
A job's speed grows linearly with the CPUs of its data workers, wherever they are, up to the speed of its training
workers (Fig. 9). So between two events all speeds are constant, and nothing is lost by jumping from one to the next.
At each event:

1. jobs end,
2. jobs come,
3. jobs start,
4. jobs that tune themselves measure,
5. the arbiter hears of all that, and shares out the data workers.

Without a ranking, a job has its data workers on its nodes from start to end. Those that the arbiter shares out are
counted for the cluster as a whole, as the arbiter counts them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from stretto_messages.base import InvalidValue

from stretto_sim.data_workers.live import Sharing, Tuned
from stretto_sim.data_workers.placing import DUST, Free, node_for, pack
from stretto_sim.data_workers.policies import Need, Policy
from stretto_sim.data_workers.trace import Cluster, TraceJob
from stretto_sim.measures import Durations, EndedJob, Level, Progress, TraceOutcome

NEARLY = 1e-9
"""Relative tolerance of a run time for rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done(EndedJob):
    """A job that ended; ``ideal_s`` is its run time with all CPUs that it can use."""

    start_s: float
    ideal_s: float
    gpus: int


@dataclass(slots=True, kw_only=True)
class DataWorkersOutcome(TraceOutcome[Done]):
    """The outcome of a trace. Jobs are numbered by submission; levels count allocated resources.

    ``tunes``: nobody knew the needs of a job.
    """

    cluster: Cluster
    tunes: bool = False
    gpus: Level = field(default_factory=Level)
    cpus: Level = field(default_factory=Level)
    workers: list[Level] = field(default_factory=list[Level])
    """Data workers of each job."""

    @property
    def ideal(self) -> Durations:
        """Return the measures of the run times with all useful CPUs."""
        return Durations.of([job.ideal_s for job in self.jobs])

    @property
    def gpu_utilisation(self) -> float:
        """Return the share of the GPUs that was allocated over the span."""
        return self.gpus.mean(*self.span_s) / self.cluster.all_gpus

    @property
    def cpu_utilisation(self) -> float:
        """Return the share of the CPUs that was allocated over the span."""
        return self.cpus.mean(*self.span_s) / self.cluster.all_cpus


@dataclass(slots=True)
class _Running:
    """A job on its GPUs, at ``share`` of its ideal speed. ``left_s``: seconds left at the ideal speed.

    ``fixed``: node and CPUs of each data worker that it holds to its end; ``tuned``: it has others.
    """

    number: int
    job: TraceJob
    need: Need
    trainers: dict[str, int]
    start_s: float
    left_s: float
    share: float
    fixed: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])
    tuned: Tuned | None = None

    @property
    def name(self) -> str:
        return str(self.number)

    @property
    def ends_in_s(self) -> float:
        return self.left_s / self.share if self.share > 0 else math.inf


def simulate(
    trace: Sequence[TraceJob],
    policy: Policy,
    cluster: Cluster | None = None,
    *,
    progress: Progress = lambda left, total: None,
) -> DataWorkersOutcome:
    """Simulate all jobs of the trace, to the end of the last one; jobs of one moment start in the order of the trace.

    Raises:
        InvalidValue: a job has more GPUs than the cluster.
    """
    cluster = cluster or Cluster()
    if wide := next((job for job in trace if job.gpus > cluster.all_gpus), None):
        raise InvalidValue(f"gpus is {wide.gpus}; give at most the cluster's {cluster.all_gpus}")
    return _Simulation(sorted(trace, key=lambda job: job.submit_s), policy, cluster, progress).run()


class _Simulation:
    def __init__(self, jobs: list[TraceJob], policy: Policy, cluster: Cluster, progress: Progress) -> None:
        self.policy, self.cluster, self.progress = policy, cluster, progress
        self.coming = list(enumerate(jobs))[::-1]
        self.queue = deque[tuple[int, TraceJob]]()
        self.running: dict[str, _Running] = {}
        self.done: dict[int, Done] = {}
        self.outcome = DataWorkersOutcome(
            cluster=cluster, tunes=policy.ranking is not None, workers=[Level() for _ in jobs]
        )
        self.free = {f"node-{n}": Free(cluster.gpus, cluster.cpus) for n in range(cluster.nodes)}
        self.sharing = None if policy.ranking is None else Sharing(cluster, len(jobs), policy.ranking)

    def run(self) -> DataWorkersOutcome:
        now, total = 0.0, len(self.coming)
        while self.coming or self.running:
            before, now = now, self._next(now)
            for one in self.running.values():
                one.left_s -= one.share * (now - before)
            ended = self._end(now)
            self._come(now)
            started = self._start(now)
            if self.sharing is not None:
                self._share(self.sharing, ended, started, now)
            self._note(now)
            self.progress(len(self.done), total)
        self.outcome.jobs = [self.done[number] for number in range(total)]
        return self.outcome

    def _next(self, now: float) -> float:
        """Return the time of the next event."""
        ends_in_s = min((one.ends_in_s for one in self.running.values()), default=math.inf)
        submit_s = self.coming[-1][1].submit_s if self.coming else math.inf
        due_s = [one.tuned.due_s for one in self.running.values() if one.tuned is not None]
        measure_s = min((due for due in due_s if due is not None), default=math.inf)
        if math.isinf(moment := min(now + max(ends_in_s, 0.0), submit_s, measure_s)):
            raise AssertionError(f"none of {len(self.running)} jobs goes on")
        return moment

    def _end(self, now: float) -> list[_Running]:
        """Free what the jobs held that are over, and return them."""
        over = [one for one in self.running.values() if one.left_s <= NEARLY * max(one.job.ideal_s, now * one.share)]
        for one in over:
            self._use(one, -1)
            del self.running[one.name]
            self.outcome.workers[one.number].set(now, 0)
            job = one.job
            self.done[one.number] = Done(
                submit_s=job.submit_s,
                start_s=one.start_s,
                end_s=now,
                queued_s=one.start_s - job.submit_s,
                ideal_s=job.ideal_s,
                gpus=job.gpus,
            )
        return over

    def _come(self, now: float) -> None:
        while self.coming and self.coming[-1][1].submit_s <= now:
            self.queue.append(self.coming.pop())

    def _start(self, now: float) -> list[_Running]:
        """Start the jobs that have room, in their order, and return them."""
        started = list[_Running]()
        while self.queue and (one := self._placed(*self.queue[0], now)) is not None:
            self.queue.popleft()
            self.running[one.name] = one
            self._use(one, 1)
            started.append(one)
        return started

    def _placed(self, number: int, job: TraceJob, now: float) -> _Running | None:
        """Return the job with its resources; None without room for them."""
        need, names = self.policy.need(job, self.cluster), list(self.free)
        packed = pack(list(self.free.values()), job.gpus, need.trainer_cpus)
        if packed is None:
            return None
        trainers = {names[index]: count for index, count in packed.items()}
        one = _Running(number, job, need, trainers, now, job.ideal_s, need.share)
        cpus = {name: free.cpus - trainers.get(name, 0) * need.trainer_cpus for name, free in self.free.items()}
        for size in need.worker_cpus:
            node = node_for(cpus, trainers, size)
            if not node:
                return None
            one.fixed.append((node, size))
            cpus[node] -= size
        return one

    def _use(self, one: _Running, sign: int) -> None:
        """Take (1) or return (-1) the resources that the job holds to its end."""
        for name, count in one.trainers.items():
            self._take(name, sign * count, sign * count * one.need.trainer_cpus)
        for node, cpus in one.fixed:
            self._take(node, 0, sign * cpus)

    def _take(self, node: str, gpus: int, cpus: float) -> None:
        free = self.free[node]
        self.free[node] = Free(free.gpus - gpus, free.cpus - cpus)

    def _share(self, sharing: Sharing, ended: list[_Running], started: list[_Running], now: float) -> None:
        """Tell the arbiter what is new at this moment; give every job the data workers that it decides on."""
        tuning = [(one, one.tuned) for one in self.running.values() if one.tuned is not None]
        proposals = [
            proposal
            for one, tuned in tuning
            if tuned.due_s is not None and tuned.due_s <= now
            if (proposal := tuned.measured(now, one.ends_in_s)) is not None
        ]
        if ended or started or proposals:
            for one, tuned in tuning:  # ranks are those of the training that is left
                done = int(tuned.samples * (1 - one.left_s / one.job.ideal_s))
                sharing.progressed(one.name, min(max(done, 0), tuned.samples - 1), tuned.samples, now)
        for one in ended:
            sharing.ended(one.name, one.job.steps * one.job.gpus, now)
        for one in started:
            one.tuned = Tuned.begun(one.job, one.name, self.cluster, now)
            sharing.started(one.tuned, now)
        for proposal in proposals:
            sharing.proposed(proposal, now)
        for one in self.running.values():
            if one.tuned is not None:
                one.tuned.gets(sharing.given[one.name], now)
                one.share = one.tuned.steps_per_s * one.job.step_s_ideal

    def _note(self, now: float) -> None:
        """Record levels, and check that nothing is allocated twice."""
        cpus = sum(free.cpus for free in self.free.values())
        for one in self.running.values():
            self.outcome.workers[one.number].set(now, one.tuned.count if one.tuned else len(one.fixed))
            cpus -= one.tuned.data_cpus if one.tuned else 0.0
        least = min(cpus, *(free.cpus for free in self.free.values()))
        if least < -DUST * self.cluster.all_cpus or min(free.gpus for free in self.free.values()) < 0:
            raise AssertionError(f"more is handed out than the nodes have: {cpus} CPUs are left, {least} at the least")
        self.outcome.gpus.set(now, sum(one.job.gpus for one in self.running.values()))
        self.outcome.cpus.set(now, self.cluster.all_cpus - cpus)

"""Data workers of a whole cluster: handed out by a policy, taken back when others need them more, moved nearer.

The training workers' GPUs and CPUs are another scheduler's; what they leave of a node's CPUs is shared here. At every
tick: data workers leave the nodes where training workers need the room; then, one worker at a time, room goes to the
smallest rank, and where there is none, from the largest rank to the smallest; then workers move to better nodes, and
what that leaves is handed out, until nothing changes any more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from stretto_core.machine import Action, Emit, Tick
from stretto_core.model.sharing import Ranking, Sharer, Speed, shortest_remaining
from stretto_core.offline.data_workers.facts import (
    Change,
    JobConfigured,
    JobGone,
    JobObserved,
    JobStarted,
    NodesKnown,
    WorkerMoved,
    WorkerStarted,
    WorkerStopped,
)  # fmt: skip
from stretto_core.offline.data_workers.placing import DUST, best_node, better_node

LEAST_CPUS, PARTS = 1.0, 8
"""the smallest data worker has so many CPUs, or such a part of what its job can use, if that is less: a job that one
worker takes all the way would otherwise come last where all are to be equal"""


@dataclass(frozen=True, slots=True)
class SharingSettings:
    """``ranking``: the policy. A worker changes jobs only if its rank there is smaller by ``gain_min`` of itself, and
    goes unasked only if the others are faster than the training workers by the share ``spare``.
    """

    ranking: Ranking = shortest_remaining
    gain_min: float = 0.01
    spare: float = 0.05


@dataclass(frozen=True, slots=True)
class Worker:
    """A data worker."""

    node: str
    cpus: float


@dataclass(slots=True)
class JobShare:
    """A job with its data workers, by name; ``started`` counts those that it ever had."""

    trainers: dict[str, int]
    trainer_cpus: float
    worker_cpus: float
    steps_left: float
    ideal_per_s: float
    speed: Speed
    most_cpus: float = math.inf
    workers: dict[str, Worker] = field(default_factory=dict[str, Worker])
    started: int = 0

    @property
    def gpus(self) -> int:
        return sum(self.trainers.values())

    @property
    def cpus(self) -> float:
        """Return the CPUs of its data workers."""
        return sum(worker.cpus for worker in self.workers.values())


@dataclass(slots=True)
class SharingState:
    """``nodes``: CPUs of each; jobs in the order in which they started."""

    nodes: dict[str, float] = field(default_factory=dict[str, float])
    jobs: dict[str, JobShare] = field(default_factory=dict[str, JobShare])


class DataWorkers:
    """GoldMiner's scheduler (§3.4.2). Decides at ticks; other events say what it decides on."""

    version = 1

    def __init__(self, state: SharingState | None = None, settings: SharingSettings | None = None) -> None:
        self.state = state or SharingState()
        self.settings = settings or SharingSettings()

    def handle(self, event: object, now: float) -> list[Action]:
        """Workers to start, to move and to stop."""
        jobs = self.state.jobs
        match event:
            case NodesKnown(cpus):
                self.state.nodes = dict(cpus)
            case JobStarted() if event.job not in jobs:
                jobs[event.job] = JobShare(
                    dict(event.trainers), event.trainer_cpus, event.worker_cpus, event.steps_left, event.ideal_per_s,
                    Speed(event.per_cpu),
                )  # fmt: skip
            case JobConfigured() if event.job in jobs:
                job = jobs[event.job]
                job.trainer_cpus, job.worker_cpus = event.trainer_cpus, event.worker_cpus
                job.most_cpus = event.most_cpus
            case JobObserved() if event.job in jobs:
                job = jobs[event.job]
                job.steps_left = event.steps_left
                job.ideal_per_s = event.queue.dequeued_per_s
                job.speed = job.speed.seen(job.cpus, event.queue.enqueued_per_s)
            case JobGone(name) if name in jobs:
                gone = jobs.pop(name)
                return [Emit(WorkerStopped(name, worker)) for worker in gone.workers]
            case Tick():
                before = dict(_workers(self.state))
                _Round(self.state, self.settings).share()
                return [Emit(fact) for fact in _changes(before, dict(_workers(self.state)))]
            case _:
                pass
        return []


Workers = dict[tuple[str, str], Worker]
Wanting = tuple[float, int, str]
"""rank of its next worker, order, and name of a job"""


def _workers(state: SharingState) -> Iterator[tuple[tuple[str, str], Worker]]:
    for name, job in state.jobs.items():
        for key, worker in job.workers.items():
            yield (name, key), worker


def _changes(before: Workers, after: Workers) -> list[Change]:
    """Return the actions; those that free CPUs come first."""
    stopped = [WorkerStopped(*key) for key in before if key not in after]
    moved = [WorkerMoved(*key, after[key].node) for key, was in before.items() if key in after and was != after[key]]
    started = [WorkerStarted(*key, made.node, made.cpus) for key, made in after.items() if key not in before]
    return [*stopped, *moved, *started]


class _Round:
    """One tick: changes the state and tracks the free CPUs and the workers of each node."""

    def __init__(self, state: SharingState, settings: SharingSettings) -> None:
        self.jobs, self.settings = state.jobs, settings
        used = [node for job in self.jobs.values() for node in (*job.trainers, *(w.node for w in job.workers.values()))]
        self.free = {**state.nodes, **{node: 0.0 for node in used if node not in state.nodes}}  # the node may have left
        self.neighbours = dict.fromkeys(self.free, 0)
        self.cpus = {name: 0.0 for name in self.jobs}
        self.sharers = {
            name: Sharer(job.gpus, job.steps_left, job.ideal_per_s, job.speed) for name, job in self.jobs.items()
        }
        for name, job in self.jobs.items():
            for node, count in job.trainers.items():
                self.free[node] -= count * job.trainer_cpus
                self.neighbours[node] += len(job.trainers) > 1
            for worker in job.workers.values():
                self._count(name, worker, 1)

    def _count(self, name: str, worker: Worker, sign: int) -> None:
        """Count a worker as added (1) or removed (-1)."""
        self.free[worker.node] -= sign * worker.cpus
        self.cpus[name] += sign * worker.cpus
        if worker.node not in self.jobs[name].trainers:
            self.neighbours[worker.node] += sign

    def share(self) -> None:
        self._retire()
        for node in self.free:
            self._clear(node)
        while True:
            changed, moved = self._hand_out(), self._draw_near()
            if not changed and not moved:
                return

    def _retire(self) -> None:
        """Workers larger than their job's own tuning has use for, as all are where it has none; one that more than
        fills the queue, until it tells."""
        for name, job in self.jobs.items():
            for key in [key for key, worker in job.workers.items() if worker.cpus > job.worker_cpus + DUST]:
                self._stop(name, key)
            if job.workers and abs(job.speed.cpus - self.cpus[name]) <= DUST:
                key = min(job.workers, key=lambda one: (job.workers[one].node in job.trainers, job.workers[one].cpus))
                without = job.speed.at(self.cpus[name] - job.workers[key].cpus)
                if without >= job.ideal_per_s * (1 + self.settings.spare):
                    self._stop(name, key)

    def _clear(self, node: str) -> None:
        """Move data workers away from new training workers, the largest rank first."""
        while self.free[node] < -DUST:
            here = [
                (self._rank_of_last(name, worker.cpus), name, key)
                for name, job in self.jobs.items()
                for key, worker in job.workers.items()
                if worker.node == node
            ]
            if not here:
                return
            _, name, key = max(here, key=lambda one: one[0])
            job = self.jobs[name]
            elsewhere = {other: left for other, left in self.free.items() if other != node}
            cpus = job.workers[key].cpus
            if to := best_node(elsewhere, job.trainers, self.neighbours, cpus, cpus):
                self._move(name, key, to)
            else:
                self._stop(name, key)

    def _hand_out(self, exchanging: bool = True) -> bool:
        """One worker at a time, until nobody lacks one or nobody who has one ranks behind; whether there were any.

        Each makes some CPUs more up to a rank, and none fewer up to any before it (``_improves_on``), so this ends.
        """
        changed, blocked = False, set[str]()
        while wanting := sorted(self._wanting(blocked)):
            if self._give(wanting) or (exchanging and self._exchange(*wanting[0])):
                changed = True
            else:
                blocked.add(wanting[0][2])
        return changed

    def _give(self, wanting: list[Wanting]) -> bool:
        """Give the first job that lacks a worker one, if there is room."""
        name = wanting[0][2]
        cpus = self._size(name, wanting[1][0] if len(wanting) > 1 else math.inf)
        node = best_node(self.free, self.jobs[name].trainers, self.neighbours, cpus, self._least(name))
        if node:
            self._start(name, node, min(cpus, self.free[node]))
        return bool(node)

    def _exchange(self, rank: float, _: int, name: str) -> bool:
        """Make room for the job by a worker that ranks behind, and hand out all that it had; undone if that does not
        improve the sharing.
        """
        other = self._dispensable(name, self._least(name), rank)
        if other is None:
            return False
        before = {key: (dict(job.workers), job.started) for key, job in self.jobs.items()}
        free, neighbours, had = dict(self.free), dict(self.neighbours), dict(self.cpus)
        self._stop(*other)
        self._hand_out(exchanging=False)
        if self._improves_on(had):
            return True
        for key, (workers, started) in before.items():
            self.jobs[key].workers, self.jobs[key].started = workers, started
        self.free, self.neighbours, self.cpus = free, neighbours, had
        return False

    def _improves_on(self, had: dict[str, float]) -> bool:
        """Return whether the exchange pays: the smallest rank of CPUs gained is below that of CPUs lost.

        So there are more CPUs up to that rank, and no fewer up to any before it: no sharing comes back, in whatever
        workers the CPUs are.
        """
        came = went = math.inf
        for name, has in self.cpus.items():
            if has > had[name] + DUST:
                came = min(came, self._smallest_rank(name, had[name], has))
            elif has < had[name] - DUST:
                went = min(went, self._smallest_rank(name, has, had[name]))
        return came + self.settings.gain_min * abs(came) < went

    def _smallest_rank(self, name: str, low: float, high: float) -> float:
        """Return the smallest rank of the job's CPUs from ``low`` to ``high``, in workers of its smallest size."""
        size = max(self._smallest(name), LEAST_CPUS / PARTS)
        counted = range(math.floor((low + DUST) / size), math.ceil((high - DUST) / size))
        return min(self.settings.ranking(self.sharers[name], n * size, (n + 1) * size) for n in counted)

    def _draw_near(self) -> bool:
        """Move workers to better nodes; return whether there were any."""
        moved = False
        for name, job in self.jobs.items():
            for key, worker in job.workers.items():
                node = better_node(self.free, job.trainers, self.neighbours, worker.cpus, worker.node)
                if node:
                    self._move(name, key, node)
                    moved = True
        return moved

    def _wanting(self, blocked: set[str]) -> Iterator[Wanting]:
        """Return the jobs that lack a worker, by the rank of the smallest useful one."""
        for order, name in enumerate(self.jobs):
            had, cpus = self.cpus[name], self._least(name)
            if cpus > DUST and name not in blocked:
                yield self.settings.ranking(self.sharers[name], had, had + cpus), order, name

    def _least(self, name: str) -> float:
        """Return the CPUs of the smallest useful worker; 0 if the job has no use for one."""
        return min(self._smallest(name), self._lacks(name, self.cpus[name]))

    def _smallest(self, name: str) -> float:
        """Return the CPUs of the job's smallest worker, or less if it lacks less; 0 if it has no use for any."""
        return min(self.jobs[name].worker_cpus, LEAST_CPUS, self._lacks(name, 0.0) / PARTS)

    def _lacks(self, name: str, had: float) -> float:
        return min(self.sharers[name].lacks(had), max(self.jobs[name].most_cpus - had, 0.0))

    def _size(self, name: str, next_rank: float) -> float:
        """Return the CPUs of the job's next worker: all that it can use before the next job ranks first."""
        had, sharer = self.cpus[name], self.sharers[name]
        most = min(self.jobs[name].worker_cpus, self._lacks(name, had))
        sizes = [most, *(float(cpus) for cpus in range(math.ceil(most) - 1, 0, -1))]
        enough = (cpus for cpus in sizes if self.settings.ranking(sharer, had, had + cpus) <= next_rank)
        return next(enough, self._least(name))

    def _dispensable(self, name: str, least: float, rank: float) -> tuple[str, str] | None:
        """Return the worker of the largest rank whose removal makes room for one of ``rank``."""
        bar, home = rank + self.settings.gain_min * abs(rank), self.jobs[name].trainers
        found: tuple[float, int, bool, bool, float, str, str] | None = None
        for order, (other, job) in enumerate(self.jobs.items()):
            for key, worker in job.workers.items() if other != name else ():
                if self.free[worker.node] + worker.cpus + DUST < least:
                    continue
                theirs = self._rank_of_last(other, worker.cpus)
                one = (theirs, order, worker.node in home, worker.node not in job.trainers, -worker.cpus, other, key)
                if theirs > bar and (found is None or one > found):
                    found = one
        return None if found is None else found[-2:]

    def _rank_of_last(self, name: str, cpus: float) -> float:
        has = self.cpus[name]
        return self.settings.ranking(self.sharers[name], has - cpus, has)

    def _start(self, name: str, node: str, cpus: float) -> None:
        job = self.jobs[name]
        job.started += 1
        job.workers[f"data-{job.started}"] = worker = Worker(node, cpus)
        self._count(name, worker, 1)

    def _stop(self, name: str, key: str) -> None:
        self._count(name, self.jobs[name].workers.pop(key), -1)

    def _move(self, name: str, key: str, node: str) -> None:
        worker = self.jobs[name].workers[key]
        self._count(name, worker, -1)
        self.jobs[name].workers[key] = moved = replace(worker, node=node)
        self._count(name, moved, 1)

"""A model of Kueue with elastic Jobs: two slices while a Job grows, quota that is given back before the pods are gone,
preemption by suspension or by a smaller ``parallelism``, pods that start and end late.

All pods request one unit of one flavour, which a slice inherits from the one that it replaces. Time goes by in steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Literal

from stretto_core.decider.observations import ObjectObserved, WorkloadSeen
from stretto_core.decider.quota import PodsInQueue, free_pods, held_by

Preemption = Literal["suspend", "write"]
EACH = {"cpu": 1000}


@dataclass
class Slice:
    """A workload: a size, and whether quota is reserved for it. An admission keeps its count for good."""

    name: str
    count: int
    state: Literal["pending", "admitted", "evicted"] = "pending"
    assigned: int = 0

    @property
    def held(self) -> int:
        """Pods that Kueue counts once the workload is admitted."""
        return min(self.count, self.assigned)


@dataclass
class Pod:
    """A pod that gets ready at ``ready_at``, and is gone at ``gone_at`` once it ends."""

    ready_at: int
    gone_at: int | None = None


@dataclass
class ElasticJob:
    """A Job; ``version`` grows with each change of the object that the API server would number."""

    name: str
    parallelism: int
    elastic: bool = True
    gated: bool = False
    priority: int = 0
    suspended: bool = True
    opened: bool = False
    """Its gate was opened, and Kueue has not admitted it since."""
    decision: int = 0
    version: int = 0
    made: int = 0
    slices: list[Slice] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    done: bool = False
    cap: int = 10**6
    """Most pods that Kueue admits although there is quota, as where nodes of its flavour lack room."""

    @property
    def admitted(self) -> int:
        """Pods that Kueue counts."""
        return max((each.held for each in self.slices if each.state == "admitted"), default=0)

    @property
    def asked(self) -> int:
        """Pods that the Job controller makes as soon as it may, or once Kueue has admitted those to begin with."""
        return 0 if (self.suspended and not self.opened) or self.done else self.parallelism

    @property
    def running(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.gone_at is None]

    def slice(self, count: int) -> Slice:
        self.made += 1
        made = Slice(f"{self.name}-{self.made}", count)
        self.slices.append(made)
        return made


@dataclass
class Kueue:
    """A ClusterQueue of ``nominal`` pods, its Jobs, Kueue's controllers and the Job controller."""

    nominal: int
    dice: Random
    start_steps: int = 3
    end_steps: int = 6
    jobs: dict[str, ElasticJob] = field(default_factory=dict)
    now: int = 0
    orders: dict[str, int] = field(default_factory=dict)
    """Orders that Kueue gave to each Job: suspensions and smaller sizes."""
    uncounted: set[str] = field(default_factory=set)
    """Jobs whose gates were opened since Kueue last counted those that wait."""

    # what others see ---------------------------------------------------------------------------------------------

    @property
    def used(self) -> int:
        """Pods for which Kueue has reserved quota."""
        return sum(job.admitted for job in self.jobs.values())

    @property
    def alive(self) -> int:
        """Pods that there are, those that end included."""
        return sum(len(job.pods) for job in self.jobs.values())

    def observe(self, name: str) -> ObjectObserved:
        """Return what a client sees of a Job and its queue."""
        job = self.jobs[name]
        of_queue = [PodsInQueue(len(each.pods), each.asked, each.admitted, EACH) for each in self.jobs.values()]
        nominal, used = {"cpu": self.nominal * 1000}, {"cpu": self.used * 1000}
        rooms = [free_pods(nominal, used, held_by(of_queue, asked=asked), EACH) for asked in (True, False)]
        return ObjectObserved(
            job=name,
            decision=job.decision,
            count=job.parallelism,
            active=len(job.running),
            ready=sum(pod.ready_at <= self.now for pod in job.running),
            terminating=len(job.pods) - len(job.running),
            suspended=job.suspended,
            gated=job.gated,
            fixed=not job.elastic,
            workloads=tuple(
                WorkloadSeen(name=one.name, count=one.held if one.state == "admitted" else one.count, state=one.state)
                for one in job.slices
            ),
            room=rooms[0],
            vacant=rooms[1],
            others_wait=any(
                other is not job and self.waits(other) and other.name not in self.uncounted
                for other in self.jobs.values()
            ),
        )

    def waits(self, job: ElasticJob) -> bool:
        return not job.gated and any(each.state != "admitted" for each in job.slices)

    # what others do ----------------------------------------------------------------------------------------------

    def submit(self, name: str, count: int, elastic: bool = True, priority: int = 0) -> ElasticJob:
        job = self.jobs[name] = ElasticJob(name, count, elastic, priority=priority)
        job.slice(count)
        return job

    def patch(self, name: str, version: int, count: int, decision: int) -> bool:
        """A client's patch; False: the object has changed since ``version``."""
        job = self.jobs[name]
        if job.version != version:
            return False
        if job.gated:
            job.opened = True
            self.uncounted.add(name)
        job.parallelism, job.decision, job.gated = count, decision, False
        job.version += 1
        return True

    def finish(self, name: str) -> None:
        job = self.jobs[name]
        job.done, job.slices = True, []
        self._end(job, len(job.running))

    def order(self, name: str, count: int) -> None:
        """Let the owner write a size."""
        job = self.jobs[name]
        self.orders[name] = self.orders.get(name, 0) + 1
        job.parallelism = count
        job.version += 1

    def preempt(self, name: str, how: Preemption, count: int = 0) -> None:
        """Take quota back: suspend the Job, or write a smaller size."""
        job = self.jobs[name]
        self.orders[name] = self.orders.get(name, 0) + 1
        job.version += 1
        if how == "suspend":
            job.suspended, job.opened = True, False
            job.slices = [Slice(f"{name}-evicted-{self.now}", job.parallelism, "evicted")]
            self._end(job, len(job.running))
        else:
            job.parallelism = count
            self._follow(job)

    # time --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One step of time: pods start and end, Kueue looks at each Job, then admits what fits."""
        self.now += 1
        self.uncounted.clear()
        for job in [*self.jobs.values()]:
            gone = [pod for pod in job.pods if pod.gone_at is not None and pod.gone_at <= self.now]
            if gone or any(pod.ready_at == self.now for pod in job.pods):
                job.version += 1
            job.pods = [pod for pod in job.pods if pod not in gone]
            if job.done and not job.pods:
                del self.jobs[job.name]
            elif not job.done:
                self._follow(job)
        for job in sorted(self.jobs.values(), key=lambda job: -job.priority):
            self._admit(job)

    def _follow(self, job: ElasticJob) -> None:
        """Let workloads follow the size that the object asks for, and pods the size that is admitted."""
        admitted = [each for each in job.slices if each.state == "admitted"]
        pending = [each for each in job.slices if each.state != "admitted"]
        if admitted and job.parallelism <= admitted[0].held:
            job.slices = admitted  # a smaller size needs no quota: the workload itself gets smaller, at once
            admitted[0].count = job.parallelism
        elif admitted and not pending:
            job.slice(job.parallelism)
        else:
            for each in pending:
                each.count = job.parallelism
        wanted = 0 if job.suspended else job.admitted
        if wanted < len(job.running):
            self._end(job, len(job.running) - wanted)
        elif wanted > len(job.running):
            late = [self.now + self.dice.randint(1, self.start_steps) for _ in range(wanted - len(job.running))]
            job.pods += [Pod(at) for at in late]
            job.version += 1

    def _admit(self, job: ElasticJob) -> None:
        """Admit a pending workload if quota is left; in the flavour of the one that it replaces, the only one here."""
        waiting = next((each for each in job.slices if each.state != "admitted"), None)
        if waiting is None or job.done or job.gated:
            return
        if waiting.state == "evicted":  # requeued, to be looked at the next time
            waiting.state = "pending"
        elif waiting.count <= job.cap and self.used + waiting.count - job.admitted <= self.nominal:
            waiting.state, waiting.assigned = "admitted", waiting.count
            job.slices, job.suspended, job.opened = [waiting], False, False
            job.version += 1

    def _end(self, job: ElasticJob, count: int) -> None:
        for pod in job.running[len(job.running) - count :]:
            pod.gone_at = self.now + self.dice.randint(1, self.end_steps)
        job.version += bool(count)

"""A job whose number of data workers is found as in live jobs: by the planner's own ``Tuning``, told the same windows.

Its training workers have the CPUs that they need, since plans are another matter; nothing else of the job is known. A
batch is one of a training worker's in one step, so a step of the job has as many batches as the job has GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stretto_core.model.types import DataWorkerLimits
from stretto_core.offline.data_workers import QueueState
from stretto_core.offline.data_workers.facts import JobConfigured, JobStarted
from stretto_core.offline.data_workers.placing import DUST
from stretto_core.planner.tuning import Tuning, TuningRules, TuningState
from stretto_messages.profiler import ProfileMeasured
from stretto_messages.values import FeedProfile, Plan, Resources, StepTimes

from stretto_sim.data_workers.policies import Need
from stretto_sim.data_workers.trace import CPUS, Cluster, TraceJob
from stretto_sim.data_workers.tuned import queue_of

WINDOW_S = 30.0
"""The interval of GoldMiner's own tuning, for the comparison; live windows are shorter."""
QUIET = 4
"""Windows without a word after which another would tell the same: more than any rule of the tuning counts."""
NO_TIMES = StepTimes(emb_s=0.0, grad_s=0.0, upd_s=0.0, sync_s=0.0)


@dataclass(slots=True)
class Live:
    """The tuning of one job. ``data_cpus``: of its data workers since ``since_s``."""

    job: TraceJob
    name: str
    tuning: Tuning
    trainer_cpus: float
    worker_cpus: float
    since_s: float
    data_cpus: float = 0.0
    quiet: int = 0
    asked: JobConfigured | None = None
    sizing: bool = False
    """It has no phase in which all data workers are of another size."""

    @staticmethod
    def begun(job: TraceJob, name: str, need: Need, cluster: Cluster, now: float) -> Live:
        """Return the state of a job that starts without data workers."""
        each = cluster.cpus_per_gpu
        limits = DataWorkerLimits(Resources(each, 0), most=math.floor(cluster.all_cpus / each))
        return Live(job, name, Tuning(name, TuningState(), limits, TuningRules()), need.trainer_cpus, each, now)

    def started(self, trainers: dict[str, int]) -> JobStarted:
        """Return the scheduler's event: no data workers yet."""
        alone_per_s = self.queue(0.0).steps_per_s
        per_cpu = alone_per_s / (self.trainer_cpus * self.job.gpus)
        return JobStarted(self.name, trainers, self.trainer_cpus, 0.0, self.job.steps, per_cpu, alone_per_s)

    def queue(self, data_cpus: float) -> QueueState:
        """Return the queue with ``data_cpus`` for data workers; without any, the trainer's own CPUs do both."""
        return queue_of(self.job, self.trainer_cpus, data_cpus)

    @property
    def is_observed(self) -> bool:
        """True if the scheduler may believe the rates."""
        return self.data_cpus > 0 and self.quiet > 0

    def stands(self, data_cpus: float, now: float) -> None:
        """Record the data workers in force from now on."""
        if data_cpus != self.data_cpus:
            self.data_cpus, self.since_s, self.quiet = data_cpus, now, 0
        if self._count != self.tuning.state.given:
            self.tuning.decided(self._count)

    @property
    def _count(self) -> int:
        return math.ceil(self.data_cpus / self.worker_cpus - DUST)

    @property
    def due_s(self) -> float | None:
        """Return the end of the next window; None if another would tell the same."""
        return None if self.quiet >= QUIET else self.since_s + WINDOW_S

    def measure(self, now: float, left_s: float) -> JobConfigured | None:
        """Tell the tuning of the window, and return what it asks for. ``left_s``: training that is left."""
        self.since_s, self.quiet = now, self.quiet + 1
        asked = self.tuning.measured(self._window(), left_s, now)
        if asked is None:
            return None
        self.quiet = 0
        most_cpus = asked.count * self.worker_cpus
        return JobConfigured(self.name, self.trainer_cpus, self.worker_cpus if asked.count else 0.0, most_cpus)

    def _window(self) -> ProfileMeasured:
        job, queue = self.job, self.queue(self.data_cpus)
        cpu_per_batch_s = job.data_cpus * job.step_s_ideal / job.gpus
        taken_per_s = queue.dequeued_per_s if self.data_cpus else self._unfed_per_s
        feed = FeedProfile(
            dequeued_per_s=taken_per_s * job.gpus,
            enqueued_per_s=queue.enqueued_per_s * job.gpus if self.data_cpus else 0.0,
            read_share=max(0.0, 1 - queue.steps_per_s / taken_per_s),
            prepare_s=cpu_per_batch_s,
            prepare_cpu_s=cpu_per_batch_s,
            cpu_share=min(queue.steps_per_s / taken_per_s, 1.0),
            lanes=self._count * self.tuning.limits.lanes,
        )
        return ProfileMeasured(
            job=self.name,
            plan_version=1,
            plan=Plan(job.gpus, 1, max(self.trainer_cpus, CPUS[0]), 1.0, 1, 1),
            batch_size=1,
            window_s=WINDOW_S,
            step_time_s=1 / queue.steps_per_s,
            times=NO_TIMES,
            throughput=queue.steps_per_s * job.gpus,
            samples_total=0,
            categories=0,
            settled=True,
            feed=feed,
            workers=(),
            ps=(),
        )

    @property
    def _unfed_per_s(self) -> float:
        """Return the steps per second that training workers would take of batches that are there."""
        return min(self.trainer_cpus / self.job.trainer_cpus, 1.0) / self.job.step_s_ideal

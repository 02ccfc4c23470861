"""A job whose tuning (GoldMiner §3.4.1) knows only its data queue.

Only the trace knows a job's needs. The job begins with a container of the machine's CPUs per GPU and no data workers.
Each configuration is measured after an interval, and the measurement reaches the cluster's scheduler (§3.4.2). Until
then the scheduler assumes the speed that the job has alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto_core.machine import Emit
from stretto_core.offline.data_workers import QueueState, Tuning
from stretto_core.offline.data_workers.facts import JobConfigured, JobMeasured, JobStarted, ProcessSized
from stretto_core.offline.data_workers.tuning import TuningSettings

from stretto_sim.data_workers.policies import Need
from stretto_sim.data_workers.trace import Cluster, TraceJob

INTERVAL_S = 30.0
"""interval between measurements (§5.5)"""
Force = tuple[float, int, float]
"""CPUs of a training worker, of a data worker's process, and of all data workers together"""


@dataclass(slots=True)
class Tuned:
    """The tuning of one job.

    ``force``: the configuration in force since ``since_s``. ``asked``: a requested one that the node has no room for.
    """

    job: TraceJob
    name: str
    tuning: Tuning
    trainer_cpus: float
    since_s: float
    process_cpus: int = 0
    force: Force = (0.0, 0, 0.0)
    asked: JobConfigured | None = None
    measured: bool = False

    @staticmethod
    def begun(job: TraceJob, name: str, need: Need, cluster: Cluster, now: float) -> Tuned:
        """Return the state of a job that starts without data workers."""
        container_cpus = need.trainer_cpus
        tuning = Tuning(settings=TuningSettings(container_cpus=max(int(container_cpus), 1)))
        return Tuned(job, name, tuning, container_cpus, now, force=(container_cpus, 0, 0.0))

    def started(self, trainers: dict[str, int]) -> JobStarted:
        """Return the scheduler's event; it assumes a data worker's CPU as useful as one of the container."""
        alone_per_s = self.queue(0.0).steps_per_s
        per_cpu = alone_per_s / (self.trainer_cpus * self.job.gpus)
        return JobStarted(self.name, trainers, self.trainer_cpus, 0.0, self.job.steps, per_cpu, alone_per_s)

    def queue(self, data_cpus: float) -> QueueState:
        """Return the queue with ``data_cpus`` for data workers; without any, the trainer's own CPUs do both."""
        if not self.process_cpus:
            data_cpus = 0.0
        used = min(data_cpus, self.process_cpus * self.job.gpus) if self.sizing else data_cpus
        return queue_of(self.job, self.trainer_cpus, used)

    @property
    def sizing(self) -> bool:
        return self.tuning.state.phase == "sizing"

    def stands(self, data_cpus: float, now: float) -> None:
        """Record the configuration in force from now on."""
        force = (self.trainer_cpus, self.process_cpus, data_cpus)
        if force != self.force:
            self.force, self.since_s, self.measured = force, now, False

    @property
    def due_s(self) -> float | None:
        """Return the end of the next measurement; None if another would show the same."""
        return None if self.measured else self.since_s + INTERVAL_S

    @property
    def is_observed(self) -> bool:
        """True if the scheduler may believe the rates."""
        return self.measured and self.force[2] > 0

    def measure(self, now: float, left_s: float) -> JobConfigured | None:
        """Report the interval to the tuning and return its requests; it asks however little is left."""
        phase = self.tuning.state.phase
        trainer_cpus, process_cpus, data_cpus = self.force
        seen = JobMeasured(self.name, self.job.gpus, self.queue(data_cpus), int(trainer_cpus), process_cpus, data_cpus)
        asked: JobConfigured | None = None
        for action in self.tuning.handle(seen, now):
            assert isinstance(action, Emit)
            match action.fact:
                case ProcessSized(_, cpus):
                    self.process_cpus = cpus
                case JobConfigured() as configured:
                    asked = configured
                    self.process_cpus = self.process_cpus if configured.worker_cpus else 0
                case _:
                    pass
        self.since_s, self.measured = (
            now,
            self.tuning.state.phase == phase,
        )  # another phase measures the same configuration again
        return asked


def queue_of(job: TraceJob, trainer_cpus: float, data_cpus: float) -> QueueState:
    """Return a job's queue with ``data_cpus`` for data workers; without any, the trainers' own CPUs do both."""
    ideal_per_s = 1 / job.step_s_ideal
    if data_cpus <= 0:
        rate = ideal_per_s * min(trainer_cpus / job.cpus_per_gpu, 1.0)
        return QueueState(rate, rate, 1.0)
    taken = ideal_per_s * min(trainer_cpus / job.trainer_cpus, 1.0)
    return QueueState(ideal_per_s * data_cpus / job.data_cpus, taken, min(job.trainer_cpus / trainer_cpus, 1.0))

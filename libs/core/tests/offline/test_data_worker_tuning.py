"""A job's own tuning against jobs whose speed is known: what it finds, and that noise and lateness mislead it not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stretto_core.machine import Emit, Tick
from stretto_core.offline.data_workers import DataWorkers, QueueState, SharingSettings, Tuning
from stretto_core.offline.data_workers.facts import (
    JobConfigured,
    JobMeasured,
    JobObserved,
    JobStarted,
    NodesKnown,
    ProcessSized,
)

INTERVAL_S = 30.0


@dataclass(frozen=True)
class Job:
    """``data_cpus`` and ``trainer_cpus`` per GPU for full speed (1 step/s); data workers slow the trainer by
    ``overhead``, and from ``serial_from`` CPUs on one of them gets no faster."""

    data_cpus: float = 24.0
    trainer_cpus: float = 3.0
    overhead: float = 0.0
    serial_from: int = 99
    gpus: int = 1

    def alone(self, cpus: float) -> QueueState:
        rate = min(cpus / (self.data_cpus + self.trainer_cpus), 1.0)
        return QueueState(rate, rate, 1.0)

    def with_workers(self, cpus: float, process_cpus: int, trainer_cpus: int) -> QueueState:
        useful = min(process_cpus, self.serial_from) / process_cpus
        taken = min(trainer_cpus / self.trainer_cpus, 1.0) * (1 - self.overhead)
        return QueueState(
            cpus * useful / (self.data_cpus * self.gpus), taken, min(self.trainer_cpus / trainer_cpus, 1.0)
        )


class Cluster:
    """One job with all that it wants of a cluster: the tuning and the cluster's scheduler, interval by interval."""

    def __init__(self, job: Job, cpus: float = 128.0, noise: float = 0.0) -> None:
        self.job, self.noise, self.now, self.process = job, noise, 0.0, 0
        self.rng = np.random.default_rng(0)
        self.tuning, self.sharing = Tuning(), DataWorkers(settings=SharingSettings())
        self.sharing.handle(NodesKnown({"a": cpus}), 0.0)
        started = JobStarted("j", {"a": job.gpus}, 8.0, 0.0, 1e6, 1 / (job.data_cpus * job.gpus), 1.0)
        self.sharing.handle(started, 0.0)
        self.said = list[object]()

    @property
    def data_cpus(self) -> float:
        return self.sharing.state.jobs["j"].cpus

    def interval(self) -> JobMeasured:
        """Advance by one interval: measure, then let the tuning and the scheduler decide."""
        share, job = self.sharing.state.jobs["j"], self.job
        if self.tuning.state.phase == "sizing":  # the process within its container
            queue = job.with_workers(self.process * job.gpus, self.process, int(share.trainer_cpus))
        elif self.process and share.cpus:
            queue = job.with_workers(share.cpus, self.process, int(share.trainer_cpus))
        else:
            queue = job.alone(share.trainer_cpus)
        off = self.rng.uniform(1 - self.noise, 1 + self.noise, 2)
        queue = replace(
            queue, enqueued_per_s=queue.enqueued_per_s * off[0], dequeued_per_s=queue.dequeued_per_s * off[1]
        )
        measured = JobMeasured("j", job.gpus, queue, int(share.trainer_cpus), self.process, share.cpus)
        self.now += INTERVAL_S
        self.feed(measured)
        if self.process and self.tuning.state.phase != "sizing":
            self.sharing.handle(JobObserved("j", queue, 1e6), self.now)
        self.sharing.handle(Tick(), self.now)
        return measured

    def feed(self, measured: JobMeasured) -> None:
        for action in self.tuning.handle(measured, self.now):
            assert isinstance(action, Emit)
            self.said.append(action.fact)
            if isinstance(action.fact, ProcessSized):
                self.process = action.fact.cpus
            elif isinstance(action.fact, JobConfigured):
                self.process = self.process if action.fact.worker_cpus else 0
                self.sharing.handle(action.fact, self.now)

    def settle(self, intervals: int = 80) -> tuple[str, int, int, float]:
        for _ in range(intervals):
            self.interval()
        state = self.tuning.state
        return state.phase, self.process, state.trainer_cpus, self.data_cpus


def test_resnet18_is_tuned_as_in_the_paper() -> None:
    """Fig. 13: up to 8 CPUs, three data workers of 8, and 3 CPUs for the training worker, where 2 were too few."""
    cluster = Cluster(Job(24.0, 3.0))
    assert cluster.settle() == ("settled", 8, 3, pytest.approx(24.0))
    sized = [fact.cpus for fact in cluster.said if isinstance(fact, ProcessSized)]
    assert sized == [1, 2, 3, 4, 5, 6, 7, 8, 8]
    trainers = [fact.trainer_cpus for fact in cluster.said if isinstance(fact, JobConfigured)]
    assert trainers == [8, 8, 7, 6, 5, 4, 3, 2, 3]
    assert [worker.cpus for worker in cluster.sharing.state.jobs["j"].workers.values()] == [8.0] * 3


def test_a_job_of_modest_needs_gets_no_more_than_these() -> None:
    phase, process, trainer, cpus = Cluster(Job(5.0, 2.0)).settle()
    assert (phase, process, trainer) == ("settled", 5, 2)
    assert cpus == pytest.approx(5.0)


def test_a_worker_that_stops_scaling_is_kept_small_and_there_are_more_of_them() -> None:
    cluster = Cluster(Job(24.0, 3.0, serial_from=3))
    phase, process, trainer, cpus = cluster.settle()
    assert (phase, process, trainer) == ("settled", 3, 3)
    assert cpus == pytest.approx(24.0)
    assert {worker.cpus for worker in cluster.sharing.state.jobs["j"].workers.values()} == {3.0}, "the first one too"


def test_a_job_that_data_workers_slow_down_goes_back_to_what_it_was() -> None:
    cluster = Cluster(Job(3.0, 2.0, overhead=0.13))
    assert cluster.settle() == ("fallen back", 0, 8, 0.0)
    before = cluster.now
    assert cluster.settle(20)[0] == "fallen back"
    assert cluster.now > before


def test_a_job_that_is_short_of_cpus_is_not_taken_for_one_that_data_workers_slow_down() -> None:
    cluster = Cluster(Job(24.0, 3.0), cpus=12.0)  # 4 beside the training worker's 8
    assert cluster.settle()[0] == "scaling"


def test_what_a_busy_training_worker_lacks_it_gets() -> None:
    tuning = Tuning()
    tuning.handle(JobMeasured("j", 1, QueueState(0.2, 0.2), 8, 0, 0.0), 0.0)
    for cpus in range(1, 9):
        tuning.handle(JobMeasured("j", 1, QueueState(cpus * 0.02, 1.0), 8, cpus, 8.0), 30.0)
    assert tuning.state.phase == "scaling"
    calm = JobMeasured("j", 1, QueueState(0.17, 1.0, trainer_use=0.5), 8, 8, 16.0)
    assert Tuning(replace(tuning.state)).handle(calm, 60.0) == []
    busy = replace(calm, queue=replace(calm.queue, trainer_use=0.95))
    assert tuning.handle(busy, 60.0) == [Emit(JobConfigured("j", 9, 8))]


@given(
    data_cpus=st.floats(1.0, 64.0),
    trainer_cpus=st.floats(0.5, 8.0),
    gpus=st.sampled_from([1, 2]),
    noise=st.sampled_from([0.0, 0.01]),
)
@settings(max_examples=60)
def test_whatever_the_job_it_ends_near_full_speed_with_few_cpus(
    data_cpus: float, trainer_cpus: float, gpus: int, noise: float
) -> None:
    cluster = Cluster(Job(data_cpus, trainer_cpus, gpus=gpus), 256.0, noise)
    phase, process, trainer, cpus = cluster.settle(120)
    if phase == "fallen back":
        assert trainer >= 0.88 * (data_cpus + trainer_cpus), "the trainer's own CPUs do both at near full speed"
        return
    assert phase == "settled"
    reached = cluster.job.with_workers(cpus, process, trainer).steps_per_s
    assert reached >= 0.88
    assert trainer <= np.ceil(trainer_cpus) + 1


@given(repeats=st.lists(st.integers(0, 3), min_size=10, max_size=30))
@settings(max_examples=40)
def test_measurements_that_come_twice_or_late_mislead_nobody(repeats: list[int]) -> None:
    cluster = Cluster(Job(24.0, 3.0))
    seen = list[JobMeasured]()
    for repeat in repeats:
        seen.append(cluster.interval())
        for late in seen[-1 - repeat :]:
            cluster.feed(late)
    assert cluster.settle() == ("settled", 8, 3, pytest.approx(24.0))

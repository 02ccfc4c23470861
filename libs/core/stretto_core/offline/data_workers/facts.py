"""Events and actions about data workers. CPUs are cores, speeds are steps per second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QueueState:
    """A job's data queue since its last observation (§3.4).

    ``enqueued_per_s``: what the data workers bring while the queue takes it; ``dequeued_per_s``: what the training
    workers take while it has something. ``trainer_use``: share of the training workers' CPUs in use.
    """

    enqueued_per_s: float
    dequeued_per_s: float
    trainer_use: float = 0.0

    @property
    def steps_per_s(self) -> float:
        """Return the steps per second that the job trains."""
        return min(self.enqueued_per_s, self.dequeued_per_s)


@dataclass(frozen=True, slots=True)
class NodesKnown:
    """The CPUs of every node."""

    cpus: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A job's training workers run: ``trainers`` of one GPU by node, each with ``trainer_cpus``.

    ``worker_cpus`` is the most that one data worker uses well; ``per_cpu`` and ``ideal_per_s`` are what is believed of
    the steps per second that a CPU of data workers brings, and that the training workers take at most.
    """

    job: str
    trainers: Mapping[str, int]
    trainer_cpus: float
    worker_cpus: float
    steps_left: float
    per_cpu: float
    ideal_per_s: float


@dataclass(frozen=True, slots=True)
class JobConfigured:
    """Request of the job's own tuning: CPUs of each training worker, at most of one data worker, and at most of all
    of them together. ``worker_cpus`` 0: it has no use for data workers.
    """

    job: str
    trainer_cpus: float
    worker_cpus: float
    most_cpus: float = math.inf


@dataclass(frozen=True, slots=True)
class ProcessSized:
    """Request to every data worker of the job: run its process on this many CPUs of the container."""

    job: str
    cpus: int


@dataclass(frozen=True, slots=True)
class JobMeasured:
    """An interval of a job, and what was in force in it: ``trainer_cpus`` of each of ``gpus`` training workers,
    ``process_cpus`` of each data worker's process (0: there was none), ``data_cpus`` of all of them together.
    """

    job: str
    gpus: int
    queue: QueueState
    trainer_cpus: int
    process_cpus: int
    data_cpus: float


@dataclass(frozen=True, slots=True)
class JobObserved:
    """A job's queue with the data workers last given, and the steps left to train."""

    job: str
    queue: QueueState
    steps_left: float


@dataclass(frozen=True, slots=True)
class JobGone:
    """The job ended, and with it its data workers."""

    job: str


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """Request to start a data worker."""

    job: str
    worker: str
    node: str
    cpus: float


@dataclass(frozen=True, slots=True)
class WorkerMoved:
    """Request to start a data worker on ``node`` and stop it elsewhere: it has no state."""

    job: str
    worker: str
    node: str


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """Request to stop a data worker."""

    job: str
    worker: str


Change = WorkerStarted | WorkerMoved | WorkerStopped

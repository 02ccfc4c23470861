"""Tuning of one job: the use of data workers, their size, and the CPUs that its trainers keep.

GoldMiner's three dimensions (§3.4.1), each told by the data queue, in the order of Fig. 13:

1. alone: without data workers, for the speed that they have to reach.
2. sizing: one data worker for each training worker, its process on 1 CPU, on 2, and so on, until the queue is in the
   ideal state, the speed-up is no more linear, or the container's CPUs are used up.
3. scaling: the cluster gives more of that size. Where they bring less than promised and the training workers' CPUs are
   busy, these get one more.
4. trimming: once the queue is in the ideal state, the training workers get one CPU less, until it shows.

A job that is slower than alone for too long, with no fewer CPUs for its data, falls back to that for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stretto_core.machine import Action, Emit
from stretto_core.offline.data_workers.facts import JobConfigured, JobMeasured, ProcessSized

Phase = Literal["alone", "sizing", "scaling", "trimming", "settled", "fallen back"]


@dataclass(frozen=True, slots=True)
class TuningSettings:
    """``container_cpus``: of a worker at first, the machine's CPUs per GPU.

    ``linear``: share of a linear speed-up that passes for one. ``same``: share by which equal speeds may differ.
    ``little``: share of the last gain per CPU below which data workers bring too little. ``busy``: use of the training
    workers' CPUs from which on they may be why. ``patience_s``: how long a job may be slower than alone.
    """

    container_cpus: int = 8
    linear: float = 0.9
    same: float = 0.05
    little: float = 0.5
    busy: float = 0.9
    patience_s: float = 300.0


@dataclass(slots=True)
class TuningState:
    """CPUs: ``trainer_cpus`` of a training worker, ``process_cpus`` of a data worker. Speeds are steps per second."""

    job: str = ""
    phase: Phase = "alone"
    trainer_cpus: int = 0
    process_cpus: int = 0
    enough_cpus: int = 0
    """least CPUs of a training worker, as far as known: trimming stops there"""
    alone_per_s: float = 0.0
    one_cpu_per_s: float = 0.0
    data_cpus: float = 0.0
    enqueued_per_s: float = 0.0
    before_trimming_per_s: float = 0.0
    slow_since_s: float | None = None


class Tuning:
    """The tuning of one job. A measurement of another configuration than the requested one is ignored."""

    version = 1

    def __init__(self, state: TuningState | None = None, settings: TuningSettings | None = None) -> None:
        self.state = state or TuningState()
        self.settings = settings or TuningSettings()
        if not self.state.trainer_cpus:
            self.state.trainer_cpus = self.settings.container_cpus

    def handle(self, event: object, now: float) -> list[Action]:
        """Return the configuration to try next, or to keep."""
        state = self.state
        if not isinstance(event, JobMeasured) or state.phase == "fallen back":
            return []
        if (event.trainer_cpus, event.process_cpus) != (state.trainer_cpus, state.process_cpus):
            return []
        state.job = event.job
        if state.phase == "alone":
            state.alone_per_s = event.queue.steps_per_s
            state.phase = "sizing"
            return self._process(1, self.settings.container_cpus * event.gpus)
        if event.data_cpus <= 0:
            return []
        if state.phase == "sizing":
            return self._size(event)
        if self._too_slow(event, now):
            state.phase, state.process_cpus, state.trainer_cpus = "fallen back", 0, self.settings.container_cpus
            return [Emit(JobConfigured(state.job, state.trainer_cpus, 0.0))]
        if state.phase == "scaling":
            return self._scale(event)
        return self._trim(event) if state.phase == "trimming" else []

    def _process(self, cpus: int, most_cpus: float | None = None) -> list[Action]:
        """Set the CPUs of each data worker's process; ``most_cpus`` limits all of them together."""
        state = self.state
        state.process_cpus = cpus
        said: list[Action] = [Emit(ProcessSized(state.job, cpus))]
        if most_cpus is not None:
            said.append(Emit(JobConfigured(state.job, state.trainer_cpus, self.settings.container_cpus, most_cpus)))
        elif state.phase != "sizing":
            said.append(Emit(JobConfigured(state.job, state.trainer_cpus, cpus)))
        return said

    def _size(self, event: JobMeasured) -> list[Action]:
        state, cpus, rate = self.state, self.state.process_cpus, event.queue.enqueued_per_s
        if cpus == 1:
            state.one_cpu_per_s = rate
        linear = rate >= self.settings.linear * cpus * state.one_cpu_per_s
        if not self._ideal(event) and linear and cpus < self.settings.container_cpus:
            return self._process(cpus + 1)
        state.phase = "scaling"
        state.data_cpus, state.enqueued_per_s = float(cpus * event.gpus), rate
        return self._process(cpus if linear or self._ideal(event) else max(cpus - 1, 1))

    def _scale(self, event: JobMeasured) -> list[Action]:
        state, queue = self.state, event.queue
        before, before_per_s = state.data_cpus, state.enqueued_per_s
        state.data_cpus, state.enqueued_per_s = event.data_cpus, queue.enqueued_per_s
        if self._ideal(event):
            if state.trainer_cpus <= max(state.enough_cpus, 1):
                state.phase = "settled"
                return []
            state.phase, state.before_trimming_per_s = "trimming", queue.steps_per_s
            return self._train_with(state.trainer_cpus - 1)
        more = event.data_cpus - before
        promised = self.settings.little * before_per_s / before
        if (
            more > 0
            and queue.enqueued_per_s - before_per_s < promised * more
            and queue.trainer_use > self.settings.busy
        ):
            state.enough_cpus = state.trainer_cpus + 1
            return self._train_with(state.enough_cpus)
        return []

    def _trim(self, event: JobMeasured) -> list[Action]:
        state = self.state
        if event.data_cpus < state.data_cpus:  # other jobs took data workers: the last step shows nothing
            state.phase = "scaling"
            return self._train_with(state.trainer_cpus + 1)
        if event.queue.steps_per_s < (1 - self.settings.same) * state.before_trimming_per_s:
            state.phase, state.enough_cpus = "settled", state.trainer_cpus + 1
            return self._train_with(state.enough_cpus)
        if state.trainer_cpus <= max(state.enough_cpus, 1):
            state.phase = "settled"
            return []
        return self._train_with(state.trainer_cpus - 1)

    def _train_with(self, cpus: int) -> list[Action]:
        self.state.trainer_cpus = cpus
        return [Emit(JobConfigured(self.state.job, cpus, self.state.process_cpus))]

    def _ideal(self, event: JobMeasured) -> bool:
        return event.queue.enqueued_per_s >= (1 - self.settings.same) * event.queue.dequeued_per_s

    def _too_slow(self, event: JobMeasured, now: float) -> bool:
        """Return whether the job was slow for too long, and not merely short of CPUs."""
        state = self.state
        as_many = event.data_cpus >= self.settings.container_cpus * event.gpus
        slow = event.queue.steps_per_s < (1 - self.settings.same) * state.alone_per_s
        if not slow or not (as_many or self._ideal(event)):
            state.slow_since_s = None
            return False
        if state.slow_since_s is None:
            state.slow_since_s = now
        return now - state.slow_since_s >= self.settings.patience_s

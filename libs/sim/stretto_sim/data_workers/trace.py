"""Input of the simulation: jobs with the CPUs that their data need, and the nodes (GoldMiner §5, §5.6)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stretto_messages.base import InvalidValue

from stretto_sim.measures import HORIZON_YEARS, LATEST_S, YEAR_S

CPUS = (0.001, 1e6)
"""CPUs per GPU that a job may request; the least is the unit that clusters count in"""
TRAINER_CPUS = 3.0
"""Most CPUs of a training worker that has data workers: those of ResNet18 in §5.5."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Equal nodes; the defaults are the testbed of §5."""

    nodes: int = 8
    gpus: int = 8
    cpus: float = 64.0

    @property
    def all_gpus(self) -> int:
        return self.nodes * self.gpus

    @property
    def all_cpus(self) -> float:
        return self.nodes * self.cpus

    @property
    def cpus_per_gpu(self) -> float:
        """Return the CPUs per GPU of a node."""
        return self.cpus / self.gpus


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace: training workers of one GPU each, and the CPUs per GPU with which they wait for no data."""

    submit_s: float
    steps: int
    gpus: int
    step_s_ideal: float
    cpus_per_gpu: float

    def __post_init__(self) -> None:
        if not 0 <= self.submit_s <= LATEST_S:
            raise InvalidValue(f"submit_s is {self.submit_s!r}; give a number of at least 0, at most {LATEST_S:g}")
        for name, least in (("steps", 1), ("gpus", 1)):
            if getattr(self, name) < least:
                raise InvalidValue(f"{name} is {getattr(self, name)!r}; give at least {least}")
        if not 0 < self.step_s_ideal < math.inf:
            raise InvalidValue(f"step_s_ideal is {self.step_s_ideal!r}; give a finite number above 0")
        low, high = CPUS
        if not low <= self.cpus_per_gpu <= high:
            raise InvalidValue(f"cpus_per_gpu is {self.cpus_per_gpu!r}; give at least {low:g}, at most {high:g}")
        if not self.ideal_s <= HORIZON_YEARS * YEAR_S:
            raise InvalidValue(
                f"steps is {self.steps!r}, {self.ideal_s / YEAR_S:.3g} years at full speed; give at most"
                f" {HORIZON_YEARS} years"
            )

    @property
    def ideal_s(self) -> float:
        """Return the run time with all CPUs that the job can use."""
        return self.steps * self.step_s_ideal

    @property
    def trainer_cpus(self) -> float:
        """Return the CPUs of a training worker itself."""
        return min(TRAINER_CPUS, self.cpus_per_gpu / 2)

    @property
    def data_cpus(self) -> float:
        """Return the CPUs of all its data workers at full speed."""
        return (self.cpus_per_gpu - self.trainer_cpus) * self.gpus

    def worker_cpus(self, cluster: Cluster) -> float:
        """Return the most CPUs of one data worker: a GPU's part of a node, or all that a trainer can use (§3.4.1)."""
        return min(cluster.cpus_per_gpu, self.data_cpus / self.gpus)

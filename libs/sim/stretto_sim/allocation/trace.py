"""Input of the simulation: submitted jobs, the pool, and the disturbances of jobs (§5.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from stretto_messages.base import InvalidValue

HANGS_WITHIN_S = 300.0
"""Latest failure of a job with a bug, in seconds of training."""

DELAY_MOST_S = 86_400.0


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job of a trace: its demand in hours of one node, and the most nodes that it can train on."""

    submit_s: float
    demand_node_hours: float
    max_nodes: int

    def __post_init__(self) -> None:
        if not 0 <= self.submit_s < math.inf:
            raise InvalidValue(f"submit_s is {self.submit_s!r}; give a finite number of at least 0")
        if not 0 < self.demand_node_hours < math.inf:
            raise InvalidValue(f"demand_node_hours is {self.demand_node_hours!r}; give a finite number above 0")
        if self.max_nodes < 1:
            raise InvalidValue(f"max_nodes is {self.max_nodes!r}; give at least 1")


@dataclass(frozen=True)
class PoolTraceSettings:
    """The pool and its disturbances; defaults are the paper's baseline.

    ``eta_noise``: largest relative error of a job's estimated demand. ``bug_rate``, ``termination_rate``: shares of the
    jobs that hang within five minutes of training, or that their users end at any time of it. ``scaling_delay_s``: time
    for which a job that starts or grows stays on its old nodes.
    """

    nodes: int
    eta_noise: float = 0.0
    bug_rate: float = 0.0
    termination_rate: float = 0.0
    scaling_delay_s: float = 0.0
    seed: int = 0
    period_s: int = 300
    steps: int = 5
    sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    doubling_efficiency: float = 0.8

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise InvalidValue(f"nodes is {self.nodes!r}; give at least 1")
        if not 0 <= self.eta_noise < 1:
            raise InvalidValue(f"eta_noise is {self.eta_noise!r}; give at least 0 and less than 1")
        rates = (self.bug_rate, self.termination_rate)
        if min(rates) < 0 or sum(rates) > 1 or math.isnan(sum(rates)):
            raise InvalidValue(
                f"bug_rate {self.bug_rate!r} and termination_rate {self.termination_rate!r}; give shares of at least "
                "0 that add up to at most 1"
            )
        if not 0 <= self.scaling_delay_s <= DELAY_MOST_S:
            raise InvalidValue(
                f"scaling_delay_s is {self.scaling_delay_s!r}; give a number of at least 0, at most {DELAY_MOST_S:g}"
            )
        if self.seed < 0:
            raise InvalidValue(f"seed is {self.seed!r}; give at least 0")


@dataclass(frozen=True, slots=True)
class Fate:
    """The estimate of a job and its fate: it leaves at the earlier of the two ends."""

    believed_node_hours: float
    leaves_after_node_hours: float
    leaves_after_s: float
    """Seconds of training after which the job leaves."""
    how: str


def fates(jobs: Sequence[TraceJob], settings: PoolTraceSettings) -> list[Fate]:
    """Draw the fate of each job: the same for a seed at every pool size, policy and rate."""
    draws = np.random.default_rng(settings.seed).random((len(jobs), 4))
    return [_fate(job, settings, *map(float, row)) for job, row in zip(jobs, draws, strict=True)]


def _fate(job: TraceJob, settings: PoolTraceSettings, off: float, kind: float, when: float, hangs: float) -> Fate:
    demand = job.demand_node_hours
    believed = demand * (1 + settings.eta_noise * (2 * off - 1))
    if kind < settings.bug_rate:
        return Fate(believed, demand, hangs * HANGS_WITHIN_S, "hung")
    if kind < settings.bug_rate + settings.termination_rate:
        return Fate(believed, when * demand, math.inf, "terminated")
    return Fate(believed, demand, math.inf, "finished")

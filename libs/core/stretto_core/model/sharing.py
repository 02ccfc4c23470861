"""Ranking of jobs' data workers: the cluster-level policies of GoldMiner (§3.4.2).

A data worker takes a job from c to c + dc CPUs and its training from t to t + dt steps per second, at most t_i, the
speed of its training workers. The worker of the smallest rank comes first. Every rank here is the same or larger with
every further worker of a job, so to give the next worker to the smallest rank, and to take it from the largest, ends in
one distribution, whichever came before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sharer:
    """A job as the policies see it: its ``gpus`` train ``steps_left`` more steps, ``ideal_per_s`` (t_i) at most.

    ``per_cpu``: steps per second that a CPU of its data workers brings, as the queue tells (§3.4.2).
    """

    gpus: int
    steps_left: float
    ideal_per_s: float
    per_cpu: float

    def steps_per_s(self, cpus: float) -> float:
        """Return the training speed t with these CPUs for data workers."""
        return min(self.per_cpu * cpus, self.ideal_per_s)


class Ranking(Protocol):
    """A policy: the rank of the data worker that takes the job from ``had`` to ``has`` CPUs; the smallest is first."""

    def __call__(self, job: Sharer, had: float, has: float) -> float: ...


def max_throughput(job: Sharer, had: float, has: float) -> float:
    """MaxTP: the most dt/dc · g. Speeds of different models do not compare, so t is relative to the job's t_i."""
    gained = (job.steps_per_s(has) - job.steps_per_s(had)) / job.ideal_per_s
    return -gained / (has - had) * job.gpus


def shortest_remaining(job: Sharer, had: float, has: float) -> float:
    """SRTF: the least remaining time times CPUs, n (c + dc) / (t + dt)."""
    steps_per_s = job.steps_per_s(has)
    return job.steps_left * has / steps_per_s if steps_per_s > 0 else math.inf


def fair(job: Sharer, had: float, has: float) -> float:
    """Fair: the least share of its ideal speed, (t + dt) / t_i."""
    return job.steps_per_s(has) / job.ideal_per_s

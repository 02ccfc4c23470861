"""Who gets which CPUs: GoldMiner's three policies and the three baselines that it is compared with (§5.6)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from stretto_core.data_workers.sharing import Ranking, fair, max_throughput, shortest_remaining

from stretto_sim.data_workers.trace import Cluster, TraceJob


@dataclass(frozen=True, slots=True)
class Need:
    """What a job waits for and holds until its end; it trains with ``share`` of its ideal speed on that alone.

    ``trainer_cpus`` per GPU, on the GPU's node; ``data_cpus`` of all its data workers together, anywhere.
    """

    trainer_cpus: float
    data_cpus: float
    share: float


@dataclass(frozen=True, slots=True)
class Policy:
    """Algorithms of the kind ``simulate data-workers``; ``ranking`` shares what is left of the CPUs, None: nobody."""

    need: Callable[[TraceJob, Cluster], Need]
    ranking: Ranking | None = None


def _tuned(job: TraceJob, cluster: Cluster) -> Need:
    """No data workers: the ratio of the most speed, or the most that the cluster can hold of it when it is empty."""
    per_node = math.ceil(job.gpus / cluster.nodes)
    ratio = min(job.cpus_per_gpu, cluster.cpus / per_node)
    return Need(ratio, 0.0, ratio / job.cpus_per_gpu)


def _hardware(job: TraceJob, cluster: Cluster) -> Need:
    """No data workers, and of a node's CPUs each GPU's part; all that a job uses is proportional to its speed."""
    return Need(cluster.cpus_per_gpu, 0.0, min(cluster.cpus_per_gpu / job.cpus_per_gpu, 1.0))


def _fixed(job: TraceJob, cluster: Cluster) -> Need:
    """Data workers for the most speed, as many as the empty cluster can hold, from the start to the end."""
    data_cpus = min(job.data_cpus, cluster.all_cpus - job.trainer_cpus * job.gpus)
    return Need(job.trainer_cpus, data_cpus, data_cpus / job.data_cpus)


def _trainers(job: TraceJob, cluster: Cluster) -> Need:
    """GPUs, and the CPUs of the training workers; data workers come and go."""
    return Need(job.trainer_cpus, 0.0, 0.0)


TUNED = Policy(_tuned)
HARDWARE = Policy(_hardware)
FIXED = Policy(_fixed)
FAIR = Policy(_trainers, fair)
MAXTP = Policy(_trainers, max_throughput)
SRTF = Policy(_trainers, shortest_remaining)

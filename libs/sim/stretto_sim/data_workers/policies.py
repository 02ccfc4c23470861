"""Policies for CPUs: GoldMiner's three, and the three baselines that it compares with (§5.6)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from stretto_core.offline.data_workers.placing import DUST, Free, pack
from stretto_core.offline.data_workers.sharing import Ranking, fair, max_throughput, shortest_remaining

from stretto_sim.data_workers.trace import Cluster, TraceJob


@dataclass(frozen=True, slots=True)
class Need:
    """The resources that a job waits for and holds to its end; alone they give ``share`` of its ideal speed.

    ``trainer_cpus`` per GPU, on the GPU's node; ``worker_cpus`` of each of its data workers, on any node.
    """

    trainer_cpus: float
    share: float
    worker_cpus: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """Algorithms of the kind ``simulate data-workers``; ``ranking`` shares what is left of the CPUs, None: nobody.

    It is told what each job needs; ``tunes``: it is not, and every job finds that out by its queue.
    """

    need: Callable[[TraceJob, Cluster], Need]
    ranking: Ranking | None = None
    tunes: bool = False


def _tuned(job: TraceJob, cluster: Cluster) -> Need:
    """No data workers: the ratio of the most speed, or the most that the cluster can hold of it when it is empty."""
    per_node = math.ceil(job.gpus / cluster.nodes)
    ratio = min(job.cpus_per_gpu, cluster.cpus / per_node)
    return Need(ratio, ratio / job.cpus_per_gpu)


def _hardware(job: TraceJob, cluster: Cluster) -> Need:
    """No data workers, and of a node's CPUs each GPU's part; all that a job uses is proportional to its speed."""
    return Need(cluster.cpus_per_gpu, min(cluster.cpus_per_gpu / job.cpus_per_gpu, 1.0))


def _fixed(job: TraceJob, cluster: Cluster) -> Need:
    """The number of data workers for the most speed, or the most that the empty cluster can hold, all of one size.

    Smaller ones for what is left of a node are GoldMiner's (§3.4.1), not the baseline's.
    """
    trainers = pack([Free(cluster.gpus, cluster.cpus)] * cluster.nodes, job.gpus, job.trainer_cpus) or {}
    left = [cluster.cpus - trainers.get(node, 0) * job.trainer_cpus for node in range(cluster.nodes)]
    size = min(job.worker_cpus(cluster), max(left))
    whole, rest = divmod(job.data_cpus + DUST, size)
    sizes = [size] * int(whole) + ([rest - DUST] if rest > 2 * DUST else [])
    sizes = sizes[: sum(math.floor((cpus + DUST) / size) for cpus in left)]
    return Need(job.trainer_cpus, min(sum(sizes) / job.data_cpus, 1.0), tuple(sizes))


def _trainers(job: TraceJob, cluster: Cluster) -> Need:
    """Hold GPUs and the CPUs of training workers; data workers come and go."""
    return Need(job.trainer_cpus, 0.0)


def _container(job: TraceJob, cluster: Cluster) -> Need:
    """Hold GPUs, each with its part of a node's CPUs until the job's own tuning requests less."""
    return Need(cluster.cpus_per_gpu, 0.0)


TUNED = Policy(_tuned)
HARDWARE = Policy(_hardware)
FIXED = Policy(_fixed)
FAIR = Policy(_trainers, fair)
MAXTP = Policy(_trainers, max_throughput)
SRTF = Policy(_trainers, shortest_remaining)
SRTF_BY_QUEUE = Policy(_container, shortest_remaining, tunes=True)

"""Policies for CPUs: GoldMiner's three, and the three baselines that it compares with (§5.6)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from stretto_core.model.sharing import Ranking, fair, max_throughput, shortest_remaining

from stretto_sim.data_workers.placing import DUST, Free, pack
from stretto_sim.data_workers.trace import Cluster, TraceJob


@dataclass(frozen=True, slots=True)
class Need:
    """The resources that a job waits for and holds to its end; they alone give ``share`` of its ideal speed.

    ``trainer_cpus``: CPUs per GPU, on the GPU's node. ``worker_cpus``: CPUs of each data worker, on any node.
    """

    trainer_cpus: float
    share: float
    worker_cpus: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """Algorithms of the kind ``simulate data-workers``.

    Without a ``ranking``, a policy knows the needs of each job. With one, every job finds its number of data workers by
    its queue, as live jobs do, and the arbiter shares out by that ranking the CPUs that training workers leave.
    """

    need: Callable[[TraceJob, Cluster], Need]
    ranking: Ranking | None = None


def _tuned(job: TraceJob, cluster: Cluster) -> Need:
    """Use no data workers, and the CPUs per GPU for full speed, or the most that the empty cluster can hold."""
    per_node = math.ceil(job.gpus / cluster.nodes)
    ratio = min(job.cpus_per_gpu, cluster.cpus / per_node)
    return Need(ratio, ratio / job.cpus_per_gpu)


def _hardware(job: TraceJob, cluster: Cluster) -> Need:
    """Use no data workers, and each GPU's part of a node's CPUs; the used CPUs are proportional to the speed."""
    return Need(cluster.cpus_per_gpu, min(cluster.cpus_per_gpu / job.cpus_per_gpu, 1.0))


def _fixed(job: TraceJob, cluster: Cluster) -> Need:
    """Use the data workers for full speed, or the most that the empty cluster can hold, all of one size.

    Smaller data workers for the rest of a node belong to GoldMiner (§3.4.1), not to the baseline.
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


TUNED = Policy(_tuned)
HARDWARE = Policy(_hardware)
FIXED = Policy(_fixed)
FAIR = Policy(_trainers, fair)
MAXTP = Policy(_trainers, max_throughput)
SRTF = Policy(_trainers, shortest_remaining)

"""Nodes of workers: training workers packed, data workers near theirs and away from traffic.

GoldMiner packs jobs compactly onto the nodes with the least free (§5.6), prefers the nodes of a job's own training
workers for its data workers, then those with fewer distributed jobs or remote data workers, and moves data workers to
better nodes while they run (§3.4.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DUST = 1e-6
"""tolerance of CPUs for rounding"""
CALMER = 2
"""neighbours by which another node has to be calmer for a remote data worker to move there"""


@dataclass(frozen=True, slots=True)
class Free:
    """Free resources of a node."""

    gpus: int
    cpus: float


def pack(free: Sequence[Free], gpus: int, cpus_per_gpu: float) -> dict[int, int] | None:
    """Return the number of one-GPU training workers per node index; None without room for all.

    One node if one has room, of these the one with the least free; otherwise as few as possible.
    """
    room = {
        index: min(node.gpus, math.floor((node.cpus + DUST) / cpus_per_gpu) if cpus_per_gpu > 0 else node.gpus)
        for index, node in enumerate(free)
    }
    if sum(room.values()) < gpus:
        return None
    placed: dict[int, int] = {}

    def least_free(index: int) -> tuple[int, float, int]:
        return free[index].gpus, free[index].cpus, index

    while gpus:
        enough = [index for index, count in room.items() if count >= gpus]
        index = min(enough, key=least_free) if enough else max(room, key=lambda one: (room[one], -one))
        count = min(room.pop(index), gpus)
        placed[index] = count
        gpus -= count
    return placed


def best_node(
    free: Mapping[str, float], home: Mapping[str, int], neighbours: Mapping[str, int], cpus: float, least: float
) -> str:
    """Return the node for a data worker of ``cpus``, or a smaller one; empty without room for either.

    Args:
        free: CPUs of each node.
        home: the nodes with training workers of its job.
        neighbours: on each node, distributed training workers and remote data workers.
        cpus: of the data worker.
        least: CPUs of the smallest that would do.
    """
    able = [name for name, left in free.items() if left + DUST >= least]

    def order(name: str) -> tuple[bool, float, bool, int, float]:
        whole = free[name] + DUST >= cpus
        return not whole, 0.0 if whole else -free[name], name not in home, neighbours[name], free[name]

    return min(able, key=order, default="")


def better_node(
    free: Mapping[str, float], home: Mapping[str, int], neighbours: Mapping[str, int], cpus: float, now_on: str
) -> str:
    """Return a better node for a data worker on ``now_on``; empty if it may stay."""
    if now_on in home:
        return ""
    able = [name for name, left in free.items() if name != now_on and left + DUST >= cpus]
    near = [name for name in able if name in home]
    calm = [name for name in able if neighbours[name] + CALMER <= neighbours[now_on]]
    return min(near or calm, key=lambda name: (neighbours[name], free[name]), default="")

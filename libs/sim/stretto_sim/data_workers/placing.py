"""Nodes of workers in the experiment: training workers are packed, fixed data workers stand near theirs (§5.6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DUST = 1e-6
"""Tolerance of CPUs for rounding."""


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


def node_for(free: Mapping[str, float], home: Mapping[str, int], cpus: float) -> str:
    """Return the node for a data worker of ``cpus``; empty without room for it.

    The nodes of the job's training workers (``home``) come first, then those with the least free CPUs.
    """
    able = [name for name, left in free.items() if left + DUST >= cpus]
    return min(able, key=lambda name: (name not in home, free[name]), default="")

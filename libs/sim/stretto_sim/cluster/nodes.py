"""The nodes: their free resources, and the choice of a node for a pod."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from stretto_messages.values import Resources

from stretto_sim.cluster.trace import ClusterTraceSettings

NOWHERE = -1


@dataclass(slots=True, eq=False)
class SimulatedPod:
    """A pod and its reserved resources.

    ``ready_s``: the time from which on it takes part. ``speed``: the speed of its cores, usually 1.
    """

    role: Literal["worker", "ps"]
    size: Resources
    node: int = NOWHERE
    ready_s: float = 0.0
    speed: float = 1.0
    dies_s: float = float("inf")
    number: int = field(default=0)


class Nodes:
    """Free resources of every node; a pod goes where the fewest cores stay free (best fit)."""

    def __init__(self, settings: ClusterTraceSettings) -> None:
        self.cores = np.full(settings.nodes, settings.node_cpu_cores)
        self.memory = np.full(settings.nodes, float(settings.node_memory_bytes))
        self.reserved_cores = self.reserved_bytes = 0.0

    def place(self, pod: SimulatedPod) -> bool:
        """Place the pod on a node with room; return whether there was one."""
        size = pod.size
        fits = (self.cores >= size.cpu_cores - 1e-9) & (self.memory >= size.memory_bytes)
        left = np.where(fits, self.cores, np.inf)
        node = int(left.argmin())
        if not fits[node]:
            return False
        pod.node = node
        self._take(node, size, 1)
        return True

    def release(self, pod: SimulatedPod) -> None:
        """Free the pod's resources on its node."""
        if pod.node != NOWHERE:
            self._take(pod.node, pod.size, -1)
            pod.node = NOWHERE

    def put_back(self, pod: SimulatedPod, node: int) -> None:
        """Place the pod again on the node that it has just left."""
        pod.node = node
        self._take(node, pod.size, 1)

    def resize(self, pod: SimulatedPod, size: Resources) -> bool:
        """Resize the pod on its node; return whether there was room."""
        if pod.node == NOWHERE:
            pod.size = size
            return True
        more = size - pod.size
        if more.cpu_cores > self.cores[pod.node] + 1e-9 or more.memory_bytes > self.memory[pod.node]:
            return False
        self._take(pod.node, more, 1)
        pod.size = size
        return True

    def _take(self, node: int, size: Resources, times: int) -> None:
        self.cores[node] -= times * size.cpu_cores
        self.memory[node] -= times * size.memory_bytes
        self.reserved_cores += times * size.cpu_cores
        self.reserved_bytes += times * size.memory_bytes

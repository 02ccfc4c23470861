"""The exact choice of what moves: a minimum cut between home, the training process, and its data workers.

Of the movable nodes D, a set M closed under predecessors moves, such that the time of home is least:

    objective(M) = sum of cost_us(v), v in D - M
                 + sum of tensor_us + byte_us * bytes(t), t made in M and read at home, or fetched     (received)
                 + sum of tensor_us + byte_us * bytes(t), t of a source and read in M                  (sent)

A tensor with many readers counts once. Sources run at home, so a source's tensor that home reads costs nothing.

Each term is an edge of a network whose cuts are the sets M (Picard, 1976): home is one terminal, the data workers are
the other, and a tensor has one auxiliary node. Capacities are whole: SciPy's maximum flow is one of integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from .graph import Graph, Tensor, reached
from .state import State

UNITS_PER_US = 100
"""Capacities are counted in hundredths of a microsecond, if they fit."""
CAPACITY_MAX = 2**29
"""Bound of the sum of all finite capacities: the residue of an edge must fit int32 in both directions."""


@dataclass(frozen=True, slots=True)
class Prices:
    """CPU that a crossing tensor costs home.

    Defaults: a receiver of 141 tensors, 0.87 MB, with the schema sent once, takes 620 us a batch on loopback (one core;
    design measurement of the plane): 141 * 2 us + 870 kB * 0.39 us/kB.
    """

    tensor_us: float = 2.0
    byte_us: float = 0.39e-3

    def of(self, tensor: Tensor) -> float:
        """Return the microseconds that a tensor costs home."""
        return self.tensor_us + self.byte_us * tensor.size_bytes


@dataclass(frozen=True, slots=True)
class Crossings:
    """Names of the tensors that cross between home and data workers. sent: raw tensors. received: prepared tensors."""

    sent: tuple[str, ...]
    received: tuple[str, ...]


def crossings_of(graph: Graph, state: State, moved: frozenset[str]) -> Crossings:
    """Return the tensors that cross when these nodes move."""
    at_home = (graph.by_name.keys() - moved) & (state.stateful.keys() | state.movable | state.sources)
    sent, received = [], []
    for name, producer in graph.producers.items():
        readers = graph.readers.get(name, ())
        if producer in moved and (name in graph.fetched or any(each in at_home for each in readers)):
            received.append(name)
        elif producer in state.sources and any(each in moved for each in readers):
            sent.append(name)
    return Crossings(tuple(sent), tuple(received))


def objective_us(graph: Graph, state: State, moved: frozenset[str], prices: Prices) -> float:
    """Return the CPU of home that a choice leaves of the movable nodes; infinite where a tensor cannot cross."""
    crossing = crossings_of(graph, state, moved)
    tensors = [graph.tensors[name] for name in (*crossing.sent, *crossing.received)]
    if not all(tensor.crosses for tensor in tensors):
        return float("inf")
    stays = sum(graph.by_name[name].cost_us for name in state.movable - moved)
    return stays + sum(prices.of(tensor) for tensor in tensors)


def predecessors_of(graph: Graph, state: State) -> dict[str, frozenset[str]]:
    """Return, for each movable node, the movable nodes that must move with it: all before it.

    A path may lead through nodes that both sides have.
    """
    backwards = {node.name: tuple(dict.fromkeys(graph.predecessors(node))) for node in graph.nodes}
    apart = state.stateful.keys() | state.sources | state.movable
    through = {name: () if name in apart else before for name, before in backwards.items()}
    return {name: frozenset(reached(backwards[name], through)) & state.movable - {name} for name in state.movable}


def minimum_cut(graph: Graph, state: State, prices: Prices) -> frozenset[str]:
    """Return the nodes that move, so that `objective_us` is least; of equal choices the smallest."""
    network = _Network()
    for name in sorted(state.movable):
        network.edge(name, MOVED, graph.by_name[name].cost_us)
    for name, before in predecessors_of(graph, state).items():
        for each in before:
            network.edge(each, name, INFINITE)
    at_home = state.stateful.keys() | state.sources
    for name, producer in graph.producers.items():
        tensor, readers = graph.tensors[name], graph.readers.get(name, ())
        price = prices.of(tensor) if tensor.crosses else INFINITE
        if producer in state.movable:
            mark = f"received {name}"
            network.edge(mark, producer, price)
            if name in graph.fetched:
                network.edge(HOME, mark, INFINITE)
            for each in readers:
                if each in state.movable or each in at_home:
                    network.edge(HOME if each in at_home else each, mark, INFINITE)
        elif producer in state.sources:
            mark = f"sent {name}"
            moving = [each for each in readers if each in state.movable]
            if moving:
                network.edge(HOME, mark, price)
            for each in moving:
                network.edge(mark, each, INFINITE)
    return network.side_of_moved() & state.movable


HOME = "home terminal"
MOVED = "moved terminal"
INFINITE = float("inf")


class _Network:
    """Edges with capacities between named places."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {HOME: 0, MOVED: 1}
        self._edges: dict[tuple[int, int], float] = {}

    def edge(self, one: str, other: str, capacity: float) -> None:
        """Add a capacity from one place to another."""
        key = self._place(one), self._place(other)
        self._edges[key] = self._edges.get(key, 0.0) + capacity

    def side_of_moved(self) -> frozenset[str]:
        """Return the places from which the terminal of moved nodes can be reached in the residual network.

        Of all minimum cuts this is the one with the fewest moved nodes.
        """
        capacities = self._capacities()
        flow = maximum_flow(capacities, 0, 1).flow
        left = (capacities - flow).tocsr()
        left.data = np.maximum(left.data, 0)
        left.eliminate_zeros()
        numbers = set(breadth_first_order(left.T.tocsr(), 1, return_predecessors=False).tolist())
        return frozenset(name for name, number in self._places.items() if number in numbers)

    def _capacities(self) -> csr_matrix:
        finite = sum(capacity for capacity in self._edges.values() if capacity != INFINITE)
        units_per_us = min(float(UNITS_PER_US), (CAPACITY_MAX - len(self._edges)) / max(finite, 1e-9))
        infinite = CAPACITY_MAX
        keys = np.array([*self._edges, (0, 1), (1, 0)], np.int64).reshape(-1, 2)
        values = [
            infinite if capacity == INFINITE else round(capacity * units_per_us) for capacity in self._edges.values()
        ]
        size = len(self._places)
        return csr_matrix((np.array([*values, 0, 0], np.int32), (keys[:, 0], keys[:, 1])), shape=(size, size))

    def _place(self, name: str) -> int:
        return self._places.setdefault(name, len(self._places))

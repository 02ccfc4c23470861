"""The partition of a step: which nodes move, which tensors cross, which nodes stay and why, and the expected gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ProgramRefused
from .cut import Crossings, Prices, crossings_of, minimum_cut, objective_us
from .graph import Graph, path_to, reached
from .state import Reason, State, state_of

WORTH_SHARE = 0.05
"""Least share of a step's CPU that must leave home: for less, data workers are not worth starting."""


@dataclass(frozen=True, slots=True)
class Staying:
    """Nodes that stay although they depend on samples.

    reason: of the first of these nodes, with the path from the state that reaches it.
    """

    reason: Reason
    nodes: tuple[str, ...]
    cost_us: float


@dataclass(frozen=True)
class GraphPartition:
    """The part of a step that moves, and the reasons for which the rest stays.

    moved: names of the nodes that move. home_us: CPU of home alone. left_us: CPU of home once these nodes have moved,
    crossings included. other_us: the part of `home_us` that belongs to no node.
    """

    graph: Graph
    state: State
    moved: frozenset[str]
    crossings: Crossings
    staying: tuple[Staying, ...]
    refusals: tuple[str, ...]
    home_us: float
    left_us: float
    other_us: float = 0.0

    @property
    def moved_us(self) -> float:
        """CPU of a step that data workers take over."""
        return sum(self.graph.by_name[name].cost_us for name in sorted(self.moved))

    @property
    def speedup(self) -> float:
        """Predicted speed-up of a program that is limited by home's CPU, with enough data workers."""
        return self.home_us / self.left_us if self.left_us else 1.0

    @property
    def is_worth_it(self) -> bool:
        """Return whether enough of a step's CPU leaves home, and nothing is refused."""
        return not self.refusals and bool(self.moved) and self.home_us - self.left_us >= WORTH_SHARE * self.home_us


def partition(
    graph: Graph,
    prices: Prices,
    *,
    refusals: Sequence[str] = (),
    other_us: float = 0.0,
) -> GraphPartition:
    """Return the best partition of a step's graph.

    refusals: reasons, found outside of the graph, for which nothing may move. other_us: CPU of a step that belongs to
    no node, and stays.
    """
    state = state_of(graph)
    moved = frozenset[str]() if refusals else minimum_cut(graph, state, prices)
    home_us = other_us + sum(node.cost_us for node in graph.nodes)
    saved_us = objective_us(graph, state, frozenset(), prices) - objective_us(graph, state, moved, prices)
    return GraphPartition(
        graph=graph,
        state=state,
        moved=moved,
        crossings=crossings_of(graph, state, moved),
        staying=staying_of(graph, state),
        refusals=tuple(refusals),
        home_us=home_us,
        left_us=home_us - saved_us,
        other_us=other_us,
    )


def staying_of(graph: Graph, state: State) -> tuple[Staying, ...]:
    """Return the nodes that depend on samples and stay, grouped by the state that reaches them; dearest group first."""
    samples = reached(sorted(state.sources), graph.data_successors)
    groups: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.name in state.stateful and node.name in samples:
            groups.setdefault(path_to(node.name, state.stateful)[0], []).append(node.name)
    found = [
        Staying(
            state.reason(names[0]),
            tuple(names),
            sum(graph.by_name[name].cost_us for name in names),
        )
        for names in groups.values()
    ]
    return tuple(sorted(found, key=lambda each: (-each.cost_us, each.reason.origin)))


REQUEST_US = 200.0
"""Least saving for which a step is cut: waking home's threads for a request costs about as much (taste)."""


def worthwhile(graph: Graph, prices: Prices) -> GraphPartition:
    """Return the best partition of a step's graph. Raises ProgramRefused: moving saves too little."""
    found = partition(graph, prices)
    if not found.moved:
        raise ProgramRefused("no part of a step that may move costs more than its way to a data worker")
    saved_us = found.home_us - found.left_us
    if not found.is_worth_it or saved_us < REQUEST_US:
        raise ProgramRefused(
            f"moving would save {saved_us / 1e3:.2f} of {found.home_us / 1e3:.2f} ms of a step: too little"
        )
    return found

"""Regions of control flow, and circles, contracted to a single node each.

In control flow of TensorFlow 1 a tensor may be dead: from a Switch to its Merge, and in a loop from Enter to Exit. No
such tensor can be fed from outside, so each region, with its ends, is a single node with the union of its effects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from .graph import Graph, Node

_FORKS = {"Switch", "RefSwitch"}
_JOINS = {"Merge", "RefMerge"}
_ENTERS = {"Enter", "RefEnter"}
_EXITS = {"Exit", "RefExit"}


class _Groups:
    """Disjoint sets of names."""

    def __init__(self) -> None:
        self._leader: dict[str, str] = {}

    def leader(self, name: str) -> str:
        """Return the name that represents the set of a name."""
        while (above := self._leader.get(name, name)) != name:
            self._leader[name] = self._leader.get(above, above)
            name = above
        return name

    def join(self, one: str, other: str) -> None:
        """Join the sets of two names."""
        self._leader[self.leader(one)] = self.leader(other)


def contracted(graph: Graph) -> Graph:
    """Return the graph with each region of control flow, and each circle, as a single node."""
    groups = _Groups()
    in_loops = _follow(graph, groups, _ENTERS, _EXITS, frozenset())
    _follow(graph, groups, _FORKS, _JOINS, in_loops)
    graph = _merged(graph, groups)
    while (circle := _circle(graph)) is not None:
        groups = _Groups()
        for name in circle:
            groups.join(name, circle[0])
        graph = _merged(graph, groups)
    return graph


def _follow(
    graph: Graph, groups: _Groups, opens: set[str], closes: set[str], ignored: frozenset[str]
) -> frozenset[str]:
    """Join each opening node with all nodes up to its closing node; return the names of all joined nodes."""
    found: set[tuple[str, int]] = set()
    waiting: deque[tuple[str, int]] = deque()

    def arrive(name: str, depth: int) -> None:
        node = graph.by_name[name]
        if name not in ignored:
            depth += (node.op in opens) - (node.op in closes)
        if (name, depth) not in found and depth <= len(graph.nodes):
            found.add((name, depth))
            if depth > 0:
                waiting.append((name, depth))

    for node in graph.nodes:
        if node.op in opens and node.name not in ignored:
            arrive(node.name, 0)
    while waiting:
        name, depth = waiting.popleft()
        for after in graph.successors.get(name, ()):
            groups.join(after, name)
            if (after, depth) not in found:
                arrive(after, depth)
    return frozenset(name for name, _ in found)


def _circle(graph: Graph) -> Sequence[str] | None:
    sorter = TopologicalSorter({node.name: set(graph.predecessors(node)) for node in graph.nodes})
    try:
        sorter.prepare()
    except CycleError as error:
        return error.args[1]
    return None


def _merged(graph: Graph, groups: _Groups) -> Graph:
    members: dict[str, list[Node]] = {}
    for node in graph.nodes:
        members.setdefault(groups.leader(node.name), []).append(node)
    if len(members) == len(graph.nodes):
        return graph
    name_of = {node.name: nodes[0].name for nodes in members.values() for node in nodes}
    return Graph(tuple(_one(nodes, name_of) for nodes in members.values()), graph.fetched, graph.written)


def _one(nodes: Sequence[Node], name_of: dict[str, str]) -> Node:
    """Return a single node in place of several; edges between them are dropped."""
    first = nodes[0]
    controls = _unique(name_of[each] for node in nodes for each in node.controls)
    inputs = _unique(each for node in nodes for each in node.inputs)
    within = {tensor.name for node in nodes for tensor in node.outputs}
    if len(nodes) == 1:
        return replace(first, controls=controls)
    return Node(
        name=first.name,
        op="control flow",
        effects=frozenset().union(*(node.effects for node in nodes)),
        inputs=tuple(each for each in inputs if each not in within),
        controls=tuple(each for each in controls if each != first.name),
        outputs=tuple(tensor for node in nodes for tensor in node.outputs),
        reads=frozenset().union(*(node.reads for node in nodes)),
        writes=frozenset().union(*(node.writes for node in nodes)),
        cost_us=sum(node.cost_us for node in nodes),
        about=f"{first.name} (control flow of {len(nodes)} operations)",
        members=tuple(each for node in nodes for each in (node.members or (node.name,))),
    )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))

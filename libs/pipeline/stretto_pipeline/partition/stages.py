"""Stages: what moves, in groups of one type of device (GoldMiner, multi-stage).

    stage(v) = max over predecessors u in M of stage(u) + (1 where the types of u and v differ)

So each stage and those before it are closed under predecessors. Data workers of several types stand in a chain, in an
order that the user gives; there a node runs in the first group that is of its type and not before its predecessors:

    group(v) = min g >= max over predecessors u in M of group(u), such that g is of v's type

With no such group it runs where its predecessors do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter

from .graph import Graph, Node

DEFAULT_DEVICE = "cpu"


@dataclass(frozen=True, slots=True)
class Stage:
    """Nodes of one type of device that run one after another without a transfer, in topological order."""

    number: int
    device: str
    nodes: tuple[str, ...]
    cost_us: float


def device_of(node: Node, declared: Mapping[str, str]) -> str:
    """Return the type of device of a node: the declared one of its operation, or that of its placement, or cpu."""
    if node.op in declared:
        return declared[node.op]
    _, found, rest = node.device.lower().rpartition("device:")
    return rest.partition(":")[0] if found else DEFAULT_DEVICE


def stages_of(
    graph: Graph, moved: frozenset[str], before: Mapping[str, frozenset[str]], declared: Mapping[str, str]
) -> tuple[Stage, ...]:
    """Return the stages of the nodes that move. before: those that each one needs; declared: operation to device."""
    number: dict[str, int] = {}
    groups: dict[tuple[int, str], list[str]] = {}
    for name in _ordered(moved, before):
        device = device_of(graph.by_name[name], declared)
        number[name] = max(
            (number[each] + (device_of(graph.by_name[each], declared) != device) for each in before[name] & moved),
            default=0,
        )
        groups.setdefault((number[name], device), []).append(name)
    return tuple(
        Stage(at, device, tuple(nodes), sum(graph.by_name[name].cost_us for name in nodes))
        for (at, device), nodes in sorted(groups.items())
    )


def groups_of(
    graph: Graph,
    moved: frozenset[str],
    before: Mapping[str, frozenset[str]],
    declared: Mapping[str, str],
    devices: Sequence[str],
) -> dict[str, int]:
    """Return for each node that moves the number of its group. devices: the type of each group in a chain."""
    found: dict[str, int] = {}
    for name in _ordered(moved, before):
        least = max((found[each] for each in before[name] & moved), default=0)
        device = device_of(graph.by_name[name], declared)
        found[name] = next((at for at in range(least, len(devices)) if devices[at] == device), least)
    return found


def _ordered(moved: frozenset[str], before: Mapping[str, frozenset[str]]) -> Iterator[str]:
    return iter(TopologicalSorter({name: sorted(before[name] & moved) for name in sorted(moved)}).static_order())

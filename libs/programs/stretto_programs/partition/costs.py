"""CPU of the nodes of a step: measured in traced runs, or guessed by type of operation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .effects import Effect
from .graph import Graph, Node, Tensor
from .state import State


@dataclass(frozen=True)
class Trace:
    """Mean CPU of operations in microseconds, by name.

    step_us: operations of the step. data_us: operations that ran in tf.data, for each of their runs. process_us: CPU of
    the whole process for a step, without the profiler.
    """

    step_us: dict[str, float] = field(default_factory=dict[str, float])
    data_us: dict[str, float] = field(default_factory=dict[str, float])
    process_us: float = 0.0


CALL_US = 15.0
"""CPU to start and end the executor for a run of a map's function in tf.data (traced, one core)."""
GUESSED_US = {
    **dict.fromkeys(("DecodeCSV", "ParseExampleV2", "ParseSingleExample", "Map", "ParallelMap"), 500.0),
    **dict.fromkeys(("StringToHashBucketFast", "StringToHashBucketStrong", "StringSplitV2", "RegexReplace"), 50.0),
    **dict.fromkeys(("LookupTableFindV2", "AsString", "StringJoin", "SparseCrossV2", "SparseCrossHashed"), 50.0),
    **dict.fromkeys(("MatMul", "BatchMatMulV2", "Conv2D"), 100.0),
    **dict.fromkeys(("Const", "NoOp", "Placeholder", "Identity", "VarHandleOp"), 0.0),
}
GUESS_US = 3.0
"""Guessed CPU of any other type of operation. Guesses are good for an order of magnitude."""


def guess_us(op: str) -> float:
    """Return the guessed CPU of an operation by its type."""
    return GUESSED_US.get(op, GUESS_US)


def with_costs(graph: Graph, cost_us: Callable[[Node], float]) -> Graph:
    """Return the graph with another cost of each node."""
    return replace(graph, nodes=tuple(replace(node, cost_us=cost_us(node)) for node in graph.nodes))


def with_guesses(graph: Graph) -> Graph:
    """Return the graph with guessed costs."""
    return with_costs(graph, lambda node: guess_us(node.op))


def traced_us(node: Node, traced: Trace) -> float:
    """Return the CPU of a node in a trace: the sum over its operations."""
    return sum(traced.step_us.get(name, 0.0) for name in node.members or (node.name,))


def with_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with measured sizes of tensors; sizes that were not measured stay."""
    nodes = (
        replace(
            node,
            outputs=tuple(replace(each, size_bytes=sizes.get(each.name, each.size_bytes)) for each in node.outputs),
        )
        for node in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def with_maps(graph: Graph, source: str, raw: Sequence[Tensor], cost_us: float) -> Graph:
    """Return the graph with raw tensors as inputs of the operation that takes an element, which also runs the maps.

    cost_us: CPU of the maps.
    """
    node = Node(name="tf.data: source", op="tf.data", effects=frozenset({Effect.SOURCE}), outputs=tuple(raw))
    taking = replace(
        graph.by_name[source],
        effects=frozenset({Effect.PURE}),
        inputs=tuple(each.name for each in raw),
        cost_us=cost_us,
    )
    return replace(graph, nodes=(node, *(taking if each.name == source else each for each in graph.nodes)))


def measured_names(graph: Graph, state: State) -> list[str]:
    """Return the names of the tensors that may cross to another process."""
    return [
        tensor.name
        for node in graph.nodes
        if node.name in state.movable | state.sources and node.op not in ("control flow", "tf.data")
        for tensor in node.outputs
        if tensor.crosses
    ]


def with_measures(
    graph: Graph,
    state: State,
    found: Trace,
    sizes: Mapping[str, int],
    source: str,
    calls: int,
    bodies: Collection[str],
) -> Graph:
    """Return the graph with measured costs and sizes of the nodes that may move.

    source: the operation that runs the maps, "" without maps. calls: runs of maps for a raw element. bodies: names of
    the operations in the maps.
    """
    if not found.step_us:
        return graph

    # not the process time of the runs: they create a data set for each element, which tf.data does once
    seen_us = found.step_us | found.data_us
    stage_us = calls * CALL_US + sum(seen_us.get(name, 0.0) for name in bodies)

    def cost_us(node: Node) -> float:
        if node.name == source:
            return stage_us
        return traced_us(node, found) if node.name in state.movable else node.cost_us

    return with_costs(with_sizes(graph, sizes), cost_us)

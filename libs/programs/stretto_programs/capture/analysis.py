"""The partition of a captured step, from measured costs and sizes where the step can be run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..graphs.reading import Reading, read_graph
from ..graphs.sizes import STRING_BYTES, UNKNOWN_DIMENSION, static_size
from ..graphs.tracing import trace
from ..partition.costs import (
    CALL_US,
    GUESS_US,
    GUESSED_US,
    Trace,
    guess_us,
    measured_names,
    traced_us,
    with_costs,
    with_sizes,
)
from ..partition.cut import Prices
from ..partition.effects import Effect
from ..partition.graph import Graph, Node, Tensor
from ..partition.partition import GraphPartition, partition
from ..partition.pipelines import BATCHES, MAPS, PASSED, Component, DatasetOp, Opened, calls_per_step, opened
from ..partition.state import state_of
from .captured import Captured, Pipeline


@dataclass(frozen=True)
class Explained:
    """A partition, and what was found for it.

    costs, sizes: how costs and sizes were found, in words. is_measured: costs come from traced steps, not from guesses.
    """

    captured: Captured
    partition: GraphPartition
    opened: tuple[tuple[Pipeline, Opened], ...]
    costs: str
    sizes: str
    is_measured: bool


def explained(
    captured: Captured,
    prices: Prices,
    tell: Callable[[str], None] = lambda stage: None,
) -> Explained:
    """Return the partition of a captured step. tell: called with the name of each stage of the work."""
    tell("reading the graph")
    reading = Reading(captured.graph_def, captured.given, captured.arguments)
    batch = _batch_size(captured)
    graph = read_graph(
        reading,
        targets=captured.targets,
        fetched=captured.fetched,
        written=captured.written,
        size_of=lambda tensor: static_size(tensor, batch),
    )
    tell("measuring tensors")
    graph, sizes = _measured_sizes(graph, captured)
    tell("tracing steps")
    traced, costs = _traced(captured, graph)
    is_measured = bool(traced.step_us)
    graph = with_costs(graph, lambda node: traced_us(node, traced) if is_measured else guess_us(node.op))
    opening = [(each, opened(each.ops, _written(graph))) for each in captured.pipelines]
    for pipeline, found in opening:
        graph = _with_pipeline(graph, pipeline, found, traced)
    tell("cutting")
    other_us = max(0.0, traced.process_us - sum(node.cost_us for node in graph.nodes))
    found = partition(graph, prices, refusals=captured.refusals, other_us=other_us)
    return Explained(captured, found, tuple(opening), costs, sizes, is_measured)


def _written(graph: Graph) -> frozenset[str]:
    return frozenset(graph.written) | frozenset(name for node in graph.nodes for name in node.writes)


def _batch_size(captured: Captured) -> int:
    return next((_batch_of(each) for each in captured.pipelines), UNKNOWN_DIMENSION)


def _measured_sizes(graph: Graph, captured: Captured) -> tuple[Graph, str]:
    """Return the graph with measured bytes of the tensors that may cross, and how they were found, in words."""
    names = measured_names(graph, state_of(graph))
    if not names:
        return graph, "nothing to measure"
    try:
        sizes = captured.values(names)
    except Exception as error:  # operations of the program may raise anything: sizes are then guessed
        return graph, f"guessed from shapes ({type(error).__name__}: {_line(error)})"
    return with_sizes(graph, sizes), "measured in one run"


def _traced(captured: Captured, graph: Graph) -> tuple[Trace, str]:
    if not graph.nodes:
        return Trace(), "guessed by type of operation (there is no graph)"
    try:
        found = trace(captured.run)
    except Exception as error:  # likewise: costs are then guessed
        return Trace(), f"guessed by type of operation ({type(error).__name__}: {_line(error)})"
    if not found.step_us:
        return found, "guessed by type of operation (the profiler saw none)"
    return found, "measured: CPU of operations, mean of traced steps"


def _line(error: Exception) -> str:
    """Return the line of an error that says what happened. TensorFlow puts it last, behind lines of the program."""
    lines = [each.strip() for each in str(error).splitlines()]
    told = [each for each in lines if each and not each.startswith(("[[", "File ", "Detected at", "Graph execution"))]
    return (told or [""])[-1][:200]


def map_us(op: DatasetOp, calls: int, traced: Trace) -> float:
    """Return the CPU that a map takes for one step."""
    if not traced.step_us:
        return GUESSED_US["Map"] if calls == 1 else GUESS_US * len(op.body) * calls
    return calls * (CALL_US + sum(traced.data_us.get(name, 0.0) for name in op.body))


def _with_pipeline(graph: Graph, pipeline: Pipeline, found: Opened, traced: Trace) -> Graph:
    """Return the graph with the movable maps of a pipeline placed before the operation that takes its elements."""
    if not found.stage:
        return graph
    first = pipeline.ops.index(found.stage[0])
    before = pipeline.ops[first - 1]
    calls = calls_per_step(pipeline.ops, found.stage[0])
    title = f"tf.data {pipeline.source}".strip()
    sizes = _raw_sizes(pipeline, first - 1, before.components)
    raw = Node(
        name=f"{title}: source",
        op=before.kind,
        effects=frozenset({Effect.SOURCE}),
        outputs=tuple(
            Tensor(f"{title}: raw {place}", each.dtype, size * calls, _travels(each))
            for place, (each, size) in enumerate(zip(before.components, sizes, strict=True))
        ),
        about=f"raw elements behind {before.kind}",
    )
    nodes = [raw]
    for number, op in enumerate(found.stage):
        nodes.append(_stage_node(title, number, op, pipeline, nodes[-1], traced))
    last = tuple(tensor.name for tensor in nodes[-1].outputs)
    if not pipeline.source:
        return replace(graph, nodes=(*nodes, *graph.nodes), fetched=graph.fetched | set(last))
    taking = next((node for node in graph.nodes if pipeline.source in (node.name, *node.members)), None)
    if taking is None or taking.effects != frozenset({Effect.SOURCE}):
        return graph
    made = replace(taking, effects=frozenset({Effect.PURE}), inputs=last, cost_us=0.0)
    return replace(graph, nodes=(*nodes, *(made if node is taking else node for node in graph.nodes)))


def _stage_node(title: str, number: int, op: DatasetOp, pipeline: Pipeline, before: Node, traced: Trace) -> Node:
    calls = calls_per_step(pipeline.ops, op)
    per_element = calls // (op.batch_size or 1) if op.kind not in MAPS else calls
    return Node(
        name=f"{title}: {op.kind} {number}",
        op=op.kind,
        inputs=tuple(tensor.name for tensor in before.outputs),
        outputs=tuple(
            Tensor(
                f"{title}: {op.kind} {number}/{place}",
                each.dtype,
                _size(each, _batch_of(pipeline)) * per_element,
                _travels(each),
            )
            for place, each in enumerate(op.components)
        ),
        reads=frozenset(map(str, op.function.reads)) if op.function is not None else frozenset(),
        cost_us=map_us(op, calls, traced) if op.kind in MAPS else 0.0,
        about=f"tf.data {op.kind}",
    )


def _raw_sizes(pipeline: Pipeline, place: int, components: Sequence[Component]) -> Sequence[int]:
    """Return the bytes of each component of a raw element: measured, or else by its shape."""
    # these operations pass the same elements; a sample before them needs no buffer to be filled
    while pipeline.ops[place].kind in PASSED.keys() - BATCHES and place > 0:
        place -= 1
    try:
        measured = pipeline.sample(place)
    except Exception:  # the data set may raise anything, and raises it again when the program runs
        measured = None
    if measured is not None and len(measured) == len(components):
        return measured
    return [_size(each, _batch_of(pipeline)) for each in components]


def _batch_of(pipeline: Pipeline) -> int:
    return next((op.batch_size for op in reversed(pipeline.ops) if op.batch_size), UNKNOWN_DIMENSION)


def _size(component: Component, unknown: int) -> int:
    count = 1
    for size in component.shape or ():
        count *= unknown if size is None else size
    return count * _item_bytes(component.dtype)


def _item_bytes(dtype: str) -> int:
    if dtype == "string":
        return STRING_BYTES
    import numpy as np

    return 8 if dtype in ("variant", "resource", "bfloat16") else int(np.dtype(dtype).itemsize)


def _travels(component: Component) -> bool:
    return component.dtype not in ("variant", "resource")

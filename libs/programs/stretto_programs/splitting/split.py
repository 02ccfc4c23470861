"""A step in two parts that run: the preparation of a raw element, and home's part.

    plain: iterator -> step          split: source -> raw -> (lanes or home) prepare -> home's part of the step

Both parts are made from the step's own graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ProgramRefused
from ..graphs.pruning import ImportedGraph
from ..graphs.reading import Reading, read_graph
from ..graphs.sizes import UNKNOWN_DIMENSION, size_bytes, static_size
from ..graphs.tracing import trace
from ..lanes.trial import Trial
from ..partition.costs import CALL_US, guess_us, measured_names, with_guesses, with_maps, with_measures
from ..partition.cut import Prices
from ..partition.effects import SOURCES
from ..partition.graph import Graph, Tensor
from ..partition.partition import REQUEST_US, GraphPartition, worthwhile
from ..partition.state import state_of
from .graph_preparation import array_of
from .halves import Halves, halves_of
from .opening import Opening
from .stage import sample_of
from .subgraph import subgraph_of
from .traced import Traced

OPS_NAMED = 6


Finish = Callable[[Mapping[str, Any], Sequence[Any]], Any]
"""Home's part of a step: a function of prepared tensors, by name, and of the step's other arguments."""


@dataclass(frozen=True)
class Split:
    """A step, cut once for all passes. finish: runs home's part. trial: whether that pays."""

    traced: Traced
    partition: GraphPartition
    halves: Halves
    finish: Finish
    trial: Trial = field(default_factory=Trial)


def split_of(step: Traced, opening: Opening, prices: Prices) -> Split:
    """Cut a step where home keeps the least CPU. Raises ProgramRefused: moving saves too little."""
    graph = _graph(step, opening)
    sample = sample_of(opening, step.resources.key)
    if sample is not None:
        graph = _measured(step, opening, graph, sample)
    found = worthwhile(graph, prices)
    halves = halves_of(step.graph_def, found, step.targets)
    return Split(step, found, halves, _finish(step, halves))


def moved_in_words(found: GraphPartition, maps: Iterable[str]) -> str:
    """Return the types of the operations that move, for people: maps of tf.data, then the dearest of the step."""
    nodes = sorted((found.graph.by_name[name] for name in found.moved), key=lambda node: -node.cost_us)
    ops = [*dict.fromkeys([*maps, *(each.op for each in nodes if each.op not in SOURCES)])]
    more = f" and {len(ops) - OPS_NAMED} more" if len(ops) > OPS_NAMED else ""
    return ", ".join(ops[:OPS_NAMED]) + more


def check_moves(split: Split, opening: Opening) -> None:
    """Raise ProgramRefused if too little of a step moves for this data set."""
    if (left_us := moved_us(split, opening)) < REQUEST_US:
        raise ProgramRefused(f"{left_us / 1e3:.2f} ms of a step could move: too little")


def moved_us(split: Split, opening: Opening) -> float:
    """Return the CPU of a step that data workers take over.

    Fewer maps may move of this data set than of the data set for which the step was cut.
    """
    source = split.partition.graph.by_name[split.traced.source]
    has_less = source.name in split.partition.moved and not opening.has_stage
    return split.partition.moved_us - (source.cost_us if has_less else 0.0)


def _graph(step: Traced, opening: Opening) -> Graph:
    """Return the graph of a step; its operation that takes an element also stands for the maps that move."""
    reading = Reading(step.graph_def, step.given, step.arguments, frozenset(step.fed))
    batch = _batch_size(opening)
    graph = read_graph(
        reading,
        targets=step.targets,
        fetched=step.outputs,
        written=step.written,
        size_of=lambda tensor: static_size(tensor, batch),
    )
    graph = with_guesses(graph)
    if not opening.has_stage:
        return graph
    import tensorflow as tf

    raw = [
        Tensor(f"tf.data: raw {place}", each.dtype.name, (each.shape.num_elements() or batch) * (each.dtype.size or 16))
        for place, each in enumerate(tf.nest.flatten(opening.source.element_spec))
    ]
    ops = _bodies(opening).values()
    cost_us = _calls(opening) * (CALL_US + sum(map(guess_us, ops)))
    return with_maps(graph, step.source, raw, cost_us)


def _calls(opening: Opening) -> int:
    """Return how often functions of maps run for a raw element."""
    return len(opening.maps_before) * _batch_size(opening) + len(opening.maps_after)


def _bodies(opening: Opening) -> dict[str, str]:
    """Return the types of the operations in the functions of maps, by name."""
    graphs = [each._map_func.function.graph.as_graph_def() for each in (*opening.maps_before, *opening.maps_after)]
    nodes = [node for graph in graphs for node in graph.node]
    nodes += [node for graph in graphs for each in graph.library.function for node in each.node_def]
    return {node.name: node.op for node in nodes}


def _batch_size(opening: Opening) -> int:
    import tensorflow as tf

    for each in (opening.batch, opening.dataset):
        value = None if each is None else tf.get_static_value(getattr(each, "_batch_size", None))
        if value is not None:
            return int(value)
    return UNKNOWN_DIMENSION


def _measured(step: Traced, opening: Opening, graph: Graph, sample: Sequence[Any]) -> Graph:
    """Return the graph with measured costs and sizes of the nodes that may move.

    The runs for it change nothing of the program.
    """
    state = state_of(graph)
    names = measured_names(graph, state)
    prepare = subgraph_of(step, step.graph_def, names, opening)
    sizes = {name: size_bytes(array_of(value)) for name, value in zip(names, prepare(*sample), strict=True)}
    found = trace(lambda: prepare(*sample))
    source = step.source if opening.has_stage else ""
    return with_measures(graph, state, found, sizes, source, _calls(opening), _bodies(opening))


def _finish(step: Traced, halves: Halves) -> Finish:
    """Return home's part of a step; it returns the result of the step."""
    import tensorflow as tf

    structure = step.concrete.structured_outputs
    leaves = tf.nest.flatten(structure, expand_composites=True)

    def packed(found: Iterator[Any]) -> Any:
        made = [None if each is None else next(found) for each in leaves]
        return tf.nest.pack_sequence_as(structure, made, expand_composites=True)

    if not halves.targets and all(name in halves.taken for name in step.outputs):  # home's part has no operation
        return lambda values, arguments: packed(iter([values[name] for name in step.outputs]))
    present = {node.name for node in halves.second.node}
    captures = {name: each for name, each in step.captures.items() if name in present}
    places = [place for place, name in enumerate(step.fed) if name in present]
    outputs = [f"{halves.taken[name]}:0" if name in halves.taken else name for name in step.outputs]
    names = [*halves.taken.values(), *(step.fed[place] for place in places), *captures]
    run = ImportedGraph(halves.second).function([f"{name}:0" for name in names], outputs, halves.targets)

    def finish(values: Mapping[str, Any], arguments: Sequence[Any]) -> Any:
        given = (*(values[name] for name in halves.taken), *(arguments[place] for place in places))
        return packed(iter(run([*given, *captures.values()])))

    return finish

"""The graph of a step in two halves: data workers make the tensors that cross, home takes them and does the rest.

The partition has decided; here the graph is only cut. Edges of control between the halves are dropped: a batch arrives
after everything that prepared it, checks included.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..graphs.inlining import address_of
from ..partition.partition import GraphPartition


@dataclass(frozen=True)
class Halves:
    """The two halves of a step's graph.

    first: graph of the data workers. second: graph of home. taken: tensors of `first` that `second` takes, with the
    placeholder of each. targets: operations of the step that `second` runs.
    """

    first: Any
    second: Any
    taken: Mapping[str, str]
    targets: tuple[str, ...]


def halves_of(graph_def: Any, partition: GraphPartition, targets: Collection[str]) -> Halves:
    """Cut the graph of a step where the partition says.

    targets: operations that the step runs, beside those of its fetched tensors. If the source is a node of the graph it
    belongs to the first half, and home takes the tensors that it reads of it.
    """
    graph, state = partition.graph, partition.state
    apart = partition.moved | state.sources
    at_home = [node for node in graph.nodes if node.name not in apart and _has_samples_or_state(node.name, partition)]
    read = {name for node in at_home for name in node.inputs} | graph.fetched
    taken = [
        tensor.name
        for node in graph.nodes
        if node.name in apart and not node.name.startswith("tf.data")
        for tensor in node.outputs
        if tensor.name in read
    ]
    removed = {each for name in apart for each in (graph.by_name[name].members or (name,))}
    placeholders = {name: f"crossing_{number}" for number, name in enumerate(taken)}
    kept = [*targets, *(name.partition(":")[0] for name in graph.fetched)]
    second = _second(graph_def, removed, placeholders, partition)
    wanted = [placeholders.get(f"{name}:0", name) for name in kept if name not in removed]
    return Halves(
        first=needed_part(graph_def, [name.partition(":")[0] for name in taken]),
        second=needed_part(second, [*wanted, *placeholders.values()]),
        taken=placeholders,
        targets=tuple(name for name in targets if name not in removed),
    )


def _has_samples_or_state(name: str, partition: GraphPartition) -> bool:
    return name in partition.state.stateful or name in partition.state.movable


def _second(graph_def: Any, removed: set[str], placeholders: Mapping[str, str], partition: GraphPartition) -> Any:
    """Return the graph without the moved nodes: placeholders stand for their tensors."""
    made = type(graph_def)(library=graph_def.library, versions=graph_def.versions)
    for name, placeholder in placeholders.items():
        node = made.node.add(name=placeholder, op="Placeholder")
        node.attr["dtype"].type = _type_number(partition.graph.tensors[name].dtype)
    for node in graph_def.node:
        if node.name in removed:
            continue
        copy = made.node.add()
        copy.CopyFrom(node)
        del copy.input[:]
        for each in node.input:
            name, number = address_of(each)
            if number >= 0:
                copy.input.append(placeholders.get(f"{name}:{number}", each))
            elif name not in removed:
                copy.input.append(each)
    return made


def _type_number(dtype: str) -> int:
    import tensorflow as tf

    return int(tf.as_dtype(dtype).as_datatype_enum)


def needed_part(graph_def: Any, names: Iterable[str]) -> Any:
    """Return the part of a GraphDef that a run of these operations needs."""
    by_name = {node.name: node for node in graph_def.node}
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found and name in by_name:
            found.add(name)
            waiting += [address_of(each)[0] for each in by_name[name].input]
    made = type(graph_def)(library=graph_def.library, versions=graph_def.versions)
    made.node.extend(node for node in graph_def.node if node.name in found)
    for node in made.node:  # a node cannot be placed with a node that this part lacks
        places = [each for each in node.attr["_class"].list.s if each.decode().removeprefix("loc:@") in found]
        del node.attr["_class"]
        if places:
            node.attr["_class"].list.s.extend(places)
    return made

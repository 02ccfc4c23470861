"""A data set in a graph of TensorFlow 1, opened for running: the graph of its source, and the nodes of the maps.

As `opening` does with objects: the source is the pipeline's own nodes up to the first map that moves. The nodes behind
it are copied without the maps, with the same inputs, seeds among them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ProgramRefused
from ..partition.dataset_reading import dataset_operation, pipeline_in_graph, types_and_shapes
from ..partition.datasets import BATCHES, MAPS, Component, DatasetOp, opened
from ..partition.effects import Effect, effect_of
from ..partition.halves import needed_part
from ..partition.normalise import address_of
from ..partition.reading import Reading, is_handle, needed_for
from .opening import REMAKES

PREFIX = "stretto_"
"""Names of nodes of ours begin with it."""
TABLES = frozenset({"HashTableV2"})
"""Tables whose content comes from their initialisation alone."""
_MAP_ATTRIBUTES = ("f", "Targuments", "output_types", "output_shapes", "preserve_cardinality")


@dataclass(frozen=True)
class GraphOpening:
    """A data set of a graph, opened.

    source: the graph of the source, and `last`, its last data set. fed: placeholders that its initialisation takes.
    raw: types and shapes of raw elements. stage: the nodes that make an element of a raw one, without `raw` and the
    end; empty: a raw element is the element. made_by: the last of them. calls: runs of the maps for one raw element.
    emptied: values of inputs of the program's own data set with which it has no elements; none if they are not known.
    """

    source: Any
    last: str
    fed: tuple[str, ...]
    raw: tuple[tuple[Any, Any], ...]
    stage: tuple[Any, ...]
    made_by: str
    has_batch: bool
    calls: int
    bodies: Mapping[str, str]
    batch_size: int | None
    moved: tuple[str, ...]
    emptied: Mapping[str, Any]

    @property
    def has_stage(self) -> bool:
        """Return whether maps move."""
        return bool(self.stage)


def open_in_graph(reading: Reading, source: Any, maker: str, changing: frozenset[str]) -> GraphOpening:
    """Open the data set behind a source. maker: its MakeIterator operation, "" for a one-shot iterator.

    changing: resources that anything may write. Raises ProgramRefused: the source may not run ahead of the training.
    """
    found = dataset_operation(reading, source, [maker])
    if found is None:
        raise ProgramRefused(f"the data set behind {source.name} cannot be told")
    end, inside = found
    ops = pipeline_in_graph(inside.graph_def, inside, end)
    maps = [place for place, op in enumerate(ops) if op.kind in MAPS]
    may_move = maps[len(maps) - len(opened(ops, changing).maps) :]
    start = next((place for place in may_move if _can_start(ops, place)), None)
    chain = [inside.graph.get_operation_by_name(op.name) for op in ops]
    graph_def = type(inside.graph_def)()
    graph_def.CopyFrom(inside.graph_def)
    nodes = {node.name: node for node in graph_def.node}
    place = len(chain) if start is None else start
    behind = chain[place:]
    for each in behind:
        if kind_is_map(each):
            _check_captures(inside, each, changing)
    last = _remade(nodes, chain[:place], [each for each in behind if not kind_is_map(each)])
    source_def = needed_part(graph_def, [last])
    fed = _check_source(inside, source_def, changing)
    stage = _stage(inside.graph_def, behind) if start is not None else ()
    counted = [each for each in ops[place:] if each.kind in MAPS | BATCHES]
    batch = next((number for number, each in enumerate(counted) if each.kind in BATCHES), None)
    batch_size = next((each.batch_size for each in reversed(ops) if each.batch_size), None)
    before = 0 if batch is None else batch
    return GraphOpening(
        source=source_def,
        last=last,
        fed=fed,
        raw=_raw(nodes[last]),
        stage=stage,
        made_by=stage[-1].name if stage else "",
        has_batch=batch is not None,
        calls=before * (batch_size or 1) + len(counted) - before - (batch is not None),
        bodies=_bodies(inside, behind),
        batch_size=batch_size,
        moved=tuple(dict.fromkeys(each.kind for each in counted if each.kind in MAPS)),
        emptied=_emptied(chain) if maker else {},
    )


def kind_is_map(operation: Any) -> bool:
    """Return whether a data set's operation runs a function on each element."""
    return operation.type.startswith(("MapDataset", "ParallelMapDataset"))


def _can_start(ops: Sequence[DatasetOp], place: int) -> bool:
    """Return whether all maps from a place on can move: what is between them can be made again without them."""
    behind = ops[place:]
    batches = [each for each in behind if each.kind in BATCHES]
    return (
        place > 0
        and len(batches) <= 1
        and all(each.kind in REMAKES.keys() | {"Map", "ParallelMap"} for each in behind)
        and all(_travels(each, bool(batches)) for each in ops[place - 1].components)
    )


def _travels(component: Component, has_batch: bool) -> bool:
    """Return whether a component of raw elements travels, and has one shape where elements are put together."""
    has_shape = component.shape is not None and None not in component.shape
    return component.dtype not in ("variant", "resource") and (has_shape or not has_batch)


def _remade(nodes: Mapping[str, Any], kept: Sequence[Any], behind: Sequence[Any]) -> str:
    """Put operations behind those that are kept, without the maps between; return the name of the last."""
    last = nodes[kept[-1].name]
    for each in behind:
        node = nodes[each.name]
        node.input[0] = last.name
        shapes = [shape.as_proto() for _, shape in _raw(last)]
        if each.type.startswith(("BatchDataset", "ParallelBatchDataset")):
            for shape in shapes:
                sizes = [size.size for size in shape.dim]
                del shape.dim[:]
                for size in (-1, *sizes):
                    shape.dim.add(size=size)
        node.attr["output_types"].list.type[:] = [dtype.as_datatype_enum for dtype, _ in _raw(last)]
        del node.attr["output_shapes"].list.shape[:]
        node.attr["output_shapes"].list.shape.extend(shapes)
        last = node
    return str(last.name)


class _Node:
    """A node as `types_and_shapes` takes it."""

    def __init__(self, node_def: Any) -> None:
        self.node_def = node_def


def _raw(node: Any) -> tuple[tuple[Any, Any], ...]:
    return tuple(zip(*types_and_shapes(_Node(node)), strict=True))


# --- what may not run ahead -------------------------------------------------------------------------------------------


def _check_source(inside: Reading, source: Any, changing: Collection[str]) -> tuple[str, ...]:
    """Refuse a source that could see the training, or be seen; return the placeholders that it needs."""
    fed: list[str] = []
    for node in source.node:
        operation = inside.graph.get_operation_by_name(node.name)
        if operation.type in ("Placeholder", "PlaceholderV2"):
            fed.append(node.name)
        elif _is_dataset(operation):
            if "Generator" in operation.type:
                raise ProgramRefused(
                    f"{operation.type} runs Python code of the program, which must not run ahead of the training"
                )
            for called in functions_of(inside, node):
                effect = effect_of(called.op)
                if effect in (Effect.PYTHON, Effect.OUTSIDE) or "Generator" in called.op:
                    raise ProgramRefused(f"{operation.type} runs {called.op}, which must not run ahead of the training")
        else:
            _check_plain(inside, operation, changing, "the data set")
    return tuple(fed)


def _check_captures(inside: Reading, operation: Any, changing: Collection[str]) -> None:
    """Refuse a map whose captured values are no constants: a data worker has them once."""
    captured = [tensor.op.name for tensor in operation.inputs if tensor.dtype.name != "variant"]
    for name in needed_for(inside.graph, captured):
        each = inside.graph.get_operation_by_name(name)
        if each.type.startswith("Placeholder"):
            raise ProgramRefused(f"{operation.name} uses {name}, which Python code passes")
        _check_plain(inside, each, changing, operation.name)


def _check_plain(inside: Reading, operation: Any, changing: Collection[str], user: str) -> None:
    effects, _, _, _ = inside.touched(operation)
    handles = {str(inside.resource_of(each)) for each in operation.outputs if is_handle(each)}
    if effects - {Effect.PURE, Effect.CHECK, Effect.HANDLE} or handles & {*changing}:
        raise ProgramRefused(
            f"{user} uses {operation.name} ({operation.type}), which must not be read ahead of the training"
        )


def _is_dataset(operation: Any) -> bool:
    return any(each.dtype.name == "variant" for each in operation.outputs) and "Dataset" in operation.type


def functions_of(inside: Reading, node: Any) -> Iterator[Any]:
    """Return all nodes of the functions that a node calls."""
    waiting, seen = [node], set[str]()
    while waiting:
        for value in waiting.pop().attr.values():
            for called in [value.func, *value.list.func]:
                if called.name in inside.functions and called.name not in seen:
                    seen.add(called.name)
                    waiting += inside.functions[called.name].node_def
                    yield from inside.functions[called.name].node_def


def _bodies(inside: Reading, behind: Sequence[Any]) -> dict[str, str]:
    """Return the operations in the functions of the maps: their types, by name."""
    return {node.name: node.op for each in behind if kind_is_map(each) for node in functions_of(inside, each.node_def)}


# --- the stage --------------------------------------------------------------------------------------------------------


def raw_name(place: int) -> str:
    """Return the name of the placeholder of a raw tensor."""
    return f"{PREFIX}raw_{place}"


def _stage(graph_def: Any, behind: Sequence[Any]) -> tuple[Any, ...]:
    """Return the nodes of the maps and the batch between them, with all that they capture, under names of ours."""
    from tensorflow.core.framework.node_def_pb2 import NodeDef

    kept = [each for each in behind if kind_is_map(each) or each.type.startswith(("BatchDataset", "ParallelBatch"))]
    made: list[Any] = []
    previous = f"{PREFIX}rows"
    captured: list[str] = []
    for each in kept:
        inputs = [name for name in each.node_def.input if not name.startswith("^")][1:]
        node = NodeDef(name=f"{PREFIX}stage/{each.name}", op=each.type)
        if kind_is_map(each):
            inputs = inputs[: len(each.node_def.attr["Targuments"].list.type)]
            node.op = "MapDataset"
            for name in _MAP_ATTRIBUTES:
                if name in each.node_def.attr:
                    node.attr[name].CopyFrom(each.node_def.attr[name])
        else:
            for name, value in each.node_def.attr.items():
                node.attr[name].CopyFrom(value)
        captured += [address_of(name)[0] for name in inputs]
        node.input.extend([previous, *(f"{PREFIX}stage/{name}" for name in inputs)])
        previous = node.name
        made.append(node)
    for node in needed_part(graph_def, captured).node:
        copy = NodeDef()
        copy.CopyFrom(node)
        copy.name = f"{PREFIX}stage/{node.name}"
        del copy.input[:]
        copy.input.extend(f"{PREFIX}stage/{name}" for name in node.input if not name.startswith("^"))
        made.insert(0, copy)
    return tuple(made)


def stage_nodes(opening: GraphOpening) -> list[Any]:
    """Return the nodes from the placeholders of a raw element to an element; the last of them gives its tensors."""
    from tensorflow.core.framework.node_def_pb2 import NodeDef

    raw: list[Any] = []
    for place, (dtype, shape) in enumerate(opening.raw):
        node = NodeDef(name=raw_name(place), op="Placeholder")
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(shape.as_proto())
        raw.append(node)
    if not opening.has_stage:
        return raw
    rows = NodeDef(
        name=f"{PREFIX}rows",
        op="TensorSliceDataset" if opening.has_batch else "TensorDataset",
        input=[each.name for each in raw],
    )
    rows.attr["Toutput_types"].list.type.extend(dtype.as_datatype_enum for dtype, _ in opening.raw)
    rows.attr["output_shapes"].list.shape.extend(
        (shape[1:] if opening.has_batch else shape).as_proto() for _, shape in opening.raw
    )
    last = next(each for each in opening.stage if each.name == opening.made_by)
    element = NodeDef(name=f"{PREFIX}element", op="DatasetToSingleElement", input=[last.name])
    for name in ("output_types", "output_shapes"):
        element.attr[name].CopyFrom(last.attr[name])
    return [*raw, rows, *opening.stage, element]


# --- the end of the data ----------------------------------------------------------------------------------------------


def _emptied(chain: Sequence[Any]) -> dict[str, Any]:
    """Return values of inputs of a pipeline with which it has no elements; none if they are not known."""
    import numpy as np
    import tensorflow as tf

    first = chain[0]
    if first.type == "RangeDataset" and (begin := tf.get_static_value(first.inputs[0])) is not None:
        return {first.inputs[1].name: begin}
    if first.type in ("TextLineDataset", "TFRecordDataset", "TFRecordDatasetV2", "FixedLengthRecordDatasetV2"):
        return {first.inputs[0].name: np.array([], object)}
    if first.type == "TensorSliceDataset" and all(each.shape.is_fully_defined() for each in first.inputs):
        return {
            each.name: np.zeros(
                [0, *each.shape.as_list()[1:]], object if each.dtype.name == "string" else each.dtype.as_numpy_dtype
            )
            for each in first.inputs
        }
    takes = [each for each in chain if each.type == "TakeDataset"]
    return {takes[-1].inputs[1].name: np.int64(0)} if takes else {}

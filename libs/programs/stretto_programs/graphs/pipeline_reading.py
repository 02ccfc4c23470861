"""A tf.data pipeline as a list of its operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..partition.effects import Summary
from ..partition.pipelines import Component, DatasetOp, kind_of
from .reading import summary_of

KeyOf = Callable[[Any, str], str]
"""Function that returns the key of a captured resource, given its handle and a name for people."""


def pipeline_of(dataset: Any, key_of: KeyOf) -> tuple[DatasetOp, ...]:
    """Return the operations of a data set, in the order in which its data pass them."""
    found: list[DatasetOp] = []
    is_ordered = dataset.options().deterministic is not False
    while dataset is not None:
        inner = getattr(dataset, "_dataset", None)
        if inner is not None and type(dataset).__name__.endswith("Adapter"):
            dataset = inner
            continue
        inputs = dataset._inputs()
        found.append(_op_of(dataset, key_of, is_ordered, len(inputs)))
        dataset = inputs[0] if len(inputs) == 1 else None
    return tuple(reversed(found))


def _op_of(dataset: Any, key_of: KeyOf, is_ordered: bool, inputs: int) -> DatasetOp:
    import tensorflow as tf

    kind = kind_of(type(dataset).__name__)
    declared = str(getattr(dataset, "_deterministic", "default")).lower()
    function, body = None, ()
    if (wrapped := getattr(dataset, "_map_func", None)) is not None:
        function, body = _function_of(wrapped.function, key_of)
    batch_size = tf.get_static_value(getattr(dataset, "_batch_size", None)) if hasattr(dataset, "_batch_size") else None
    return DatasetOp(
        kind="Zip" if inputs > 1 and kind not in ("Concatenate", "DirectedInterleave") else kind,
        function=function,
        body=body,
        is_deterministic=declared == "true" or (declared not in ("false",) and is_ordered),
        batch_size=None if batch_size is None else int(batch_size),
        components=_components(zip(dataset._flat_types, dataset._flat_shapes, strict=True)),
    )


def _function_of(concrete: Any, key_of: KeyOf) -> tuple[Summary, tuple[str, ...]]:
    graph = concrete.graph
    captured = {
        inner.op.name: key_of(outer, inner.op.name) for outer, inner in graph.captures if inner.dtype.name == "resource"
    }
    arguments = [each.op.name for each in graph.inputs]
    graph_def = graph.as_graph_def()
    return summary_of(graph_def, captured, arguments), _names(graph_def)


def _names(graph_def: Any) -> tuple[str, ...]:
    """Return the names of all operations of a graph, including its functions."""
    nodes = [node.name for node in graph_def.node if node.op not in ("Placeholder", "Const")]
    return (*nodes, *(node.name for each in graph_def.library.function for node in each.node_def))


def _components(pairs: Any) -> tuple[Component, ...]:
    return tuple(Component(dtype.name, _shape(shape)) for dtype, shape in pairs)


def _shape(shape: Any) -> tuple[int | None, ...] | None:
    return None if shape.rank is None else tuple(shape.as_list())


def datasets_of(dataset: Any) -> list[Any]:
    """Return the data set object of each operation of a pipeline, in the order in which data pass them."""
    found: list[Any] = []
    while dataset is not None:
        if type(dataset).__name__.endswith("Adapter"):
            dataset = dataset._dataset
            continue
        found.append(dataset)
        inputs = dataset._inputs()
        dataset = inputs[0] if len(inputs) == 1 else None
    return found[::-1]

"""A tf.data pipeline as a list of its operations: from objects of Python, or from a graph of TensorFlow 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .datasets import Component, DatasetOp, kind_of
from .reading import Reading, Summary, needed_for, summary_of

KeyOf = Callable[[Any, str], str]
"""Gives the key of a resource that a function captures, from its handle and a name for people."""


def pipeline_of(dataset: Any, key_of: KeyOf) -> tuple[DatasetOp, ...]:
    """Return the operations of a dataset object, in the order of the data."""
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
    """Return the names of all operations of a graph and its functions."""
    nodes = [node.name for node in graph_def.node if node.op not in ("Placeholder", "Const")]
    return (*nodes, *(node.name for each in graph_def.library.function for node in each.node_def))


def _components(pairs: Any) -> tuple[Component, ...]:
    return tuple(Component(dtype.name, _shape(shape)) for dtype, shape in pairs)


def _shape(shape: Any) -> tuple[int | None, ...] | None:
    return None if shape.rank is None else tuple(shape.as_list())


def pipeline_in_graph(graph_def: Any, reading: Reading, last: Any) -> tuple[DatasetOp, ...]:
    """Return the operations of a pipeline in a graph, in the order of the data. last: its last operation."""
    found: list[DatasetOp] = []
    operation, is_ordered = last, True
    while operation is not None:
        inputs = [tensor for tensor in operation.inputs if tensor.dtype.name == "variant"]
        made = _op_in_graph(graph_def, reading, operation, len(inputs))
        is_ordered = is_ordered and (made.kind != "Options" or made.is_deterministic)
        found.append(made)
        operation = inputs[0].op if len(inputs) == 1 else None
    if not is_ordered:
        found = [_unordered(each) for each in found]
    return tuple(reversed(found))


def _unordered(op: DatasetOp) -> DatasetOp:
    from dataclasses import replace

    return replace(op, is_deterministic=False)


def _op_in_graph(graph_def: Any, reading: Reading, operation: Any, inputs: int) -> DatasetOp:
    import tensorflow as tf

    kind = kind_of(operation.type)
    attributes = operation.node_def.attr
    function, body = None, ()
    name = attributes["f"].func.name if "f" in attributes else ""
    if name:
        function, body = _function_in_graph(reading, operation, name)
    batch_size = None
    if kind in ("Batch", "ParallelBatch", "MapAndBatch"):
        captured = len(attributes["Targuments"].list.type)
        scalars = [tensor for tensor in operation.inputs if tensor.dtype.name != "variant"][captured:]
        value = tf.get_static_value(scalars[0]) if scalars else None
        batch_size = None if value is None else int(value)
    return DatasetOp(
        kind="Zip" if inputs > 1 and kind not in ("Concatenate", "DirectedInterleave") else kind,
        name=operation.name,
        function=function,
        body=body,
        is_deterministic=_is_ordered(kind, attributes),
        batch_size=batch_size,
        components=_components(zip(*types_and_shapes(operation), strict=True)),
    )


def types_and_shapes(operation: Any) -> tuple[list[Any], list[Any]]:
    """Return the types and shapes of the elements of a data set's operation."""
    import tensorflow as tf

    attributes = operation.node_def.attr
    types = attributes["output_types" if "output_types" in attributes else "Toutput_types"].list.type
    shapes = attributes["output_shapes"].list.shape
    return [tf.as_dtype(each) for each in types], [tf.TensorShape(each) for each in shapes]


def _is_ordered(kind: str, attributes: Any) -> bool:
    from tensorflow.core.framework.dataset_options_pb2 import Options

    if kind == "Options":
        options = Options.FromString(attributes["serialized_options"].s)
        return options.deterministic or options.WhichOneof("optional_deterministic") is None
    return attributes["deterministic"].s not in (b"false",) and not attributes["sloppy"].b


def _function_in_graph(reading: Reading, operation: Any, name: str) -> tuple[Summary, tuple[str, ...]]:
    """Return the effects of a map's function, with its captured inputs for the last of its arguments."""
    found = reading.summary(name)
    captured = [tensor for tensor in operation.inputs if tensor.dtype.name != "variant"]
    count = len(reading.functions[name].signature.input_arg)
    captured = captured[: len(operation.get_attr("Targuments"))]

    def outer(key: str | int) -> str | int:
        place = key - (count - len(captured)) if isinstance(key, int) else 0
        return reading.resource_of(captured[place]) if isinstance(key, int) and place >= 0 else key

    summary = Summary(
        found.effects, frozenset(map(outer, found.reads)), frozenset(map(outer, found.writes)), found.detail
    )
    return summary, tuple(node.name for node in reading.functions[name].node_def)


def dataset_operation(reading: Reading, source: Any, initialized: Sequence[str] = ()) -> tuple[Any, Reading] | None:
    """Return the last operation of the pipeline behind a source in a graph of TensorFlow 1, and where it is.

    initialized: MakeIterator operations that the program ran, the last one last: an iterator may have several.
    """
    iterator = source.inputs[0].op
    if iterator.type == "OneShotIterator":
        name = iterator.get_attr("dataset_factory").name
        return _last_in_factory(reading, name)
    makers = [
        each
        for each in reading.graph.get_operations()
        if each.type == "MakeIterator" and reading.resource_of(each.inputs[1]) == reading.resource_of(source.inputs[0])
    ]
    chosen = {each.name: each for each in makers}
    last = next((name for name in reversed(initialized) if name in chosen), "")
    if not makers or (len(makers) > 1 and not last):
        return None
    return (chosen[last] if last else makers[0]).inputs[0].op, reading


def _last_in_factory(reading: Reading, name: str) -> tuple[Any, Reading] | None:
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def

    function = reading.functions.get(name)
    if function is None:
        return None
    graph_def, flat = function_def_to_graph_def(function)
    graph_def.library.CopyFrom(reading.graph_def.library)
    inside = Reading(graph_def, {}, [each.name for each in function.signature.input_arg])
    result = flat[next(iter(function.ret.values()))]
    operation = inside.graph.get_operation_by_name(result.partition(":")[0])
    needed_for(inside.graph, [operation.name])
    while operation.type == "Identity":
        operation = operation.inputs[0].op
    return operation, inside

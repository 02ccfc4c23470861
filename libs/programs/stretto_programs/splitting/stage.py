"""The maps that move, as a function of a raw element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graphs.pipeline_reading import KeyOf, datasets_of, pipeline_of
from ..partition.pipelines import MAPS, PASSED, SOURCES
from .opening import Opening
from .remaking import STATELESS, made_again, map_again

NEUTRAL = frozenset({"Shuffle", "Repeat", "Prefetch", "Options", "Take", "Skip", "Shard", "AssertCardinality", "Model"})
"""Operations that a sample element can do without: they change which elements come, not how an element looks."""


def staged(opening: Opening, raw: Sequence[Any]) -> list[Any]:
    """Return the tensors that the data set would give for a raw element. Called while a graph is built."""
    from tensorflow.python.ops import gen_dataset_ops

    if not opening.has_stage:
        return [*raw]
    shapes = [each.shape[1:] if opening.batch is not None else each.shape for each in raw]
    make = gen_dataset_ops.tensor_slice_dataset if opening.batch is not None else gen_dataset_ops.tensor_dataset
    variant: Any = make(components=[*raw], output_shapes=shapes)
    last: Any = opening.source
    for each in opening.maps_before:
        variant, last = _mapped(variant, each), each
    if opening.batch is not None:
        import tensorflow as tf

        variant = gen_dataset_ops.batch_dataset_v2(
            variant,
            batch_size=tf.shape(raw[0], tf.int64)[0],
            drop_remainder=False,
            output_types=opening.batch._flat_types,
            output_shapes=opening.batch._flat_shapes,
        )
        last = opening.batch
    for each in opening.maps_after:
        variant, last = _mapped(variant, each), each
    element: Any = gen_dataset_ops.dataset_to_single_element(
        variant, output_types=last._flat_types, output_shapes=last._flat_shapes
    )
    return [*element]


def _mapped(variant: Any, dataset: Any) -> Any:
    from tensorflow.python.ops import gen_dataset_ops

    function = dataset._map_func.function
    return gen_dataset_ops.map_dataset(
        variant,
        function.captured_inputs,
        f=function,
        output_types=dataset._flat_types,
        output_shapes=dataset._flat_shapes,
    )


def sample_of(opening: Opening, key_of: KeyOf) -> list[Any] | None:
    """Return a raw element that looks like the elements of the source.

    None: an operation of the source might keep a state of its own. The program's iterators and orders stay as they are.
    """
    ops, datasets = pipeline_of(opening.source, key_of), datasets_of(opening.source)
    if ops[0].kind not in SOURCES or any(op.kind not in PASSED.keys() | MAPS for op in ops[1:]):
        return None
    if any(op.function is not None and op.function.effects - STATELESS for op in ops):
        return None
    import tensorflow as tf

    source = datasets[0]
    for op, each in zip(ops[1:], datasets[1:], strict=True):
        if op.kind in MAPS:
            source = map_again(each, source)
            if source is None:
                return None
        elif op.kind not in NEUTRAL:
            source = made_again(each, op.kind, source)
    for element in source.take(1):
        return tf.nest.flatten(element)
    return None

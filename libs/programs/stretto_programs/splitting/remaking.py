"""Operations of a data set made again on another input, with the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ..partition.effects import Effect

STATELESS = frozenset({Effect.PURE, Effect.CHECK, Effect.HANDLE, Effect.READS})
"""Effects with which a function keeps no state of its own, so that it may run twice."""


def made_again(dataset: Any, kind: str, source: Any) -> Any:
    """Return an operation of a data set, made again on another input."""
    return REMAKES[kind](dataset, source)


def _shuffle(dataset: Any, source: Any) -> Any:
    """Return a shuffle with the same seeds. The constructor would draw others if the program gave none."""
    from tensorflow.python.data.ops import dataset_ops, shuffle_op
    from tensorflow.python.ops import gen_dataset_ops

    made: Any = object.__new__(vars(shuffle_op)["_ShuffleDataset"])
    for name in ("_buffer_size", "_seed", "_seed2", "_reshuffle_each_iteration", "_name"):
        setattr(made, name, getattr(dataset, name))
    made._input_dataset = source
    variant = gen_dataset_ops.shuffle_dataset_v3(
        source._variant_tensor,
        buffer_size=dataset._buffer_size,
        seed=dataset._seed,
        seed2=dataset._seed2,
        seed_generator=gen_dataset_ops.dummy_seed_generator(),
        reshuffle_each_iteration=dataset._reshuffle_each_iteration,
        **made._common_args,
    )
    dataset_ops.UnaryUnchangedStructureDataset.__init__(made, source, variant)
    return made


def _options(dataset: Any, source: Any) -> Any:
    return source.with_options(dataset.options())


def _batch(dataset: Any, source: Any) -> Any:
    return source.batch(dataset._batch_size, drop_remainder=dataset._drop_remainder)


def _cardinality(dataset: Any, source: Any) -> Any:
    import tensorflow as tf

    return source.apply(tf.data.experimental.assert_cardinality(dataset._expected_cardinality))


REMAKES: Mapping[str, Callable[[Any, Any], Any]] = {
    "Shuffle": _shuffle,
    "Repeat": lambda dataset, source: source.repeat(dataset._count),
    "Take": lambda dataset, source: source.take(dataset._count),
    "Skip": lambda dataset, source: source.skip(dataset._count),
    "Shard": lambda dataset, source: source.shard(dataset._num_shards, dataset._index),
    "Prefetch": lambda dataset, source: source.prefetch(int(dataset._buffer_size)),
    "Batch": _batch,
    "ParallelBatch": _batch,
    "Options": _options,
    "AssertCardinality": _cardinality,
}
"""Functions that make an operation again on another input, by the kind of the operation."""


def map_again(dataset: Any, source: Any) -> Any:
    """Return a map, made again on another input; None if elements are not plain tensors."""
    import tensorflow as tf

    function, spec = dataset._map_func.function, dataset.element_spec
    if any(not isinstance(one, tf.TensorSpec) for one in tf.nest.flatten((source.element_spec, spec))):
        return None
    return source.map(lambda *raw: _called(function, spec, raw))


def _called(call: Any, spec: Any, raw: Collection[Any]) -> Any:
    import tensorflow as tf

    return tf.nest.pack_sequence_as(spec, call(*tf.nest.flatten([*raw])))

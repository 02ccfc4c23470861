"""A data set of the program, opened for running: the source that stays at home, and the function of one raw element.

The source is made of the program's own objects up to the first map that moves. The operations behind it are made again
without the maps, with the same seeds; so it draws the same orders, pass after pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ProgramRefused
from ..partition.dataset_reading import KeyOf, pipeline_of
from ..partition.datasets import BATCHES, MAPS, PASSED, SOURCES, opened
from ..partition.effects import Effect, effect_of
from ..programs.tf2 import datasets_of

NEUTRAL = frozenset({"Shuffle", "Repeat", "Prefetch", "Options", "Take", "Skip", "Shard", "AssertCardinality", "Model"})
"""Operations that a sample does without: they change which elements come, and not how one looks."""


@dataclass
class Drawn:
    """Iterators that were made over each shuffle: each draws the seeds of its order."""

    counts: dict[int, int] = field(default_factory=dict[int, int])
    kept: list[Any] = field(default_factory=list[Any])

    def made(self, dataset: Any) -> None:
        """Note an iterator over a data set."""
        for each in all_of(dataset):
            if "ShuffleDataset" in type(each).__name__:
                self.made_one(each)

    def made_one(self, shuffle: Any) -> None:
        """Note an iterator over one shuffle."""
        if id(shuffle) not in self.counts:
            self.kept.append(shuffle)  # an identity is only one while its object lives
        self.counts[id(shuffle)] = self.counts.get(id(shuffle), 0) + 1

    def of(self, dataset: Any) -> int:
        """Return the iterators made over a shuffle."""
        return self.counts.get(id(dataset), 0)


@dataclass(frozen=True)
class Opening:
    """A data set, opened.

    source: pulls raw elements. maps_before, maps_after: maps of each element, and of the batch of them. batch: the data
    set that makes the batch, None: a raw element is one element. shuffles: the program's own that `source` has anew,
    each with its twin. moved: names for people.
    """

    dataset: Any
    source: Any
    maps_before: tuple[Any, ...]
    batch: Any
    maps_after: tuple[Any, ...]
    shuffles: tuple[tuple[Any, Any], ...]
    moved: tuple[str, ...]
    ended_by: str

    @property
    def has_stage(self) -> bool:
        """Return whether maps move."""
        return bool(self.maps_before or self.maps_after)


def all_of(dataset: Any) -> Iterator[Any]:
    """Return a data set and all that it is made of."""
    waiting = [dataset]
    while waiting:
        each = waiting.pop()
        inner = getattr(each, "_dataset", None)
        yield each
        waiting += [inner] if inner is not None and type(each).__name__.endswith("Adapter") else each._inputs()


def open_dataset(
    dataset: Any, key_of: KeyOf, written: frozenset[str], is_fixed: Callable[[Any], bool], drawn: Drawn
) -> Opening:
    """Open a data set. is_fixed: tells of a resource's handle whether nothing can change it any more.

    Raises ProgramRefused: the source may not run ahead of the training.
    """
    changing: set[str] = set()

    def key(handle: Any, name: str) -> str:
        found = key_of(handle, name)
        if not is_fixed(handle):
            changing.add(found)
        return found

    ops, datasets = pipeline_of(dataset, key), datasets_of(dataset)
    found = opened(ops, written | changing)
    maps = [place for place, op in enumerate(ops) if op.kind in MAPS]
    places = maps[len(maps) - len(found.maps) :]
    start = _start(places, datasets, [op.kind for op in ops], drawn)
    kept = datasets if start is None else datasets[:start]
    for each in kept[-1:]:
        _check_source(each, is_fixed)
    if start is None:
        return Opening(dataset, dataset, (), None, (), (), (), found.ended_by)
    source, before, after, batch = datasets[start - 1], [], [], None
    shuffles: list[tuple[Any, Any]] = []
    for op, each in zip(ops[start:], datasets[start:], strict=True):
        if op.kind in MAPS:
            (before if batch is None else after).append(each)
            continue
        source = made_again(each, op.kind, source)
        if op.kind == "Shuffle":
            shuffles.append((each, source))
        if op.kind in BATCHES:
            batch = each
    if batch is None:
        before, after = [], before
    moved = tuple(f"{op.kind} {op.name}".strip() for op in ops[start:] if op.kind in MAPS)
    return Opening(dataset, source, tuple(before), batch, tuple(after), tuple(shuffles), moved, found.ended_by)


def _start(places: Sequence[int], datasets: Sequence[Any], kinds: Sequence[str], drawn: Drawn) -> int | None:
    """Return the place of the first map that moves; None if none can."""
    for start in places:
        behind = range(start, len(kinds))
        batches = [place for place in behind if kinds[place] in BATCHES]
        shuffles = [place for place in behind if kinds[place] == "Shuffle"]
        repeats = [place for place in behind if kinds[place] == "Repeat"]
        if (
            start > 0
            and len(batches) <= 1
            and all(kinds[place] in REMAKES.keys() | {"Map", "ParallelMap"} for place in behind)
            and not any(drawn.of(datasets[place]) and any(after > place for after in repeats) for place in shuffles)
            and _is_plain(datasets[start - 1], has_batch=bool(batches))
        ):
            return start
    return None


def _is_plain(dataset: Any, *, has_batch: bool) -> bool:
    """Return whether elements are tensors that travel, and of one shape where they are put together."""
    import tensorflow as tf

    specs = tf.nest.flatten(dataset.element_spec)
    return all(
        isinstance(each, tf.TensorSpec)
        and each.dtype.name not in ("variant", "resource")
        and (not has_batch or each.shape.is_fully_defined())
        for each in specs
    )


def check_travels(dataset: Any) -> None:
    """Raise ProgramRefused where elements of a data set do not travel."""
    if not _is_plain(dataset, has_batch=False):
        raise ProgramRefused("its elements are sparse, ragged or other values that do not travel as they are")


def _check_source(dataset: Any, is_fixed: Callable[[Any], bool]) -> None:
    """Refuse a source whose functions could see the training, or be seen: home pulls elements before their steps."""
    for each in all_of(dataset):
        title = type(each).__name__.strip("_")
        if "Generator" in title:
            raise ProgramRefused(f"{title} runs Python code of the program, which must not run ahead of the training")
        wrappers = [value for value in vars(each).values() if type(value).__name__ == "StructuredFunctionWrapper"]
        for wrapper in wrappers:
            graph = wrapper.function.graph
            changing = [
                outer for outer, inner in graph.captures if inner.dtype.name == "resource" and not is_fixed(outer)
            ]
            if changing:
                raise ProgramRefused(
                    f"{title} uses a variable or a table, which must not be read ahead of the training"
                )
            graph_def = graph.as_graph_def()
            nodes = [*graph_def.node, *(node for one in graph_def.library.function for node in one.node_def)]
            for node in nodes:
                if effect_of(node.op) in (Effect.PYTHON, Effect.OUTSIDE) or "Generator" in node.op:
                    raise ProgramRefused(f"{title} runs {node.op}, which must not run ahead of the training")


# --- operations made again --------------------------------------------------------------------------------------------


def made_again(dataset: Any, kind: str, source: Any) -> Any:
    """Return an operation of a data set on another input."""
    return REMAKES[kind](dataset, source)


def _shuffle(dataset: Any, source: Any) -> Any:
    """Shuffle with the same seeds: the constructor would draw others where the program gave none."""
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
"""Makes an operation again on another input, by its kind."""


# --- the stage --------------------------------------------------------------------------------------------------------


def staged(opening: Opening, raw: Sequence[Any]) -> list[Any]:
    """Return the tensors that the data set would have given for a raw element; called while a graph is made."""
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
    """Return a raw element like those of the source; the program's own iterators and orders stay as they are.

    Return None where that cannot be: an operation of the source might keep a state of its own.
    """
    ops, datasets = pipeline_of(opening.source, key_of), datasets_of(opening.source)
    if ops[0].kind not in SOURCES or any(op.kind not in PASSED.keys() | MAPS for op in ops[1:]):
        return None
    pure = frozenset({Effect.PURE, Effect.CHECK, Effect.HANDLE, Effect.READS})
    if any(op.function is not None and op.function.effects - pure for op in ops):
        return None
    import tensorflow as tf

    source = datasets[0]
    for op, each in zip(ops[1:], datasets[1:], strict=True):
        if op.kind in MAPS:
            function = each._map_func.function
            spec = each.element_spec
            if any(not isinstance(one, tf.TensorSpec) for one in tf.nest.flatten((source.element_spec, spec))):
                return None
            source = source.map(lambda *raw, call=function, spec=spec: _called(call, spec, raw))
        elif op.kind not in NEUTRAL:
            source = made_again(each, op.kind, source)
    for element in source.take(1):
        return tf.nest.flatten(element)
    return None


def _called(call: Any, spec: Any, raw: Collection[Any]) -> Any:
    import tensorflow as tf

    return tf.nest.pack_sequence_as(spec, call(*tf.nest.flatten([*raw])))

"""A data set of the program, opened for running: the source that stays at home, and the function of one raw element.

The source is made of the program's own objects up to its first shuffle. The operations behind it are made again without
the maps that move, with the same seeds; so it draws the same orders as the program's own, pass after pass, and leaves
those to the program. Where an operation cannot be made again, the source has the program's own up to the first map that
moves: then it draws their orders itself (`is_apart` is false).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import ProgramRefused
from ..partition.dataset_reading import KeyOf, pipeline_of
from ..partition.datasets import BATCHES, MAPS, PASSED, SOURCES, DatasetOp, opened
from ..partition.effects import Effect, effect_of
from ..programs.tf2 import Resources, datasets_of

NEUTRAL = frozenset({"Shuffle", "Repeat", "Prefetch", "Options", "Take", "Skip", "Shard", "AssertCardinality", "Model"})
"""Operations that a sample does without: they change which elements come, and not how one looks."""


PURE = frozenset({Effect.PURE, Effect.CHECK, Effect.HANDLE, Effect.READS})
"""Effects of a function that may be made again: it has no state of its own."""


Orders = Mapping[int, int]
"""The number of the order that an iterator has drawn, by the identity of the shuffle."""


@dataclass
class Drawn:
    """Iterators that were made over each shuffle: each draws the seeds of its order."""

    counts: WeakKeyDictionary[Any, int] = field(default_factory=WeakKeyDictionary[Any, int])

    def made(self, dataset: Any) -> None:
        """Note an iterator over a data set."""
        for each in shuffles_of(dataset):
            self.made_one(each)

    def made_one(self, shuffle: Any) -> None:
        """Note an iterator over one shuffle."""
        self.counts[shuffle] = self.of(shuffle) + 1

    def of(self, shuffle: Any) -> int:
        """Return the iterators made over a shuffle."""
        return self.counts.get(shuffle, 0)

    def at(self, dataset: Any) -> Orders:
        """Return the numbers of the orders that the iterator made last over a data set has drawn."""
        return {id(each): self.of(each) for each in shuffles_of(dataset)}


@dataclass(frozen=True)
class Opening:
    """A data set, opened.

    source: pulls raw elements. maps_before, maps_after: maps of each element, and of the batch of them. batch: the data
    set that makes the batch, None: a raw element is one element. shuffles: the program's own that `source` has anew,
    each with its twin, in the order of the data. moved: names for people. is_apart: the source has none of the
    program's own shuffles. is_single: a shuffle draws orders while an iterator runs, for a repeat behind it.
    """

    dataset: Any
    source: Any
    maps_before: tuple[Any, ...]
    batch: Any
    maps_after: tuple[Any, ...]
    shuffles: tuple[tuple[Any, Any], ...]
    moved: tuple[str, ...]
    ended_by: str
    is_apart: bool
    is_single: bool

    @property
    def has_stage(self) -> bool:
        """Return whether maps move."""
        return bool(self.maps_before or self.maps_after)

    @property
    def stage_key(self) -> tuple[object, ...]:
        """Return what openings have in common whose stages are the same function."""
        return self._key(lambda wrapper: wrapper.function)

    @property
    def code_key(self) -> tuple[object, ...]:
        """Return what openings have in common whose stages cost the same: the code, whatever it has captured."""
        return self._key(lambda wrapper: getattr(getattr(wrapper, "_func", None), "__code__", wrapper.function))

    def _key(self, key_of: Callable[[Any], object]) -> tuple[object, ...]:
        batch = self.batch and (tuple(self.batch._flat_types), tuple(map(str, self.batch._flat_shapes)))
        maps = tuple(tuple(key_of(each._map_func) for each in part) for part in (self.maps_before, self.maps_after))
        return (*maps, batch, str(self.source.element_spec))


def all_of(dataset: Any) -> Iterator[Any]:
    """Return a data set and all that it is made of."""
    waiting = [dataset]
    while waiting:
        each = waiting.pop()
        inner = getattr(each, "_dataset", None)
        yield each
        waiting += [inner] if inner is not None and type(each).__name__.endswith("Adapter") else each._inputs()


def shuffles_of(dataset: Any) -> Iterator[Any]:
    """Return the shuffles that a data set is made of."""
    return (each for each in all_of(dataset) if "ShuffleDataset" in type(each).__name__)


def open_dataset(dataset: Any, is_fixed: Callable[[Any], bool], drawn: Callable[[Any], int]) -> Opening:
    """Open a data set. is_fixed: tells of a resource's handle whether nothing can change it any more.

    drawn: counts the iterators over a shuffle that were made before. Raises ProgramRefused: the source may not run
    ahead of the training.
    """
    changing: set[str] = set()
    resources = Resources()

    def key(handle: Any, name: str) -> str:
        found = resources.key(handle, name)
        if not is_fixed(handle):
            changing.add(found)
        return found

    ops, datasets = pipeline_of(dataset, key), datasets_of(dataset)
    kinds = [op.kind for op in ops]
    found = opened(ops, frozenset(changing))
    maps = [place for place, kind in enumerate(kinds) if kind in MAPS]
    places = maps[len(maps) - len(found.maps) :]
    shuffles_at = [place for place, kind in enumerate(kinds) if kind == "Shuffle"]
    under_repeat = [datasets[place] for place in shuffles_at if "Repeat" in kinds[place:]]
    drawn_while_running = [each for each in under_repeat if drawn(each)]
    start = _start(places, datasets, kinds, drawn_while_running)
    end = len(datasets) if start is None else start
    _check_source(datasets[end - 1], is_fixed)
    apart = None if drawn_while_running else _made_apart(ops[:end], datasets[:end])
    source, shuffles = apart or (datasets[end - 1], [])
    before, after, batch = [], [], None
    for op, each in zip(ops[end:], datasets[end:], strict=True):
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
    return Opening(
        dataset=dataset,
        source=source,
        maps_before=tuple(before),
        batch=batch,
        maps_after=tuple(after),
        shuffles=tuple(shuffles),
        moved=tuple(op.kind for op in ops[end:] if op.kind in MAPS),
        ended_by=found.ended_by,
        is_apart=apart is not None,
        is_single=bool(under_repeat),
    )


def has_fixed_order(dataset: Any) -> bool:
    """Return whether a second iterator that draws the same seeds gives the same elements in the same order."""
    import tensorflow as tf

    if dataset.options().deterministic is False:
        return False
    return all(any(tf.get_static_value(seed) for seed in (each._seed, each._seed2)) for each in shuffles_of(dataset))


def _made_apart(ops: Sequence[DatasetOp], datasets: Sequence[Any]) -> tuple[Any, list[tuple[Any, Any]]] | None:
    """Return the end of a pipeline with shuffles of its own, and these behind the program's; None if it has others."""
    first = next((place for place, op in enumerate(ops) if op.kind == "Shuffle"), len(ops))
    source = datasets[first - 1]
    if any("Shuffle" in name or "Random" in name for name in (type(each).__name__ for each in all_of(source))):
        return None
    shuffles: list[tuple[Any, Any]] = []
    for op, each in zip(ops[first:], datasets[first:], strict=True):
        if op.kind in MAPS and op.function is not None and not op.function.effects - PURE:
            made = _mapped_again(each, source)
            if made is None:
                return None
            source = made
        elif op.kind in REMAKES:
            source = made_again(each, op.kind, source)
        else:
            return None
        if op.kind == "Shuffle":
            shuffles.append((each, source))
    return source, shuffles


def _start(
    places: Sequence[int], datasets: Sequence[Any], kinds: Sequence[str], drawn_while_running: Sequence[Any]
) -> int | None:
    """Return the place of the first map that moves; None if none can.

    drawn_while_running: shuffles of which nobody knows how many orders they have drawn.
    """
    for start in places:
        behind = range(start, len(kinds))
        batches = [place for place in behind if kinds[place] in BATCHES]
        if (
            start > 0
            and len(batches) <= 1
            and all(kinds[place] in REMAKES.keys() | {"Map", "ParallelMap"} for place in behind)
            and not any(datasets[place] is each for place in behind for each in drawn_while_running)
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
    if any(op.function is not None and op.function.effects - PURE for op in ops):
        return None
    import tensorflow as tf

    source = datasets[0]
    for op, each in zip(ops[1:], datasets[1:], strict=True):
        if op.kind in MAPS:
            source = _mapped_again(each, source)
            if source is None:
                return None
        elif op.kind not in NEUTRAL:
            source = made_again(each, op.kind, source)
    for element in source.take(1):
        return tf.nest.flatten(element)
    return None


def _mapped_again(dataset: Any, source: Any) -> Any:
    """Return a map on another input; None where elements are no plain tensors."""
    import tensorflow as tf

    function, spec = dataset._map_func.function, dataset.element_spec
    if any(not isinstance(one, tf.TensorSpec) for one in tf.nest.flatten((source.element_spec, spec))):
        return None
    return source.map(lambda *raw: _called(function, spec, raw))


def _called(call: Any, spec: Any, raw: Collection[Any]) -> Any:
    import tensorflow as tf

    return tf.nest.pack_sequence_as(spec, call(*tf.nest.flatten([*raw])))

"""A data set of the program, opened: the source that stays at home, and the maps that move.

Up to its first shuffle the source consists of the program's own objects. The operations behind are made again with the
same seeds and without the maps that move; so the source draws the orders that the program's own pipeline would draw,
and leaves those to the program. Where an operation cannot be made again, the source is the program's own pipeline up to
the first map that moves, and draws the program's own orders (`is_apart` is false).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ProgramRefused
from ..graphs.pipeline_reading import datasets_of, pipeline_of
from ..graphs.resources import Resources
from ..graphs.shuffles import all_of
from ..partition.effects import Effect, effect_of
from ..partition.pipelines import BATCHES, MAPS, DatasetOp, opened
from .remaking import REMAKES, STATELESS, made_again, map_again


@dataclass(frozen=True)
class Opening:
    """A data set, opened.

    source: gives raw elements. maps_before, maps_after: maps of each element, and of a batch of elements. batch: the
    data set that makes the batch; None: a raw element is a single element. shuffles: shuffles of the program that the
    source has again, each with its twin in the source, in the order of the data. moved: names of the maps, for people.
    ended_by: the operation that no further map can pass, and why. has_kept: maps stay at home because of it.
    is_apart: the source shares no shuffle with the program. is_single: a shuffle lies under a repeat, and draws orders
    while an iterator runs.
    """

    dataset: Any
    source: Any
    maps_before: tuple[Any, ...]
    batch: Any
    maps_after: tuple[Any, ...]
    shuffles: tuple[tuple[Any, Any], ...]
    moved: tuple[str, ...]
    ended_by: str
    has_kept: bool
    is_apart: bool
    is_single: bool

    @property
    def has_stage(self) -> bool:
        """Return whether any map moves."""
        return bool(self.maps_before or self.maps_after)

    @property
    def stage_key(self) -> tuple[object, ...]:
        """Return a key that is equal for openings whose maps are the same functions."""
        return self._key(lambda wrapper: wrapper.function)

    @property
    def code_key(self) -> tuple[object, ...]:
        """Return a key that is equal for openings whose maps run the same code, whatever values it has captured."""
        return self._key(lambda wrapper: getattr(getattr(wrapper, "_func", None), "__code__", wrapper.function))

    def _key(self, key_of: Callable[[Any], object]) -> tuple[object, ...]:
        batch = self.batch and (tuple(self.batch._flat_types), tuple(map(str, self.batch._flat_shapes)))
        maps = tuple(tuple(key_of(each._map_func) for each in part) for part in (self.maps_before, self.maps_after))
        return (*maps, batch, str(self.source.element_spec))


def open_dataset(dataset: Any, is_fixed: Callable[[Any], bool], drawn: Callable[[Any], int]) -> Opening:
    """Open a data set. Raises ProgramRefused: its source must not run ahead of the training.

    is_fixed: returns whether the resource of a handle can never change. drawn: returns how many orders of a shuffle
    were drawn before.
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
        has_kept=bool(found.stays),
        is_apart=apart is not None,
        is_single=bool(under_repeat),
    )


def _made_apart(ops: Sequence[DatasetOp], datasets: Sequence[Any]) -> tuple[Any, list[tuple[Any, Any]]] | None:
    """Return a pipeline with shuffles of its own, and pairs of the program's shuffles and these.

    None: the pipeline cannot be made again.
    """
    first = next((place for place, op in enumerate(ops) if op.kind == "Shuffle"), len(ops))
    source = datasets[first - 1]
    if any("Shuffle" in name or "Random" in name for name in (type(each).__name__ for each in all_of(source))):
        return None
    shuffles: list[tuple[Any, Any]] = []
    for op, each in zip(ops[first:], datasets[first:], strict=True):
        if op.kind in MAPS and op.function is not None and not op.function.effects - STATELESS:
            made = map_again(each, source)
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
    """Return the place of the first map that moves, None if no map can move.

    drawn_while_running: shuffles for which the number of drawn orders is unknown.
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
    """Return whether elements are plain tensors; and, if they are batched later, of a fixed shape."""
    import tensorflow as tf

    specs = tf.nest.flatten(dataset.element_spec)
    return all(
        isinstance(each, tf.TensorSpec)
        and each.dtype.name not in ("variant", "resource")
        and (not has_batch or each.shape.is_fully_defined())
        for each in specs
    )


def check_travels(dataset: Any) -> None:
    """Raise ProgramRefused if elements of a data set cannot be sent to another process."""
    if not _is_plain(dataset, has_batch=False):
        raise ProgramRefused("its elements are sparse, ragged or other values that do not travel as they are")


def _check_source(dataset: Any, is_fixed: Callable[[Any], bool]) -> None:
    """Raise ProgramRefused if functions of a source could see the training, or be seen by it.

    Home pulls raw elements before their steps, and the program must not notice.
    """
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


# --- the stage --------------------------------------------------------------------------------------------------------

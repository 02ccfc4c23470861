"""A tf.data pipeline, opened: which of its maps can run behind the end of the pipeline, and give the same elements.

    range -> map f -> shuffle -> repeat -> batch -> map g -> prefetch
    becomes   range -> shuffle -> repeat -> batch -> prefetch  |  each batch: f of each of its elements, batch them, g

The left part, the source, runs at home in the program's own order and with its own seeds. The right part is a pure
function of a raw batch. A map can pass an operation that never looks at elements: an operation that counts them,
reorders them by numbers that do not depend on them, or puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .effects import STAYS, Effect, Summary
from .graph import ANY

PASSED = {
    "Shuffle": "its order depends on numbers of elements and its seeds only",
    "Repeat": "it counts elements",
    "Take": "it counts elements",
    "Skip": "it counts elements",
    "Shard": "it counts elements",
    "Prefetch": "it keeps the order",
    "Batch": "it puts elements together in their order; the stage does that after its maps",
    "ParallelBatch": "it puts elements together in their order; the stage does that after its maps",
    "Options": "it sets no order",
    "Model": "it sets no order",
    "AssertCardinality": "it counts elements",
}
"""Operations that a pure map can pass, each with the reason."""
MAPS = frozenset({"Map", "ParallelMap", "MapAndBatch"})
BATCHES = frozenset({"Batch", "ParallelBatch", "MapAndBatch"})
SOURCES = frozenset({
    "Range", "TensorSlice", "Tensor", "TextLine", "TFRecord", "FixedLengthRecord", "SparseTensorSlice", "CSV", "List",
})  # fmt: skip
"""Operations without other inputs than constants: a pipeline begins with one."""
ENDS = {
    "Filter": "it drops elements by what they hold, so the maps before it decide the order of what follows",
    "FlatMap": "it makes several elements of one",
    "Interleave": "it makes several elements of one",
    "ParallelInterleave": "it makes several elements of one",
    "Cache": "it keeps what the maps before it made: behind it they would run again in each epoch",
    "MemoryCache": "it keeps what the maps before it made: behind it they would run again in each epoch",
    "Scan": "it carries a state from element to element",
    "TakeWhile": "it ends by what elements hold",
    "Generator": "its elements come from Python code of the program",
    "PaddedBatch": "it pads by what a batch holds",
    "GroupByWindow": "it groups by what elements hold",
    "Unbatch": "it makes several elements of one",
    "Rebatch": "it takes batches apart",
    "Window": "its elements are datasets",
    "Zip": "it has several inputs",
    "Concatenate": "it has several inputs",
    "DirectedInterleave": "it has several inputs",
    "Random": "it draws random numbers",
}
"""Operations that no map may pass, each with the reason."""
JOINED = "without the map behind it, tf.data would join it with the repeat that follows, and draw other orders"
"""Reason for which the first map between a shuffle and a repeat stays.

The rewrite is `shuffle_and_repeat_fusion`: under a second repeat, the joined operation starts its seeds again.
"""
VANISHING = frozenset({"Take", "Skip", "Shard", "Prefetch", "Options", "Model", "AssertCardinality"})
"""Operations that tf.data removes if they do nothing, such as `take(-1)`; their neighbours then meet."""


@dataclass(frozen=True, slots=True)
class Component:
    """A component of an element: type and shape of a tensor; None stands for a size that is not known."""

    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class DatasetOp:
    """An operation of a pipeline.

    kind: type of the operation, without `Dataset` and version. function: effects of its function. body: names of the
    operations in that function. is_deterministic: the operation keeps the order of its input. batch_size: elements of a
    batch, None if not known.
    """

    kind: str
    function: Summary | None = None
    body: tuple[str, ...] = ()
    is_deterministic: bool = True
    batch_size: int | None = None
    components: tuple[Component, ...] = ()


@dataclass(frozen=True)
class Opened:
    """A pipeline, opened; operations are in the order in which data pass them.

    source: operations that stay at home. stage: maps that move, and the batches among them. ended_by: the operation
    that no further map can pass, and why. stays: maps that stay, each with the reason.
    """

    source: tuple[DatasetOp, ...]
    stage: tuple[DatasetOp, ...]
    ended_by: str
    stays: tuple[tuple[DatasetOp, str], ...] = ()
    """Maps that stay, each with the reason."""

    @property
    def maps(self) -> tuple[DatasetOp, ...]:
        """The maps that move."""
        return tuple(each for each in self.stage if each.kind in MAPS)


def opened(pipeline: Sequence[DatasetOp], written: frozenset[str] = frozenset()) -> Opened:
    """Open a pipeline. written: resources that something writes while the pipeline runs."""
    first_open, reason = len(pipeline), ""
    for place in reversed(range(len(pipeline))):
        reason = _obstacle(pipeline[place], written)
        if reason:
            break
        if _would_join(pipeline, place):
            reason = f"{pipeline[place].kind}: {JOINED}"
            first_open = 1 + next(at for at in range(place, len(pipeline)) if pipeline[at].kind in MAPS)
            break
        first_open = place
    if not reason:
        reason = "the beginning of the pipeline"
    inside = pipeline[first_open:]
    first_map = next((place for place, each in enumerate(inside) if each.kind in MAPS), len(inside))
    stage = tuple(each for each in inside[first_map:] if each.kind in MAPS | BATCHES)
    source = (*pipeline[:first_open], *(each for each in inside if each.kind not in MAPS))
    stays = tuple(
        (each, _obstacle(each, written) or f"it does not lie behind {reason}")
        for each in pipeline[:first_open]
        if each.kind in MAPS
    )
    return Opened(source, stage, reason, stays)


def _would_join(pipeline: Sequence[DatasetOp], place: int) -> bool:
    """Return whether a shuffle would meet a repeat if the maps between them moved: then the first of them stays."""
    if pipeline[place].kind != "Shuffle":
        return False
    behind = [each.kind for each in pipeline[place + 1 :] if each.kind not in VANISHING]
    without_maps = [kind for kind in behind if kind not in MAPS]
    return behind[:1] != without_maps[:1] and without_maps[:1] == ["Repeat"]


def _obstacle(op: DatasetOp, written: frozenset[str]) -> str:
    """Return why no map before an operation can pass it, "" if maps can."""
    if op.kind in SOURCES:
        return f"{op.kind}: the beginning of the pipeline"
    if op.kind in ENDS:
        detail = f" ({op.function.detail})" if op.function is not None and op.function.detail else ""
        return f"{op.kind}: {ENDS[op.kind]}{detail}"
    if not op.is_deterministic:
        return f"{op.kind}: it does not keep the order (deterministic is off)"
    if op.kind in PASSED:
        return ""
    if op.kind not in MAPS:
        return f"{op.kind}: it is not among the operations that can be opened"
    if op.function is None:
        return f"{op.kind}: its function cannot be read"
    return _obstacle_of(op.function, written, op.kind)


def _obstacle_of(function: Summary, written: frozenset[str], title: str) -> str:
    for effect in Effect:
        if effect in function.effects & (STAYS | {Effect.SOURCE}):
            what = f" ({function.detail})" if function.detail else ""
            return f"{title}: its function {_EFFECTS[effect]}{what}"
    changing = sorted(str(key) for key in function.reads if str(key) in written or ANY in written)
    return f"{title}: its function reads {changing[0]}, which the training writes" if changing else ""


_EFFECTS = {
    Effect.WRITES: "writes a resource",
    Effect.RANDOM: "draws random numbers",
    Effect.PYTHON: "runs Python code of the program, which can keep state of its own",
    Effect.OUTSIDE: "prints, writes a summary, or uses a file or a queue",
    Effect.FED: "uses a value that Python code passes",
    Effect.SOURCE: "takes samples from elsewhere",
    Effect.UNKNOWN: "has operations that TensorFlow does not call stateless",
}


def kind_of(op_type: str) -> str:
    """Return the kind of an operation: `ParallelMapDatasetV2` and `_ParallelMapDataset` are `ParallelMap`."""
    name = op_type.lstrip("_")
    for suffix in ("V1", "V2", "V3", "V4"):
        name = name.removesuffix(suffix)
    return name.removesuffix("Dataset")


def calls_per_step(pipeline: Sequence[DatasetOp], op: DatasetOp) -> int:
    """Return how often the function of a map runs for an element at the end of the pipeline."""
    calls = 1
    for each in pipeline[pipeline.index(op) :]:
        if each.kind in BATCHES and each.batch_size:
            calls *= each.batch_size
    return calls

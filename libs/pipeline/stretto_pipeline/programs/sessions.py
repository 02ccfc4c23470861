"""Steps of programs that run sessions of TensorFlow 1, those of MonitoredTrainingSession included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from ..partition.dataset_reading import dataset_operation, pipeline_in_graph, types_and_shapes
from ..partition.effects import INITIALIZERS, SOURCES, WRITES
from ..partition.normalise import inlined
from ..partition.reading import Reading, needed_for
from .captured import Captured, Pipeline, ours, size_bytes

FEED = (
    "the samples come by feed_dict from Python code (placeholder {names}): the graph has no source, so nothing before "
    "it can be seen"
)
CHECKPOINTED = (
    "the program checkpoints the iterator of its data set ({name}): a position saved by it would run ahead of the steps"
)
SAMPLED = 8


@dataclass
class _Runs:
    """Runs of the program's sessions so far."""

    initialized: list[str] = field(default_factory=list[str])
    """MakeIterator operations, in the order in which they ran."""
    is_looking: bool = False


def install(take: Callable[[Captured], None]) -> Callable[[], None]:
    """Put the hook in place; return how to take it away."""
    from tensorflow.python.client import session as sessions

    base: Any = sessions.BaseSession
    original = base.run
    runs = _Runs()

    @wraps(original)
    def run(session: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        if not runs.is_looking:
            with ours():
                found = _step_of(session, fetches, feed_dict or {}, runs, original)
            if found is not None:
                runs.is_looking = True  # the step is run, to measure it
                try:
                    take(found)
                finally:  # else a program that catches the end would go on
                    runs.is_looking = False
        return original(session, fetches, feed_dict, options, run_metadata)

    base.run = run

    def undo() -> None:
        base.run = original

    return undo


def _step_of(session: Any, fetches: Any, feed_dict: Mapping[Any, Any], runs: _Runs, run: Any) -> Captured | None:
    """Return the run as a step, if it is one: it takes samples, and writes a variable."""
    from tensorflow.python.client import session as sessions

    fetch_handler: Any = vars(sessions)["_FetchHandler"]
    try:
        handler = fetch_handler(session.graph, fetches, {})
        fetched: list[str] = [tensor.name for tensor in handler.fetches()]
        targets = [operation.name for operation in handler.targets()]
        fed = [session.graph.as_graph_element(key).op.name for key in feed_dict]
    except (TypeError, ValueError, KeyError):  # the run itself tells the program
        return None
    asked = [*targets, *(name.partition(":")[0] for name in fetched)]
    needed = needed_for(session.graph, asked)
    types = {session.graph.get_operation_by_name(name).type for name in needed}
    runs.initialized += [name for name in needed if session.graph.get_operation_by_name(name).type == "MakeIterator"]
    takes_samples = bool(types & SOURCES) or any(name in needed for name in fed)
    if not takes_samples or not types & (WRITES - INITIALIZERS):
        return None
    graph_def, stands_for = inlined(session.graph.as_graph_def())
    fetched = [stands_for.get(name, name) for name in fetched]
    reading = Reading(graph_def, fed=frozenset(fed))
    return _captured(session, reading, targets, fetched, feed_dict, runs, run)


def _captured(
    session: Any,
    reading: Reading,
    targets: Sequence[str],
    fetched: Sequence[str],
    feed_dict: Mapping[Any, Any],
    runs: _Runs,
    run: Any,
) -> Captured:
    needed = needed_for(reading.graph, [*targets, *(name.partition(":")[0] for name in fetched)])
    operations = [reading.graph.get_operation_by_name(name) for name in needed]
    sources = [each for each in operations if each.type in SOURCES]
    refusals = [FEED.format(names=", ".join(sorted(reading.fed & needed)))] if not sources else []
    saved = [each.name for each in reading.graph.get_operations() if each.type == "SerializeIterator"]
    refusals += [CHECKPOINTED.format(name=saved[0])] if saved else []

    def step() -> None:
        run(session, [*targets, *(name for name in fetched if name.partition(":")[0] in needed)], feed_dict)

    def values(names: Sequence[str]) -> dict[str, int]:
        import numpy as np

        names = [name for name in names if session.graph.is_fetchable(name)]
        found = run(session, names, feed_dict)
        return {name: size_bytes(np.asarray(value)) for name, value in zip(names, found, strict=True)}

    return Captured(
        kind="session",
        title="Session.run of " + ", ".join([*targets, *fetched][:3]),
        graph_def=reading.graph_def,
        targets=tuple(targets),
        fetched=tuple(fetched),
        fed=reading.fed,
        written=_written_elsewhere(reading, needed, session.graph),
        pipelines=tuple(
            pipeline for each in sources if (pipeline := _pipeline(reading, each, runs.initialized)) is not None
        ),
        step=session,
        refusals=tuple(refusals),
        run=step,
        values=values,
    )


def _pipeline(reading: Reading, source: Any, initialized: Sequence[str]) -> Pipeline | None:
    if not source.type.startswith("IteratorGetNext"):
        return None
    found = dataset_operation(reading, source, initialized)
    if found is None:
        return None
    operation, inside = found
    ops = pipeline_in_graph(inside.graph_def, inside, operation)
    return Pipeline(source.name, ops, lambda place: _sampled(inside, ops[place].name))


def _sampled(reading: Reading, name: str) -> Sequence[int] | None:
    """Return the mean bytes of each component of a data set's elements, read in a session of its own."""
    import numpy as np
    import tensorflow as tf

    rows: list[list[int]] = []
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(reading.graph_def, name="")
        operation = graph.get_operation_by_name(name)
        types, shapes = types_and_shapes(operation)
        iterator = tf.raw_ops.IteratorV2(
            shared_name="", container="", output_types=types, output_shapes=shapes, name="stretto_sample"
        )
        made = tf.raw_ops.MakeIterator(dataset=operation.outputs[0], iterator=iterator)
        element = tf.raw_ops.IteratorGetNext(iterator=iterator, output_types=types, output_shapes=shapes)
        with tf.compat.v1.Session() as session:
            session.run(made)
            try:
                for _ in range(SAMPLED):
                    rows.append([size_bytes(np.asarray(each)) for each in session.run(element)])
            except tf.errors.OutOfRangeError:
                pass
    return [sum(column) // len(rows) for column in zip(*rows, strict=True)] if rows else None


def _written_elsewhere(reading: Reading, needed: set[str], graph: Any) -> dict[str, str]:
    """Return the resources that other runs of the graph may write: not those that initialise or restore them."""
    initializing = needed_for(reading.graph, _initializers(graph))
    found: dict[str, str] = {}
    for operation in reading.graph.get_operations():
        if operation.type not in WRITES - INITIALIZERS or operation.name in needed | initializing:
            continue
        if any(_is_restored(tensor.op) for tensor in operation.inputs):
            continue
        for tensor in operation.inputs:
            if tensor.dtype.name == "resource" or tensor.dtype._is_ref_dtype:
                found.setdefault(
                    str(reading.resource_of(tensor)), f"{operation.name} ({operation.type}) of another run"
                )
    return found


def _initializers(graph: Any) -> Iterable[str]:
    import tensorflow as tf

    keys = tf.compat.v1.GraphKeys
    for collection in (keys.GLOBAL_VARIABLES, keys.LOCAL_VARIABLES, keys.MODEL_VARIABLES):
        yield from (each.initializer.name for each in graph.get_collection(collection))
    yield from (each.name for each in graph.get_collection(keys.TABLE_INITIALIZERS))


def _is_restored(operation: Any) -> bool:
    while operation.type in ("Identity", "Reshape", "Cast") and operation.inputs:
        operation = operation.inputs[0].op
    return operation.type in ("RestoreV2", "Restore", "RestoreSlice")

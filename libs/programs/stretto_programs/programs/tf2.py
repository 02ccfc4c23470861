"""Steps of TensorFlow 2: Keras `fit`, and a `tf.function` that takes an iterator or its elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from ..errors import HookMissing
from ..partition.dataset_reading import pipeline_of
from ..partition.effects import SOURCES
from ..partition.normalise import inlined
from ..partition.reading import Reading
from .captured import Captured, Pipeline, ours, size_bytes

Take = Callable[[Captured], None]
"""Called with the first step; it does not return."""
ELEMENTS = (
    "the step takes elements, which the program's Python code may look at: only what lies in tf.data can move, and "
    "nothing of the step"
)
CHECKPOINTED = (
    "the program checkpoints the iterator of its data set: a position saved by it would run ahead of the steps"
)
LOOP = "the function loops over a data set itself: the loop is one operation of the step, and stays whole"
EAGER = "the step runs eagerly, operation by operation: it has no graph"
SAMPLED = 16
"""Raw elements whose bytes are measured."""


@dataclass
class Resources:
    """Names of resources, by the identity of their handles."""

    names: dict[int, str] = field(default_factory=dict[int, str])
    kept: list[Any] = field(default_factory=list[Any])
    """Handles with a name: an identity is only one while its object lives."""

    def key(self, handle: Any, name: str) -> str:
        """Return the key of a resource: the name by which it was first seen, made unique."""
        if id(handle) not in self.names:
            self.kept.append(handle)
            taken = set(self.names.values())
            self.names[id(handle)] = name if name not in taken else f"{name} ({len(taken)})"
        return self.names[id(handle)]


@dataclass
class Seen:
    """Data sets and iterators of the program so far."""

    last_iterator: Any = None
    checkpointed: list[Any] = field(default_factory=list[Any])
    iterators: dict[int, Any] = field(default_factory=dict[int, Any])
    is_looking: bool = False
    """Set while a hook itself calls TensorFlow."""


def install(take: Take) -> Callable[[], None]:
    """Put the hooks in place; return how to take them away. Raises HookMissing."""
    import tensorflow as tf
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    seen = Seen()
    with ExitStack() as hooks:
        for owner, name, made in (
            (OwnedIterator, "_create_iterator", lambda original: _created(original, seen)),
            (OwnedIterator, "__next__", lambda original: _next(original, seen)),
            (tf.train.Checkpoint, "__init__", lambda original: _checkpoint(original, seen)),
            (Function, "__call__", lambda original: _called(original, seen, take)),
            *_keras_hooks(seen, take),
        ):
            hooks.callback(_hook(owner, name, made))
        return hooks.pop_all().close  # else, without one of them, those that stand already are taken away


def _hook(owner: Any, name: str, made: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace a method by one made of it; return how to put the original back."""
    original = owner.__dict__.get(name)
    if original is None:
        raise HookMissing(f"{owner.__module__}.{owner.__name__} has no {name}: TensorFlow 2.21 with Keras 3 is known")
    setattr(owner, name, wraps(original)(made(original)))
    return lambda: setattr(owner, name, original)


def _keras_hooks(seen: Seen, take: Take) -> tuple[tuple[Any, str, Callable[[Any], Any]], ...]:
    import keras

    if keras.backend.backend() != "tensorflow":
        return ()
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    return (
        (TensorFlowTrainer, "make_train_function", lambda original: _train_function(original, seen, take)),
        (BaseOptimizer, "apply", lambda original: _applied(original, seen, take)),
    )


def _created(original: Any, seen: Seen) -> Any:
    def create(iterator: Any, dataset: Any) -> Any:
        result = original(iterator, dataset)
        seen.iterators[id(iterator._iterator_resource)] = iterator
        return result

    return create


def _next(original: Any, seen: Seen) -> Any:
    def following(iterator: Any) -> Any:
        seen.last_iterator = iterator
        return original(iterator)

    return following


def _checkpoint(original: Any, seen: Seen) -> Any:
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    def init(checkpoint: Any, root: Any = None, **values: Any) -> Any:
        seen.checkpointed += [each for each in (root, *values.values()) if isinstance(each, OwnedIterator)]
        return original(checkpoint, root, **values)

    return init


def _applied(original: Any, seen: Seen, take: Take) -> Any:
    """Find a training loop without a graph: an optimizer that is applied eagerly."""
    import tensorflow as tf

    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if tf.executing_eagerly() and not seen.is_looking:
            take(_eager(seen))
        return original(optimizer, grads, trainable_variables)

    return apply


def _eager(seen: Seen) -> Captured:
    import tensorflow as tf

    resources = Resources()
    pipelines = [] if seen.last_iterator is None else [_pipeline("", seen.last_iterator, resources)]
    return Captured(
        kind="eager loop",
        title="the program's training loop",
        graph_def=tf.Graph().as_graph_def(),
        targets=(),
        fetched=(),
        run=lambda: None,
        values=lambda names: {},
        pipelines=tuple(pipelines),
        refusals=(EAGER,),
    )


def _train_function(original: Any, seen: Seen, take: Take) -> Any:
    """Take the step of `fit` when it is called with its iterator."""

    def make(trainer: Any, force: bool = False) -> Any:
        result = original(trainer, force)

        def first_step(iterator: Any) -> Any:
            with ours():
                found = _fit_step(trainer, iterator, seen)
            take(found)

        trainer.train_function = first_step
        return result

    return make


def _fit_step(trainer: Any, iterator: Any, seen: Seen) -> Captured:
    import tensorflow as tf
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    title = f"{type(trainer).__name__}.train_step"
    seen.is_looking = True
    refusals: list[str] = []
    strategy = trainer.distribute_strategy
    if strategy.num_replicas_in_sync > 1 or "Default" not in type(strategy).__name__:
        refusals.append(f"{type(strategy).__name__} runs the step on several devices")
    if trainer.jit_compile:
        refusals.append("XLA compiles the whole step (jit_compile): its operations cannot be told apart")
    if trainer.run_eagerly:
        refusals.append(f"run_eagerly is on: {EAGER}")
    if not isinstance(iterator, OwnedIterator):
        refusals.append("the step gets its batch from Python code (train_on_batch), not from a data set")
    if refusals:
        return _refused("Keras fit", title, iterator if isinstance(iterator, OwnedIterator) else None, refusals)

    def train_step(iterator: Any) -> Any:
        return trainer.train_step(iterator.get_next())

    one_step: Any = tf.function(train_step, reduce_retracing=True)
    concrete = one_step.get_concrete_function(iterator)
    return captured("Keras fit", title, concrete, [iterator], seen, lambda fresh: one_step(fresh.get(id(iterator))))


def _refused(kind: str, title: str, iterator: Any, refusals: Sequence[str]) -> Captured:
    import tensorflow as tf

    return Captured(
        kind=kind,
        title=title,
        graph_def=tf.Graph().as_graph_def(),
        targets=(),
        fetched=(),
        run=lambda: None,
        values=lambda names: {},
        pipelines=() if iterator is None else (_pipeline("", iterator, Resources()),),
        refusals=tuple(refusals),
    )


def _called(original: Any, seen: Seen, take: Take) -> Any:
    """Take the first function that trains: it writes a trainable variable, and gets samples or an iterator."""
    import tensorflow as tf

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not seen.is_looking and tf.executing_eagerly():
            seen.is_looking = True
            try:
                with ours():
                    found = _step_of(function, args, kwargs, seen)
            finally:
                seen.is_looking = False
            if found is not None:
                seen.is_looking = True  # the step is run, to measure it
                try:
                    take(found)
                finally:  # else a program that catches the end would go on
                    seen.is_looking = False
        return original(function, *args, **kwargs)

    return call


def _step_of(function: Any, args: Any, kwargs: Any, seen: Seen) -> Captured | None:
    import tensorflow as tf
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    leaves = tf.nest.flatten((args, kwargs))
    iterators = [each for each in leaves if isinstance(each, OwnedIterator)]
    title = f"@tf.function {getattr(function, '__name__', 'step')}"
    spread = [each for each in leaves if "Distributed" in type(each).__name__ or "PerReplica" in type(each).__name__]
    if spread:
        return _refused("tf.function", title, None, [f"{type(spread[0]).__name__}: the step runs on several devices"])
    try:
        concrete = function.get_concrete_function(*args, **kwargs)
    except (TypeError, ValueError, tf.errors.OpError):  # the call itself tells the program
        return None
    if not _trains(concrete):
        return None
    if function._jit_compile:
        refusal = "XLA compiles the whole step (jit_compile): its operations cannot be told apart"
        return _refused("tf.function", title, (iterators or [seen.last_iterator])[0], [refusal])

    def run(fresh: Mapping[int, Any]) -> None:
        swapped = [fresh.get(id(each), each) for each in args]
        function(*swapped, **{name: fresh.get(id(each), each) for name, each in kwargs.items()})

    return captured("tf.function", title, concrete, iterators, seen, run)


def _trains(concrete: Any) -> bool:
    """Return whether a function writes a trainable variable."""
    graph_def, _ = inlined(concrete.graph.as_graph_def())
    resources = Resources()
    trained = {resources.key(each.handle, each.name) for each in concrete.graph.variables if each.trainable}
    given = given_of(concrete, resources)
    reading = Reading(graph_def, given)
    nodes = (reading.node_of(operation, lambda tensor: 0) for operation in reading.graph.get_operations())
    return any(node.writes & trained for node in nodes)


def given_of(concrete: Any, resources: Resources) -> dict[str, str]:
    """Return the resources of the placeholders of a traced function."""
    return {
        inner.op.name: resources.key(outer, _table_name(inner.op.name))
        for outer, inner in concrete.graph.captures
        if inner.dtype.name == "resource"
    }


def _table_name(placeholder: str) -> str:
    """Return a name for people of a captured resource that has none of its own."""
    return placeholder.removesuffix("/table_handle").removesuffix("/LookupTableFindV2") or placeholder


def captured(
    kind: str,
    title: str,
    concrete: Any,
    iterators: Sequence[Any],
    seen: Seen,
    run: Callable[[Mapping[int, Any]], Any],
) -> Captured:
    """Return a traced function as a step. run: runs it with other iterators in the place of the program's own.

    Those begin anew at the end of their data, and leave the position of the program's own where it is.
    """
    fresh = {id(each): iter(each._dataset.repeat()) for each in iterators}
    resources = Resources()
    variables = {resources.key(each.handle, each.name): each for each in concrete.graph.variables}
    given = given_of(concrete, resources)
    graph_def, stands_for = inlined(concrete.graph.as_graph_def())
    captures = [inner.op.name for _, inner in concrete.graph.captures]
    passed = [tensor for tensor in concrete.inputs if tensor.op.name not in captures]
    owners = {id(outer): inner.op.name for outer, inner in concrete.graph.captures}
    sources: dict[str, Any] = {owners[key]: each for key, each in seen.iterators.items() if key in owners}
    handles = [tensor for tensor in passed if tensor.dtype.name == "resource"]
    if len(handles) == len(iterators):  # else variables are passed, too, and nothing says which handle is whose
        sources |= {tensor.op.name: each for tensor, each in zip(handles, iterators, strict=True)}
    given |= {name: f"iterator {name}" for name in sources}
    types = {tensor.dtype.name for tensor in passed}
    takes_elements = not sources and bool(types - {"resource", "variant"})
    used = _taking(Reading(graph_def, given), sources, given)
    if takes_elements and seen.last_iterator is not None:
        used = [("", seen.last_iterator)]
    checkpointed = {id(each) for each in seen.checkpointed}
    elements = iter(seen.last_iterator._dataset.repeat()) if takes_elements and seen.last_iterator is not None else None

    def one_step() -> None:
        if elements is not None:  # its data is part of a step, though the same elements are passed
            next(elements)
        run(fresh)

    outputs: list[str] = [tensor.name for tensor in concrete.outputs]
    return Captured(
        kind=kind,
        title=title,
        graph_def=graph_def,
        targets=tuple(operation.name for operation in concrete.graph.control_outputs),
        fetched=tuple(dict.fromkeys(stands_for.get(name, name) for name in outputs)),
        given=given,
        arguments=frozenset(captures) - given.keys(),
        written={name: "the training (it is trainable)" for name, each in variables.items() if each.trainable},
        pipelines=tuple(_pipeline(name, each, resources) for name, each in used),
        refusals=(CHECKPOINTED,) if any(id(each) in checkpointed for _, each in used) else (),
        notes=(*((ELEMENTS,) if takes_elements else ()), *((LOOP,) if "variant" in types else ())),
        step=concrete,
        iterators=tuple(iterators),
        run=one_step,
        values=_values(graph_def, concrete, [fresh[id(each)] for each in iterators]),
    )


def _taking(reading: Reading, sources: Mapping[str, Any], given: Mapping[str, str]) -> list[tuple[str, Any]]:
    """Return the operations that take elements, each with its iterator."""
    iterators = {given[name]: each for name, each in sources.items()}
    return [
        (operation.name, iterators[str(key)])
        for operation in reading.graph.get_operations()
        if operation.type in SOURCES and operation.inputs
        if (key := reading.resource_of(operation.inputs[0])) in iterators
    ]


def _pipeline(source: str, iterator: Any, resources: Resources) -> Pipeline:
    datasets = datasets_of(iterator._dataset)
    return Pipeline(source, pipeline_of(iterator._dataset, resources.key), lambda place: _sampled(datasets[place]))


def datasets_of(dataset: Any) -> list[Any]:
    """Return the data set of each operation of a pipeline, in the order of the data."""
    found: list[Any] = []
    while dataset is not None:
        if type(dataset).__name__.endswith("Adapter"):
            dataset = dataset._dataset
            continue
        found.append(dataset)
        inputs = dataset._inputs()
        dataset = inputs[0] if len(inputs) == 1 else None
    return found[::-1]


def _sampled(dataset: Any) -> Sequence[int] | None:
    """Return the mean bytes of each component of a data set's elements."""
    import tensorflow as tf

    rows = [
        [size_bytes(each.numpy()) for each in tf.nest.flatten(element, expand_composites=True)]
        for element in dataset.take(SAMPLED)
        if all(hasattr(each, "numpy") for each in tf.nest.flatten(element, expand_composites=True))
    ]
    return [sum(column) // len(rows) for column in zip(*rows, strict=True)] if rows else None


def _values(graph_def: Any, concrete: Any, iterators: Sequence[Any]) -> Callable[[Sequence[str]], dict[str, int]]:
    def values(names: Sequence[str]) -> dict[str, int]:
        import tensorflow as tf

        wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(graph_def, name=""), [])
        captures = {inner.name: outer for outer, inner in concrete.graph.captures}
        handles = iter([each._iterator_resource for each in iterators])
        feeds = {
            tensor.name: captures[tensor.name] if tensor.name in captures else next(handles)
            for tensor in concrete.inputs
            if tensor.name in captures or tensor.dtype.name == "resource"
        }
        pruned = wrapped.prune(
            [wrapped.graph.get_tensor_by_name(name) for name in feeds],
            [wrapped.graph.get_tensor_by_name(name) for name in names],
        )
        return {name: size_bytes(value.numpy()) for name, value in zip(names, pruned(*feeds.values()), strict=True)}

    return values

"""Hooks that capture a step of a program of TensorFlow 2: of Keras `fit`, or of a `tf.function`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import wraps
from typing import Any

from ..errors import HookMissing
from ..graphs.inlining import inlined
from ..graphs.reading import Reading
from ..graphs.refusals import EAGER, of_strategy
from ..graphs.resources import Resources, given_of
from .captured import Captured, ours
from .steps import Seen, captured, pipeline_behind, refused_step

Take = Callable[[Captured], None]
"""Function that is called with the step. It does not return: it raises StepReached."""


def install(take: Take, number: int = 1) -> Callable[[], None]:
    """Put the hooks in place, and return a function that removes them. Raises HookMissing.

    number: of the step that is captured; each call of `fit` and each function that trains is one step.
    """
    import tensorflow as tf
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    seen = Seen(skip=number - 1)
    with ExitStack() as hooks:
        for owner, name, made in (
            (OwnedIterator, "_create_iterator", lambda original: _created(original, seen)),
            (OwnedIterator, "__next__", lambda original: _next(original, seen)),
            (tf.train.Checkpoint, "__init__", lambda original: _checkpoint(original, seen)),
            (Function, "__call__", lambda original: _called(original, seen, take)),
            *_keras_hooks(seen, take),
        ):
            hooks.callback(_hook(owner, name, made))
        return hooks.pop_all().close  # if a hook is missing, the hooks before it are removed


def _hook(owner: Any, name: str, made: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace a method by what `made` returns for it, and return a function that puts the original back."""
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
    """Hook an optimizer: applied eagerly, it means a training loop without a graph."""
    import tensorflow as tf

    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if tf.executing_eagerly() and not seen.is_looking and seen.is_due(optimizer):
            take(_eager(seen))
        return original(optimizer, grads, trainable_variables)

    return apply


def _eager(seen: Seen) -> Captured:
    import tensorflow as tf

    resources = Resources()
    pipelines = [] if seen.last_iterator is None else [pipeline_behind("", seen.last_iterator, resources)]
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
    """Hook Keras' training function, which each `fit` asks for: its first call is the step."""
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    def make(trainer: Any, force: bool = False) -> Any:
        result = original(trainer, force)
        plain = getattr(trainer.train_function, "_stretto_plain", trainer.train_function)

        def step(iterator: Any) -> Any:
            # train_on_batch asks for a training function at each call
            if seen.is_due(step if isinstance(iterator, OwnedIterator) else trainer):
                with ours():
                    found = _fit_step(trainer, iterator, seen)
                take(found)
            before, seen.is_looking = seen.is_looking, True  # the function within is no step of its own
            try:
                return plain(iterator)
            finally:
                seen.is_looking = before

        step._stretto_plain = plain  # type: ignore[attr-defined]
        trainer.train_function = step
        return result

    return make


def _fit_step(trainer: Any, iterator: Any, seen: Seen) -> Captured:
    import tensorflow as tf
    from tensorflow.python.data.ops.iterator_ops import OwnedIterator

    title = f"{type(trainer).__name__}.train_step"
    seen.is_looking = True
    refusals: list[str] = []
    if refusal := of_strategy(trainer.distribute_strategy):
        refusals.append(refusal)
    if trainer.jit_compile:
        refusals.append("XLA compiles the whole step (jit_compile): its operations cannot be told apart")
    if trainer.run_eagerly:
        refusals.append(f"run_eagerly is on: {EAGER}")
    if not isinstance(iterator, OwnedIterator) and not refusals:
        refusals.append("the step gets its batch from Python code (train_on_batch), not from a data set")
    if refusals:
        return refused_step("Keras fit", title, iterator if isinstance(iterator, OwnedIterator) else None, refusals)

    def train_step(iterator: Any) -> Any:
        return trainer.train_step(iterator.get_next())

    one_step: Any = tf.function(train_step, reduce_retracing=True)
    concrete = one_step.get_concrete_function(iterator)
    return captured("Keras fit", title, concrete, [iterator], seen, lambda fresh: one_step(fresh.get(id(iterator))))


def _called(original: Any, seen: Seen, take: Take) -> Any:
    """Hook `tf.function`: the first call of each function that writes a trainable variable is a step."""
    import tensorflow as tf

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not seen.is_looking and not seen.has_passed(function) and tf.executing_eagerly():
            seen.is_looking = True
            try:
                with ours():
                    found = _step_of(function, args, kwargs, seen)
            finally:
                seen.is_looking = False
            if found is not None and seen.is_due(function):
                seen.is_looking = True  # the step is run, to measure it
                try:
                    take(found)
                finally:  # a program that catches the end may call the step again
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
        strategy = getattr(spread[0], "_strategy", None)
        refusal = strategy and of_strategy(strategy)
        return refused_step("tf.function", title, None, [refusal or f"{type(spread[0]).__name__} wraps its batches"])
    try:
        concrete = function.get_concrete_function(*args, **kwargs)
    except (TypeError, ValueError, tf.errors.OpError):  # the call itself raises the error in the program
        return None
    if not _trains(concrete):
        return None
    if function._jit_compile:
        refusal = "XLA compiles the whole step (jit_compile): its operations cannot be told apart"
        return refused_step("tf.function", title, (iterators or [seen.last_iterator])[0], [refusal])

    def run(fresh: Mapping[int, Any]) -> None:
        swapped = [fresh.get(id(each), each) for each in args]
        function(*swapped, **{name: fresh.get(id(each), each) for name, each in kwargs.items()})

    return captured("tf.function", title, concrete, iterators, seen, run)


def _trains(concrete: Any) -> bool:
    """Return whether a traced function writes a trainable variable."""
    graph_def, _ = inlined(concrete.graph.as_graph_def())
    resources = Resources()
    trained = {resources.key(each.handle, each.name) for each in concrete.graph.variables if each.trainable}
    given = given_of(concrete, resources)
    reading = Reading(graph_def, given)
    nodes = (reading.node_of(operation, lambda tensor: 0) for operation in reading.graph.get_operations())
    return any(node.writes & trained for node in nodes)

"""Training loops of a program's own, with data workers: over a data set, or of a function that takes its iterator.

An iterator of the program stays one of TensorFlow; only its elements, or the steps that take them, come from elsewhere.
Whoever uses its resource in another way, such as a graph that captures it or a checkpoint, finds it at the program's
place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import wraps
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ..errors import PipelineError, ProgramRefused
from ..programs.tf2 import CHECKPOINTED, LOOP, Resources
from .datasets import Datasets, Plan, Splits
from .importing import Hook, replace_method
from .iterators import ELEMENTS_MIN, Held, Iterators, held_of
from .splitting import Traced, check_strategy, traced

NAME = "loop over a data set"
SIGNATURES_MAX = 16
"""Bound of the graphs of one function that are split."""
MANY_GRAPHS = "it takes values beside its iterator for which nobody can tell one graph"


class Loops:
    """The hooks, and all that they know of the program. was_asked: a loop was met whose data might move."""

    name = f"loop over {ELEMENTS_MIN} elements or more of a data set"

    def __init__(self, datasets: Datasets) -> None:
        self.was_asked = False
        self._datasets = datasets
        self._iterators = Iterators(datasets, NAME)
        self._elements: dict[object, Splits | PipelineError] = {}
        """of loops over elements, by the code of the maps; or why they stay"""
        self._splits: WeakKeyDictionary[Any, dict[object, Splits]] = WeakKeyDictionary()
        """of each function, by its arguments"""

    # --- hooks --------------------------------------------------------------------------------------------

    def hooks(self) -> dict[str, Hook]:
        """Return the hooks, by the module after whose import they belong."""
        return {
            "tensorflow.python.data.ops.iterator_ops": self._hook_iterators,
            "tensorflow.python.data.ops.dataset_autograph": self._hook_graph_loops,
            "tensorflow.python.checkpoint.checkpoint": self._hook_checkpoints,
            "tensorflow.python.eager.polymorphic_function.polymorphic_function": self._hook_functions,
        }

    def _hook_iterators(self, module: ModuleType) -> None:
        def made(original: Any) -> Any:
            @wraps(original)
            def create(iterator: Any, dataset: Any) -> Any:
                if not self._datasets.is_ours:
                    self._iterators.settle_singles(dataset)
                with self._datasets.drawing:  # after the above, which waits for iterators that may wait for this
                    result = original(iterator, dataset)
                    if self._is_program():
                        self._iterators.made(iterator)
                return result

            return create

        def following(original: Any) -> Any:
            self._iterators.next = original

            @wraps(original)
            def run(iterator: Any) -> Any:
                held = held_of(iterator)
                if held is None or held.is_plain or not self._is_program():
                    return original(iterator)
                return self._element(iterator, held)

            return run

        def resource(iterator: Any) -> Any:
            held = held_of(iterator)
            if held is not None and not held.is_plain and not self._datasets.is_ours:
                self._iterators.settle(held, "the program uses its iterator in another way")
            try:
                return iterator.__dict__["_iterator_resource"]
            except KeyError:
                raise AttributeError("_iterator_resource") from None

        def set_resource(iterator: Any, handle: Any) -> None:
            iterator.__dict__["_iterator_resource"] = handle

        replace_method(module.OwnedIterator, "_create_iterator", made)
        replace_method(module.OwnedIterator, "_next_internal", following)
        module.OwnedIterator._iterator_resource = property(resource, set_resource)  # type: ignore[attr-defined]

    def _hook_graph_loops(self, module: ModuleType) -> None:
        def loop(original: Any) -> Any:
            @wraps(original)
            def run(*args: Any, **kwargs: Any) -> Any:
                self.was_asked = True
                self._datasets.say_once(f"tf.function: nothing moves to data workers: {LOOP}")
                return original(*args, **kwargs)

            return run

        replace_method(module, "_tf_ag_dataset_for_stmt", loop)

    def _hook_checkpoints(self, module: ModuleType) -> None:
        def init(original: Any) -> Any:
            @wraps(original)
            def run(checkpoint: Any, root: Any = None, **values: Any) -> None:
                for each in (root, *values.values()):
                    if (held := held_of(each)) is not None:
                        self._datasets.say_once(f"{NAME}: nothing moves to data workers: {CHECKPOINTED}")
                        self._iterators.settle(held, CHECKPOINTED)
                original(checkpoint, root, **values)

            return run

        replace_method(module.Checkpoint, "__init__", init)

    def _hook_functions(self, module: ModuleType) -> None:
        def called(original: Any) -> Any:
            @wraps(original)
            def call(function: Any, *args: Any, **kwargs: Any) -> Any:
                helds = [held for each in (*args, *kwargs.values()) if (held := held_of(each)) is not None]
                if len(helds) != 1 or helds[0].is_plain or not self._is_program() or _is_left_alone(function):
                    return original(function, *args, **kwargs)
                return self._call(original, function, args, kwargs, helds[0])

            return call

        replace_method(module.Function, "__call__", called)

    def _is_program(self) -> bool:
        """Return whether the program itself runs now, eagerly, and not within Keras `fit`."""
        import tensorflow as tf

        return not self._datasets.is_ours and not self._datasets.is_keras and tf.executing_eagerly()

    # --- elements -----------------------------------------------------------------------------------------

    def _element(self, iterator: Any, held: Held) -> Any:
        """Return the next element of an iterator; raises what TensorFlow's own would."""
        plan = self._iterators.plan(held, None, NAME, lambda: self._plan_elements(held))

        def plain() -> Any:
            return self._iterators.plain_element(iterator, held)

        def at_end() -> Any:
            return self._iterators.next(self._datasets.at_end(held.dataset))

        return plain() if plan is None else self._iterators.step(held, plan, (), plain, at_end)

    def _plan_elements(self, held: Held) -> Plan:
        """Plan the elements of a data set. Raises PipelineError."""
        self.was_asked = True
        opening = self._iterators.open(held)
        if not opening.has_stage:
            raise ProgramRefused(f"no map of it can move: {opening.ended_by}")
        splits = self._elements.setdefault(opening.code_key, Splits())
        if isinstance(splits, PipelineError):
            raise splits
        try:
            plan = self._datasets.plan(opening, splits, lambda: self._traced_element(held.dataset))
        except PipelineError as error:
            self._elements[opening.code_key] = error
            raise
        self._datasets.tell_moved(NAME, plan, once=True)
        return plan

    def _traced_element(self, dataset: Any) -> Traced:
        """Return the step that gives the element, and does nothing else."""
        import tensorflow as tf

        function: Any = tf.function(lambda iterator: iterator.get_next(), autograph=False)
        concrete = function.get_concrete_function(tf.data.IteratorSpec(dataset.element_spec))
        return traced(concrete, Resources(), self._datasets.is_fixed)

    # --- functions ----------------------------------------------------------------------------------------

    def _call(self, original: Any, function: Any, args: Any, kwargs: Any, held: Held) -> Any:
        """Call a function that takes an iterator."""
        iterator = held.iterator()

        def with_another(another: Any) -> Any:
            def swapped(each: Any) -> Any:
                return another if each is iterator else each

            return [swapped(each) for each in args], {name: swapped(each) for name, each in kwargs.items()}

        def plain() -> Any:
            return original(function, *args, **kwargs)

        def at_end() -> Any:
            positional, named = with_another(self._datasets.at_end(held.dataset))
            return original(function, *positional, **named)

        def plan() -> Plan:
            import tensorflow as tf

            self.was_asked = True
            check_strategy(tf.distribute.get_strategy())
            positional, named = with_another(tf.data.IteratorSpec(held.dataset.element_spec))
            _, tensors = _passed(args, kwargs, iterator)

            def trace() -> Traced:
                step = traced(function.get_concrete_function(*positional, **named), Resources(), datasets.is_fixed)
                if len(step.fed) != len(tensors):
                    raise ProgramRefused("it takes values beside its iterator that are no tensors, or have a name")
                return step

            datasets = self._datasets
            by_key = self._splits.setdefault(function, {})
            if len(by_key) >= SIGNATURES_MAX:
                raise ProgramRefused(f"it is called with more than {SIGNATURES_MAX} kinds of arguments")
            splits = by_key.setdefault(key, Splits())
            found = datasets.plan(self._iterators.open(held), splits, trace)
            datasets.tell_moved(title, found, once=True)
            return found

        title = f"tf.function {getattr(function, '__name__', 'step')}"
        key, tensors = _passed(args, kwargs, iterator)
        if key is None:
            self._datasets.say_once(f"{title}: nothing moves to data workers: {MANY_GRAPHS}")
            return plain()
        found = self._iterators.plan(held, (function, key), title, plan)
        return plain() if found is None else self._iterators.step(held, found, tensors, plain, at_end)


def _is_left_alone(function: Any) -> bool:
    """Return whether a function is one of Keras' own, or runs eagerly."""
    return function._run_functions_eagerly or str(getattr(function.python_function, "__module__", "")).startswith(
        "keras."
    )


def _passed(args: Sequence[Any], kwargs: Mapping[str, Any], iterator: Any) -> tuple[object, list[Any]]:
    """Return what arguments have in common for which one graph is traced, and the tensors among them.

    None for the first: nobody can tell.
    """
    import tensorflow as tf

    kinds: list[object] = []
    tensors: list[Any] = []
    for name, each in (*enumerate(args), *kwargs.items()):
        if each is iterator:
            kinds.append(name)
        elif isinstance(each, tf.Tensor) and not isinstance(name, str):
            kinds.append((each.dtype, tuple(each.shape)))
            tensors.append(each)
        else:
            kinds.append((name, type(each), each))
    try:
        hash(tuple(kinds))
    except TypeError:
        return None, []
    return tuple(kinds), tensors

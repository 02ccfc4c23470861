"""Loops of a program over a data set, and functions that take its iterator, with data workers.

An iterator of the program stays an object of TensorFlow; only its elements, or the steps that take them, come from
elsewhere. Any other use of its resource, such as by a checkpoint or a graph that captures it, finds the iterator at the
program's position.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from stretto_pipeline.errors import PipelineError

from ..errors import ProgramRefused, in_words
from ..graphs.refusals import CHECKPOINTED, LOOP
from ..graphs.resources import Resources
from ..import_hooks import Hook, replace_method
from ..resume.places import DatasetPlace
from ..splitting.traced import Traced, check_strategy, traced
from .datasets import Datasets
from .iterators import ELEMENTS_MIN, Iterators
from .plans import Plan, Splits
from .state import IteratorState, iterator_state

NAME = "loop over a data set"
SIGNATURES_MAX = 16
"""Most graphs of a function that are split."""
ANOTHER_WAY = "the program uses its iterator in another way"
MANY_GRAPHS = "it takes values beside its iterator for which nobody can tell one graph"


class Loops:
    """The hooks for loops and functions of iterators. was_asked: a loop was met whose data might move."""

    name = f"loop over {ELEMENTS_MIN} elements or more of a data set"

    def __init__(self, datasets: Datasets) -> None:
        self.was_asked = False
        self._has_graph_loops = False
        self._datasets = datasets
        datasets.resume.add_source(self._places)
        self._iterators = Iterators(datasets, NAME)
        self._elements: dict[object, Splits | PipelineError] = {}
        """Splits for loops over elements, by the code of the maps; or why nothing moves."""
        self._splits: WeakKeyDictionary[Any, dict[object, Splits]] = WeakKeyDictionary()
        """Splits of functions, by function and arguments."""
        self._elements_taken: WeakKeyDictionary[Any, dict[object, str]] = WeakKeyDictionary()
        """Why a call may not take a single element, "" if it does; by function and arguments."""

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
                # not around the call above: it waits for locks of iterators, whose holders may wait for this lock
                with self._datasets.drawing:
                    is_program = self._is_program()
                    place = self._datasets.places.resumed(dataset) if is_program else None
                    result = original(iterator, dataset)
                    if is_program:
                        self._iterators.made(iterator, place)
                return result

            return create

        def following(original: Any) -> Any:
            self._iterators.next = original

            @wraps(original)
            def run(iterator: Any) -> Any:
                state = iterator_state(iterator)
                if state is None or not self._is_program():
                    return original(iterator)
                if state.is_plain and not self._iterators.places.counts(state):
                    return original(iterator)
                if state.is_plain:
                    return self._iterators.plain_element(iterator, state)
                return self._element(iterator, state)

            return run

        replace_method(module.OwnedIterator, "_create_iterator", made)
        replace_method(module.OwnedIterator, "_next_internal", following)
        module.OwnedIterator._iterator_resource = self._resource_property()  # type: ignore[attr-defined]

    def _resource_property(self) -> property:
        """Return a property for an iterator's resource: to read it brings the iterator to the program's position."""

        def resource(iterator: Any) -> Any:
            state = iterator_state(iterator)
            if state is not None and not state.is_plain and not self._datasets.is_ours:
                state.unknown = ANOTHER_WAY
                self._iterators.settle(state, ANOTHER_WAY)
            try:
                return iterator.__dict__["_iterator_resource"]
            except KeyError:
                raise AttributeError("_iterator_resource") from None

        def set_resource(iterator: Any, handle: Any) -> None:
            iterator.__dict__["_iterator_resource"] = handle

        return property(resource, set_resource)

    def _hook_graph_loops(self, module: ModuleType) -> None:
        def loop(original: Any) -> Any:
            @wraps(original)
            def run(*args: Any, **kwargs: Any) -> Any:
                self.was_asked = self._has_graph_loops = True
                self._datasets.say_once(f"tf.function: nothing moves to data workers: {LOOP}")
                return original(*args, **kwargs)

            return run

        replace_method(module, "_tf_ag_dataset_for_stmt", loop)

    def _hook_checkpoints(self, module: ModuleType) -> None:
        def init(original: Any) -> Any:
            @wraps(original)
            def run(checkpoint: Any, root: Any = None, **values: Any) -> None:
                for each in (root, *values.values()):
                    if (state := iterator_state(each)) is not None:
                        self._datasets.say_once(f"{NAME}: nothing moves to data workers: {CHECKPOINTED}")
                        state.taken = state.pulled if state.place else state.taken
                        state.is_saved, state.place = True, None
                        self._iterators.settle(state, CHECKPOINTED)
                original(checkpoint, root, **values)

            return run

        replace_method(module.Checkpoint, "__init__", init)

    def _hook_functions(self, module: ModuleType) -> None:
        def called(original: Any) -> Any:
            @wraps(original)
            def call(function: Any, *args: Any, **kwargs: Any) -> Any:
                states = [state for each in (*args, *kwargs.values()) if (state := iterator_state(each)) is not None]
                if len(states) != 1 or not self._is_program() or _is_left_alone(function):
                    return original(function, *args, **kwargs)
                if states[0].is_plain and not self._iterators.places.counts(states[0]):
                    return original(function, *args, **kwargs)
                return self._call(original, function, args, kwargs, states[0])

            return call

        replace_method(module.Function, "__call__", called)

    def _is_program(self) -> bool:
        """Return whether eager code of the program itself runs now, outside of Keras `fit`."""
        import tensorflow as tf

        return not self._datasets.is_ours and not self._datasets.is_keras and tf.executing_eagerly()

    def _places(self) -> Iterator[DatasetPlace]:
        if self._has_graph_loops:
            yield DatasetPlace("the loop of a tf.function over a data set", "", unknown=LOOP)

    # --- elements -----------------------------------------------------------------------------------------

    def _element(self, iterator: Any, state: IteratorState) -> Any:
        """Return the next element of an iterator, or raise what TensorFlow's own would raise."""
        plan = self._iterators.plan(state, None, NAME, lambda: self._plan_elements(state))

        def plain() -> Any:
            return self._iterators.plain_element(iterator, state)

        def at_end() -> Any:
            return self._iterators.next(self._datasets.at_end(state.dataset))

        return plain() if plan is None else self._iterators.step(state, plan, (), plain, at_end, plain)

    def _plan_elements(self, state: IteratorState) -> Plan:
        """Return the plan for a loop over elements. Raises PipelineError."""
        self.was_asked = True
        opening = self._iterators.open(state)
        if not opening.has_stage:
            raise ProgramRefused(f"no map of it can move: {opening.ended_by}")
        splits = self._elements.setdefault(opening.code_key, Splits())
        if isinstance(splits, PipelineError):
            raise splits
        try:
            plan = self._datasets.plan(opening, splits, lambda: self._traced_element(state.dataset))
        except PipelineError as error:
            self._elements[opening.code_key] = error
            raise
        self._datasets.tell_moved(NAME, plan, once=True)
        return plan

    def _traced_element(self, dataset: Any) -> Traced:
        """Return the traced step that only returns the element."""
        import tensorflow as tf

        function: Any = tf.function(lambda iterator: iterator.get_next(), autograph=False)
        concrete = function.get_concrete_function(tf.data.IteratorSpec(dataset.element_spec))
        return traced(concrete, Resources(), self._datasets.is_fixed)

    # --- functions ----------------------------------------------------------------------------------------

    def _call(self, original: Any, function: Any, args: Any, kwargs: Any, state: IteratorState) -> Any:
        """Call a function of the program that takes an iterator."""
        iterator = state.iterator()

        def with_another(another: Any) -> Any:
            def swapped(each: Any) -> Any:
                return another if each is iterator else each

            return [swapped(each) for each in args], {name: swapped(each) for name, each in kwargs.items()}

        def plain() -> Any:
            return original(function, *args, **kwargs)

        def at_end() -> Any:
            positional, named = with_another(self._datasets.at_end(state.dataset))
            return original(function, *positional, **named)

        def trace() -> Traced:
            import tensorflow as tf

            check_strategy(tf.distribute.get_strategy(), is_wrapped=False)
            positional, named = with_another(tf.data.IteratorSpec(state.dataset.element_spec))
            step = traced(function.get_concrete_function(*positional, **named), Resources(), self._datasets.is_fixed)
            if len(step.fed) != len(tensors):
                raise ProgramRefused("it takes values beside its iterator that are no tensors, or have a name")
            return step

        def plan() -> Plan:
            self.was_asked = True
            by_key = self._splits.setdefault(function, {})
            if len(by_key) >= SIGNATURES_MAX:
                raise ProgramRefused(f"it is called with more than {SIGNATURES_MAX} kinds of arguments")
            splits = by_key.setdefault(key, Splits())
            found = self._datasets.plan(self._iterators.open(state), splits, trace)
            self._datasets.tell_moved(title, found, once=True)
            return found

        state.by_function = True
        title = f"tf.function {getattr(function, '__name__', 'step')}"
        key, tensors = _passed(args, kwargs, iterator)
        if key is None:
            self._datasets.say_once(f"{title}: nothing moves to data workers: {MANY_GRAPHS}")
            state.unknown = MANY_GRAPHS
            return plain()
        found = None if state.is_plain else self._iterators.plan(state, (function, key), title, plan)
        if found is not None:
            alone = functools.partial(self._iterators.plain_step, state, plain)
            return self._iterators.step(state, found, tensors, plain, at_end, alone)
        if not self._iterators.places.counts(state):
            return plain()
        state.unknown = self._not_one(function, key, trace)
        return plain() if state.unknown else self._iterators.counted(state, plain)

    def _not_one(self, function: Any, key: object, trace: Callable[[], Traced]) -> str:
        """Return why a call of a function may not take a single element of its iterator, "" if it does."""
        known = self._elements_taken.setdefault(function, {})
        if key not in known:
            known[key] = ""
            try:
                with self._datasets.ours():
                    trace()
            except Exception as error:  # the program itself is not affected
                known[key] = in_words(error)
        return known[key]


def _is_left_alone(function: Any) -> bool:
    """Return whether a function belongs to Keras, or runs eagerly."""
    return function._run_functions_eagerly or str(getattr(function.python_function, "__module__", "")).startswith(
        "keras."
    )


def _passed(args: Sequence[Any], kwargs: Mapping[str, Any], iterator: Any) -> tuple[object, list[Any]]:
    """Return a key that is equal for arguments with the same graph, and the tensors among the arguments.

    The key is None if the graph depends on more than can be told from the arguments.
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

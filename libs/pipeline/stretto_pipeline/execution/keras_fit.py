"""Keras `fit` with data workers: its step is split, and its iterator gives steps whose preparation is elsewhere.

The decision falls when `fit` asks for its first iterator, before anything of the data set is drawn. From then on a pass
over the data set is a pass over its source. Metrics, callbacks, validation and epochs are Keras' own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from types import ModuleType
from typing import Any

from ..errors import PipelineError, ProgramRefused
from ..partition.cut import Prices
from ..programs.tf2 import EAGER, Resources
from . import graphs
from .data_workers import DataWorkers
from .feed import Feed, Raw, Stream
from .graphs import array_of
from .importing import Hook, replace_method
from .opening import Drawn, Opening, check_travels, open_dataset
from .splitting import Prepared, Split, Traced, prepared_for, split_of, traced
from .values import packed

OPS_NAMED = 6


@dataclass
class _Fit:
    trainer: Any
    iterator: Any = None


@dataclass(frozen=True)
class _Plan:
    """A data set that is prepared for a split step."""

    split: Split
    opening: Opening
    prepared: Prepared


@dataclass
class _Pass:
    """One pass of `fit` over its data set: stands where its iterator stood."""

    plan: _Plan
    feed: Feed
    stream: Stream
    at_end: Callable[[], Any]

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Any:
        raise TypeError("a step of data workers is taken by the training function only")


@dataclass
class _Passes:
    """Stands in the place of the data set: each iteration is a new pass."""

    begin: Callable[[], _Pass]

    def __iter__(self) -> _Pass:
        return self.begin()


@dataclass
class KerasFit:
    """The hooks, and all that they know of the program."""

    workers: DataWorkers
    _drawn: Drawn = field(default_factory=Drawn)
    _fixed: dict[int, Any] = field(default_factory=dict[int, Any])
    _fits: list[_Fit] = field(default_factory=list[_Fit])
    _functions: dict[int, _TrainFunction] = field(default_factory=dict[int, "_TrainFunction"])
    """by the identity of Keras' own"""
    _numbers: Any = field(default_factory=itertools.count)
    name: str = "Keras fit"
    was_asked: bool = False
    """Set once `fit` asked for data."""
    _refused: str = ""
    _is_ours: bool = False
    """Set while an iterator of ours is made."""

    def hooks(self) -> dict[str, Hook]:
        """Return the hooks, by the module after whose import they belong."""
        return {
            "tensorflow.python.data.ops.iterator_ops": self._hook_iterators,
            "tensorflow.python.ops.lookup_ops": self._hook_tables,
            "keras.src.backend.tensorflow.trainer": self._hook_keras,
        }

    # --- hooks --------------------------------------------------------------------------------------------

    def _hook_iterators(self, module: ModuleType) -> None:
        def made(original: Any) -> Any:
            @wraps(original)
            def create(iterator: Any, dataset: Any) -> Any:
                if not self._is_ours:
                    self._drawn.made(dataset)
                return original(iterator, dataset)

            return create

        replace_method(module.OwnedIterator, "_create_iterator", made)

    def _hook_tables(self, module: ModuleType) -> None:
        def made(original: Any) -> Any:
            @wraps(original)
            def create(table: Any) -> Any:
                handle = original(table)
                self._fixed[id(handle)] = handle
                return handle

            return create

        replace_method(module.StaticHashTable, "_create_resource", made)

    def _hook_keras(self, module: ModuleType) -> None:
        def fit(original: Any) -> Any:
            @wraps(original)
            def run(trainer: Any, *args: Any, **kwargs: Any) -> Any:
                self._fits.append(_Fit(trainer))
                try:
                    return original(trainer, *args, **kwargs)
                finally:
                    self._fits.pop()

            return run

        def init(original: Any) -> Any:
            @wraps(original)
            def run(iterator: Any, *args: Any, **kwargs: Any) -> None:
                original(iterator, *args, **kwargs)
                if self._fits and self._fits[-1].iterator is None:
                    self._fits[-1].iterator = iterator

            return run

        def get(original: Any) -> Any:
            @wraps(original)
            def run(iterator: Any) -> Any:
                dataset = original(iterator)
                fit = next((each for each in self._fits if each.iterator is iterator), None)
                # `fit` without a training function yet only looks at an element, to build the model
                if fit is None or fit.trainer.train_function is None:
                    return dataset
                return self._source(fit.trainer, dataset)

            return run

        replace_method(module.TensorFlowTrainer, "fit", fit)
        replace_method(module.TFEpochIterator, "__init__", init)
        replace_method(module.TFEpochIterator, "_get_iterator", get)

    # --- decisions ----------------------------------------------------------------------------------------

    def _source(self, trainer: Any, dataset: Any) -> Any:
        """Return what `fit` iterates over: the data set itself where nothing moves."""
        self.was_asked = True
        function = trainer.train_function
        if not isinstance(function, _TrainFunction):
            function = self._functions.setdefault(id(function), _TrainFunction(function))
        if id(dataset) not in function.plans:
            function.plans[id(dataset)] = (dataset, self._planned(trainer, function, dataset))
        _, plan = function.plans[id(dataset)]
        if plan is None:
            return dataset
        trainer.train_function = function
        return _Passes(lambda: self._begin(plan))

    def _planned(self, trainer: Any, function: _TrainFunction, dataset: Any) -> _Plan | None:
        try:
            plan = self._plan(trainer, function, dataset)
            self.workers.started(graphs.FRAMEWORK, graphs.settings())
        except PipelineError as error:
            reason = str(error)
        except Exception as error:  # data workers never stop a program that would run without them
            reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        else:
            function.keep(dataset.element_spec, plan.split)
            self._tell_moved(plan)
            return plan
        if reason != self._refused:
            self.workers.say(f"Keras fit: nothing moves to data workers: {reason}")
        self._refused = reason
        return None

    def _plan(self, trainer: Any, function: _TrainFunction, dataset: Any) -> _Plan:
        """Decide what moves, and make both parts. Nothing of the data set is drawn. Raises PipelineError."""
        _check(trainer)
        split = function.split_of(dataset.element_spec)
        step = _traced(function.original, dataset, self._is_fixed) if split is None else split.traced
        opening = open_dataset(dataset, step.resources.key, frozenset(step.written), self._is_fixed, self._drawn)
        check_travels(opening.source)
        self._is_ours = True
        try:
            split = split or split_of(step, opening, Prices())
        finally:
            self._is_ours = False
        return _Plan(split, opening, prepared_for(split, opening))

    def _is_fixed(self, handle: Any) -> bool:
        return id(handle) in self._fixed

    def _tell_moved(self, plan: _Plan) -> None:
        found = plan.split.partition
        nodes = sorted((found.graph.by_name[name] for name in found.moved), key=lambda node: -node.cost_us)
        ops = dict.fromkeys([*plan.opening.moved, *(each.op for each in nodes if each.op != "IteratorGetNext")])
        named = [*ops][:OPS_NAMED]
        more = f" and {len(ops) - len(named)} more" if len(ops) > len(named) else ""
        self.workers.say(
            f"Keras fit: {self.workers.count} data workers prepare {', '.join(named)}{more}: "
            f"{found.moved_us / 1e3:.2f} ms of CPU a step"
        )

    def _begin(self, plan: _Plan) -> _Pass:
        """Begin a pass over the source, in the order that the data set itself would have now."""
        feed = self.workers.started(graphs.FRAMEWORK, graphs.settings())
        source, prepared = plan.opening.source, plan.prepared
        self._is_ours = True
        try:
            for own, twin in plan.opening.shuffles:
                while self._drawn.of(twin) < self._drawn.of(own):  # the program made iterators beside `fit`
                    iter(source)
                    self._drawn.made(source)
            iterator = iter(source)
        finally:
            self._is_ours = False
        for own, _ in plan.opening.shuffles:
            self._drawn.made_one(own)
        self._drawn.made(source)
        stream = Stream(
            f"pass {next(self._numbers)}", prepared.preparation, lambda: _raw(iterator, prepared), prepared.here
        )
        return _Pass(plan, feed, stream, lambda: self._at_end(plan.opening.dataset))

    def _at_end(self, dataset: Any) -> Any:
        """Return an iterator at the end of a data set, of which nothing is drawn."""
        self._is_ours = True
        try:
            return iter(dataset.take(0))
        finally:
            self._is_ours = False


class _TrainFunction:
    """Stands in the place of the function that Keras trains with. plans: of each data set, None: it is as it was.

    A split holds for all data sets whose elements have the same types and shapes, as a traced function does.
    """

    def __init__(self, original: Any) -> None:
        self.original = original
        self.plans: dict[int, tuple[Any, _Plan | None]] = {}
        self._splits: list[tuple[Any, Split]] = []

    def split_of(self, element_spec: Any) -> Split | None:
        """Return the split for elements of a kind, None if there is none yet."""
        return next((split for spec, split in self._splits if spec == element_spec), None)

    def keep(self, element_spec: Any, split: Split) -> None:
        """Keep a split for later data sets."""
        if self.split_of(element_spec) is None:
            self._splits.append((element_spec, split))

    def __call__(self, iterator: Any) -> Any:
        if not isinstance(iterator, _Pass):
            return self.original(iterator)
        import tensorflow as tf

        plan = iterator.plan
        try:
            raw, values = iterator.feed.take(iterator.stream)
        except tf.errors.OutOfRangeError:
            # the whole step meets the end of the data: it does what depends on no sample, such as a draw of a seed
            return plan.split.traced.concrete(iterator.at_end())
        taken = {name: raw.element[place] for name, place in plan.prepared.local.items()}
        return plan.split.finish(taken | dict(zip(plan.prepared.names, values, strict=True)))


def _raw(iterator: Any, prepared: Prepared) -> Raw:
    import tensorflow as tf

    try:
        element = tf.nest.flatten(next(iterator))
    except StopIteration:
        raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None
    return Raw(element, packed([array_of(element[place]) for place in prepared.used]))


def _check(trainer: Any) -> None:
    """Raise ProgramRefused for a step that is no single graph of operations."""
    strategy = trainer.distribute_strategy
    if strategy.num_replicas_in_sync > 1 or "Default" not in type(strategy).__name__:
        raise ProgramRefused(f"{type(strategy).__name__} runs the step on several devices")
    if trainer.run_eagerly:
        raise ProgramRefused(f"run_eagerly is on: {EAGER}")
    if trainer.jit_compile:
        raise ProgramRefused("XLA compiles the whole step (jit_compile): its operations cannot be told apart")
    if trainer.steps_per_execution != 1:
        raise ProgramRefused(f"steps_per_execution={trainer.steps_per_execution}: the loop over steps is one operation")


def _traced(original: Any, dataset: Any, is_fixed: Callable[[Any], bool]) -> Traced:
    """Trace one step of Keras' own training function. Raises ProgramRefused: the program has made another one."""
    import tensorflow as tf

    names = getattr(getattr(original, "__code__", None), "co_freevars", ())
    if "one_step_on_data" not in names:
        raise ProgramRefused("the program makes a training function of its own (make_train_function)")
    on_data = original.__closure__[names.index("one_step_on_data")].cell_contents

    def one_step(iterator: Any) -> Any:
        return on_data(iterator.get_next())

    function: Any = tf.function(one_step, reduce_retracing=True, autograph=False)
    concrete = function.get_concrete_function(tf.data.IteratorSpec(dataset.element_spec))
    return traced(concrete, Resources(), is_fixed)

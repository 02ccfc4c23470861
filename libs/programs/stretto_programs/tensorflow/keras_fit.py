"""Keras `fit` with data workers: its step is split, and its iterator gives steps that were prepared elsewhere.

The decision falls when `fit` asks for its first iterator, before anything is drawn of the data set. From then on a pass
over the data set is a pass over its source. Metrics, callbacks, validation and epochs are Keras' own. A resumed pass
begins within its epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, finalize

from ..errors import ProgramRefused, in_words
from ..graphs.refusals import EAGER
from ..graphs.resources import Resources
from ..graphs.shuffles import Orders, has_fixed_order
from ..import_hooks import Hook, replace_method
from ..resume.places import DatasetPlace
from ..splitting.opening import open_dataset
from ..splitting.traced import XLA, Traced, check_strategy, traced
from .datasets import Datasets
from .passes import Pass, RawElements
from .plans import Plan, Splits

NAME = "Keras fit"
_FUNCTION, _PLANS = "_stretto_function", "_stretto_fit_plans"

_ADAPTING = {
    "discretization": "Discretization",
    "index_lookup": "IndexLookup",
    "normalization": "Normalization",
    "text_vectorization": "TextVectorization",
}
"""Layers of Keras that read a data set before training, by module."""


@dataclass(eq=False)
class _Progress:
    """The progress of a pass over a data set.

    orders: numbers of the orders that it has drawn. consumed: elements taken. skipped: steps of its first epoch that an
    earlier run has done. length: elements of the pass, negative if not known.
    """

    dataset: Any
    orders: tuple[int, ...]
    consumed: int = 0
    skipped: int = 0
    length: int = -1
    is_over: bool = False


@dataclass
class _Fit:
    """A call of `fit`.

    iterator: Keras' iterator over epochs. last: steps of its last pass, to which Keras may hold on. progress: of its
    last pass. epoch_steps: steps done in the current epoch, None between epochs.
    """

    trainer: Any
    iterator: Any = None
    last: _Steps | None = None
    progress: _Progress | None = None
    epoch_steps: int | None = None


@dataclass(eq=False)
class _Steps:
    """The steps of a pass, given to Keras in place of an iterator.

    begin: begins the pass over the source. own: the data set's own iterator, for steps without data workers; None:
    there are none. is_split: returns whether data workers prepare the next step. failed: called if they cannot.
    at_first: called before the source gives the first step. at_end: returns an iterator that is at the end of the data.
    """

    plan: Plan
    begin: Callable[[], Pass]
    own: Any
    is_split: Callable[[], bool]
    failed: Callable[[Exception], None]
    at_first: Callable[[], None]
    at_end: Callable[[], Any]
    progress: _Progress
    taking: Pass | None = None
    """The pass over the source, once it has begun."""
    taken_alone: int = 0
    """Elements that the data set's own iterator has given."""
    is_begun: bool = False
    """The source has given the first step."""

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        raise TypeError("a step of data workers is taken by the training function only")

    def start(self) -> Pass:
        """Begin the pass over the source, at the program's position."""
        self.taking = taking = self.begin()
        finalize(self, taking.feed.end, taking.stream.name)  # an epoch may be left early: Keras then drops the steps
        taking.raw.drop(self.taken_alone)
        return taking

    def end(self) -> None:
        """End the pass over the source."""
        if self.taking is not None:
            self.taking.end()
            self.taking = None

    def run(self) -> Any:
        """Run the next step, alone or on what data workers prepare; return its result."""
        import tensorflow as tf

        if self.own is not None and not self.is_split():
            return self._run_alone()
        try:
            taking = self.taking or self.start()
        except Exception as error:  # data workers never stop a program that would run without them
            self.failed(error)
            self.is_split = lambda: False
            return self._run_alone()
        if not self.is_begun and not self.taken_alone:
            self.at_first()
        self.is_begun = True
        try:
            taken = taking.take()
            self.progress.consumed += 1
        except tf.errors.OutOfRangeError:
            self.progress.is_over = True
            taking.end()
            # as alone, the whole step runs at the end of the data: it may draw a seed, which depends on no sample
            return self.plan.split.traced.concrete(self.at_end())
        return taking.finish(taken, ())

    def _run_alone(self) -> Any:
        import tensorflow as tf

        if self.taking is not None:
            self.end()
            self.taken_alone += RawElements(self.own).drop(self.progress.consumed - self.taken_alone)
        self.taken_alone += 1
        self.progress.consumed += 1
        try:
            return self.plan.split.traced.concrete(self.own)
        except tf.errors.OutOfRangeError:
            self.progress.consumed -= 1
            self.progress.is_over = True
            raise


@dataclass
class _Passes:
    """Iterable given to Keras in place of the data set: each iteration is a new pass."""

    begin: Callable[[], Any]

    def __iter__(self) -> Any:
        return self.begin()


@dataclass
class KerasFit:
    """The hooks of Keras `fit`, and the calls of `fit` under way."""

    datasets: Datasets
    _fits: list[_Fit] = field(default_factory=list[_Fit])
    name: str = NAME
    was_asked: bool = False
    """Set once `fit` has asked for data."""
    _fitted: WeakSet[Any] = field(default_factory=WeakSet[Any])
    """Data sets of `fit`, if places are kept."""

    def __post_init__(self) -> None:
        self.datasets.resume.add_source(self._places)

    def hooks(self) -> dict[str, Hook]:
        """Return the hooks, by the module after whose import they belong."""
        hooks: dict[str, Hook] = {"keras.src.backend.tensorflow.trainer": self._hook_keras}
        if self.datasets.resume.is_on:
            hooks["keras.src.trainers.epoch_iterator"] = self._hook_epochs
            hooks |= {
                f"keras.src.layers.preprocessing.{name}": _hook_adapting(self.datasets, layer)
                for name, layer in _ADAPTING.items()
            }
        return hooks

    # --- hooks --------------------------------------------------------------------------------------------

    def _hook_keras(self, module: ModuleType) -> None:
        def fit(original: Any) -> Any:
            @wraps(original)
            def run(trainer: Any, *args: Any, **kwargs: Any) -> Any:
                self._fits.append(fit := _Fit(trainer))
                self.datasets.is_keras = True
                try:
                    return original(trainer, *args, **kwargs)
                finally:
                    if fit.last is not None:
                        fit.last.end()
                    self._fits.pop()
                    if self.datasets.resume.is_on:
                        trainer._initial_epoch = None  # Keras would begin all later calls at the restored epoch, too
                    self.datasets.is_keras = bool(self._fits)

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
                return self._source(fit, dataset)

            return run

        replace_method(module.TensorFlowTrainer, "fit", fit)
        replace_method(module.TensorFlowTrainer, "evaluate", _aside(self.datasets))
        replace_method(module.TensorFlowTrainer, "predict", _aside(self.datasets))
        replace_method(module.TFEpochIterator, "__init__", init)
        replace_method(module.TFEpochIterator, "_get_iterator", get)

    def _hook_epochs(self, module: ModuleType) -> None:
        def enumerate_(original: Any) -> Any:
            @wraps(original)
            def run(iterator: Any) -> Any:
                fit = next((each for each in self._fits if each.iterator is iterator), None)
                return original(iterator) if fit is None else self._epoch(fit, original(iterator))

            return run

        replace_method(module.EpochIterator, "_enumerate_iterator", enumerate_)

    def _epoch(self, fit: _Fit, steps: Iterator[Any]) -> Iterator[Any]:
        """Yield the steps of an epoch, without steps that an earlier run has done."""
        skipped = None
        for place, each in enumerate(steps):
            if skipped is None and fit.progress is not None:
                skipped, fit.progress.skipped = fit.progress.skipped, 0
            if place < (skipped or 0):
                continue
            fit.epoch_steps = place + 1
            yield each
        fit.epoch_steps = None

    # --- places -------------------------------------------------------------------------------------------

    def _places(self) -> Iterator[DatasetPlace]:
        """Yield the places of passes under way, and of data sets without a pass under way."""
        running = [fit for fit in self._fits if fit.progress is not None]
        under_way: set[int] = set()
        for fit in running:
            progress = fit.progress
            assert progress is not None
            persists = fit.iterator.steps_per_epoch is not None and not progress.is_over
            is_in_epoch = fit.epoch_steps is not None and not progress.is_over
            if is_in_epoch or persists:
                under_way.add(id(progress.dataset))
                yield self.datasets.places.of(
                    progress.dataset, progress.orders, progress.consumed, epoch_steps=fit.epoch_steps or 0
                )
        for dataset in [*self._fitted]:
            if id(dataset) not in under_way:
                yield self.datasets.places.of_next(dataset)

    def _progress(self, fit: _Fit, dataset: Any, orders: Orders, place: DatasetPlace | None) -> _Progress:
        """Record that a pass has begun."""
        fit.progress = _Progress(dataset, tuple(orders.values()))
        if place is not None:
            fit.progress.consumed, fit.progress.skipped = place.consumed, place.epoch_steps
            self.datasets.resume.say_at(place)
        if self.datasets.resume.is_on:
            self._fitted.add(dataset)
        return fit.progress

    def _begin_plain(self, fit: _Fit, function: _TrainFunction, dataset: Any) -> Any:
        """Begin a pass without data workers, whose elements are counted."""
        with self.datasets.drawing:
            place = self.datasets.places.resumed(dataset)
            iterator = iter(dataset)
            orders = self.datasets.drawn.at(dataset)
        if place is not None:
            with self.datasets.ours():
                there = RawElements(iterator).drop(place.consumed)
            if there < place.consumed:
                self.datasets.resume.say_short(place, there)
                return self._begin_plain(fit, function, dataset)
        function.progress = self._progress(fit, dataset, orders, place)
        function.progress.length = self.datasets.places.identity(dataset).elements
        function.elements = fit.trainer.steps_per_execution
        return iterator

    # --- decisions ----------------------------------------------------------------------------------------

    def _source(self, fit: _Fit, dataset: Any) -> Any:
        """Return the iterable for `fit`: the data set itself, if nothing moves."""
        self.was_asked = True
        trainer = fit.trainer
        function = trainer.train_function
        if not isinstance(function, _TrainFunction):
            function = _train_function(trainer, function)
        plans = _plans(dataset)
        if function not in plans:
            plans[function] = self._planned(trainer, function, dataset)
        if (plan := plans[function]) is None:
            if not self._counts(dataset):
                return dataset
            trainer.train_function = function
            return _Passes(lambda: self._begin_plain(fit, function, dataset))
        trainer.train_function = function
        return _Passes(lambda: self._begin(fit, function, plan))

    def _counts(self, dataset: Any) -> bool:
        """Return whether elements are counted of a data set of which nothing moves."""
        if not self.datasets.resume.is_on:
            return False
        try:
            self.datasets.places.identity(dataset)
        except Exception as error:  # distributed data sets, for instance, have no operations that can be read
            self.datasets.say_once(f"resume: no place is kept for the data of {NAME}: {in_words(error)}")
            return False
        return True

    def _planned(self, trainer: Any, function: _TrainFunction, dataset: Any) -> Plan | None:
        datasets = self.datasets

        def plan() -> Plan:
            _check(trainer)
            opening = open_dataset(dataset, datasets.is_fixed, datasets.drawn.of)
            return datasets.plan(
                opening, function.splits, lambda: _traced(function.original, dataset, datasets.is_fixed)
            )

        found = datasets.planned(NAME, plan)
        if found is not None:
            datasets.tell_moved(NAME, found)
        return found

    def _begin(self, fit: _Fit, function: _TrainFunction, plan: Plan) -> Any:
        """Begin a pass over the source, in the order that the data set itself would have now.

        If that fails, return an iterator of the data set itself; from then on nothing of it moves.
        """
        opening, drawing = plan.opening, self.datasets.drawing
        with drawing:
            place = self.datasets.places.resumed(opening.dataset)
            # draws an order of the data set, as `fit` alone would: the program may look at the next order later
            own = iter(opening.dataset) if opening.is_apart else None
            orders = self.datasets.drawn.at(opening.dataset)
        # an iterator of several shuffles draws some of its orders at its first element, so nobody could change over
        is_tried = own is not None and place is None and len(opening.shuffles) < 2 and has_fixed_order(opening.dataset)
        try:
            steps = self._steps(function, plan, orders, own if is_tried else None)
            there = 0 if is_tried else steps.start().raw.drop(place.consumed if place else 0)
        except Exception as error:  # data workers never stop a program that would run without them
            self._fail(function, opening.dataset, error)
            return iter(opening.dataset) if own is None else own
        if place is not None and there < place.consumed:
            self.datasets.resume.say_short(place, there)
            steps.end()
            return self._begin(fit, function, plan)
        steps.progress = self._progress(fit, opening.dataset, orders, place)
        fit.last = steps
        return steps

    def _steps(self, function: _TrainFunction, plan: Plan, orders: Orders, own: Any) -> _Steps:
        """Return the steps of a pass. orders: orders that the data set itself has drawn. own: its own iterator.

        No other order is drawn here, except by shuffles that the source shares with the data set.
        """
        opening, datasets = plan.opening, self.datasets
        if not opening.is_apart:
            orders = {**orders} | {id(own): datasets.drawn.of(own) + 1 for own, _ in opening.shuffles}

        def at_first() -> None:
            with datasets.ours():
                for own, _ in opening.shuffles[:-1] if opening.is_apart else ():
                    iter(own)  # shuffles before the last one draw their orders when the first element is taken

        with datasets.drawing:
            raw = datasets.raw_of(opening, orders)
            for each, _ in () if opening.is_apart else opening.shuffles:
                datasets.drawn.made_one(each)
        return _Steps(
            plan=plan,
            begin=lambda: datasets.begin(plan, raw),
            own=own,
            is_split=lambda: datasets.is_split(NAME, plan.split),
            failed=lambda error: self._fail(function, opening.dataset, error),
            at_first=at_first,
            at_end=lambda: datasets.at_end(opening.dataset),
            progress=_Progress(opening.dataset, tuple(orders.values())),
        )

    def _fail(self, function: _TrainFunction, dataset: Any, error: Exception) -> None:
        """Note that data workers cannot go on with a data set: from the next pass on nothing of it moves."""
        self.datasets.say_once(f"{NAME}: nothing moves to data workers any more: {in_words(error)}")
        _plans(dataset)[function] = None


class _TrainFunction:
    """Function given to Keras in place of its own training function."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.splits = Splits()
        self.progress: _Progress | None = None
        """Progress of a pass without data workers."""
        self.elements = 1
        """Elements that a call takes in such a pass."""

    def __call__(self, iterator: Any) -> Any:
        import tensorflow as tf

        if not isinstance(iterator, _Steps):
            progress = self.progress or _Progress(None, ())
            progress.consumed += self.elements
            if 0 <= progress.length < progress.consumed:  # the last call of several steps may have fewer elements
                progress.consumed = progress.length
            try:
                return self.original(iterator)
            except (tf.errors.OutOfRangeError, StopIteration):  # StopIteration: of several steps in a call
                progress.is_over = True
                raise

        return iterator.run()


def _aside(datasets: Datasets) -> Callable[[Any], Any]:
    """Return a function that wraps a method of Keras which does not train: within it, no place is claimed."""

    def made(original: Any) -> Any:
        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            before, datasets.places.is_aside = datasets.places.is_aside, True
            try:
                return original(*args, **kwargs)
            finally:
                datasets.places.is_aside = before

        return run

    return made


def _hook_adapting(datasets: Datasets, layer: str) -> Hook:
    return lambda module: replace_method(getattr(module, layer), "adapt", _aside(datasets))


def _train_function(trainer: Any, original: Any) -> _TrainFunction:
    """Return the replacement of a trainer's training function, kept as long as the trainer has that function."""
    found = vars(trainer).get(_FUNCTION)
    if found is None or found.original is not original:
        vars(trainer)[_FUNCTION] = found = _TrainFunction(original)
    return found


def _plans(dataset: Any) -> WeakKeyDictionary[_TrainFunction, Plan | None]:
    """Return the plans of a data set, by training function; None: nothing of it moves. They live as long as both."""
    return vars(dataset).setdefault(_PLANS, WeakKeyDictionary())


def _check(trainer: Any) -> None:
    """Raise ProgramRefused if a trainer's step is not a single graph of operations."""
    check_strategy(trainer.distribute_strategy)
    if trainer.run_eagerly:
        raise ProgramRefused(f"run_eagerly is on: {EAGER}")
    if trainer.jit_compile:
        raise ProgramRefused(XLA)
    if trainer.steps_per_execution != 1:
        raise ProgramRefused(f"steps_per_execution={trainer.steps_per_execution}: the loop over steps is one operation")


def _traced(original: Any, dataset: Any, is_fixed: Callable[[Any], bool]) -> Traced:
    """Trace a single step of Keras' training function.

    Raises ProgramRefused: the program has a training function of its own.
    """
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

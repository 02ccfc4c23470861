"""The iterators of a program, each with the pass that gives its elements.

An iterator stays an object of TensorFlow, and can go on without data workers at any time: it is then pulled to the
program's position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet, finalize, ref

from ..errors import ProgramRefused
from ..graphs.shuffles import has_fixed_order, shuffles_of
from ..resume.places import DatasetPlace
from ..splitting.opening import Opening, open_dataset
from .datasets import Datasets
from .iterator_places import IteratorPlaces
from .passes import Pass, RawElements
from .plans import Plan
from .state import IteratorState, dataset_state, iterator_state, keep_state

ELEMENTS_MIN = 8
"""Least elements of an iteration with data workers: they must be ready before it ends (taste)."""


class Iterators:
    """The iterators of a program.

    next: TensorFlow's own function to take an element. name: of these programs, for people.
    """

    def __init__(self, datasets: Datasets, name: str) -> None:
        self.next: Callable[[Any], Any] = next
        self._datasets = datasets
        self._name = name
        self._single: WeakSet[IteratorState] = WeakSet()
        """Iterators whose shuffles draw orders while they run."""
        self.places = IteratorPlaces(datasets)
        datasets.resume.add_source(self.places.of_now)
        datasets.resume.on_restored(lambda: self.places.restored(self._remade))

    def made(self, iterator: Any, place: DatasetPlace | None = None) -> None:
        """Record a new iterator, made while the caller holds `Datasets.drawing`. place: where the iterator begins."""
        dataset = iterator._dataset
        state = IteratorState(dataset, self._datasets.drawn.at(dataset), ref(iterator))
        keep_state(iterator, state)
        state.place, state.taken = place, place.consumed if place else 0
        self.places.made(state)
        found = dataset_state(dataset)
        found.waiting = [each for each in found.waiting if each() is not None]
        found.waiting.append(ref(state))

    def open(self, state: IteratorState) -> Opening:
        """Open the data set of an iterator. Raises ProgramRefused."""
        found, datasets = dataset_state(state.dataset), self._datasets
        if found.opening is None:
            opening = open_dataset(state.dataset, datasets.is_fixed, lambda shuffle: datasets.drawn.of(shuffle) - 1)
            if not opening.is_apart:
                raise ProgramRefused("its shuffles cannot be made a second time")
            if len(opening.shuffles) > 1:
                raise ProgramRefused("it draws orders at several places")
            found.opening = opening
        return found.opening

    def plan(self, state: IteratorState, key: object, title: str, plan: Callable[[], Plan]) -> Plan | None:
        """Return the plan for a use of elements; the first call decides. None: nothing moves.

        key: identifies the use within the data set. plan: makes the plan.
        """
        plans = dataset_state(state.dataset).plans
        if key not in plans:
            is_short = 0 <= int(state.dataset.cardinality()) < ELEMENTS_MIN
            plans[key] = None if is_short else self._datasets.planned(title, plan)
        found = plans[key]
        if found is not None and found.opening.is_single and state.running is None:
            own, _ = found.opening.shuffles[0]
            return found if self._datasets.drawn.of(own) == 1 else None
        return found

    def step(
        self,
        state: IteratorState,
        plan: Plan,
        arguments: Sequence[Any],
        plain: Callable[[], Any],
        at_end: Callable[[], Any],
        alone: Callable[[], Any],
    ) -> Any:
        """Run a step on the next element.

        plain: runs the step as the program alone. at_end: runs it where no element is left. alone: runs it as the
        program alone, on an iterator that data workers may serve later.
        """
        import tensorflow as tf

        with state.lock:
            if not self._is_split(state, plan):
                return alone()
        try:
            with state.lock:
                running = self._running(state, plan)
                taken = running.take()
                self.places.count(state)
        except _TooShort:
            state.taken = 0
            self.settle(state, "it has too few elements")
            return plain()
        except tf.errors.OutOfRangeError:
            state.is_over = dataset_state(state.dataset).meets_end = True
            return at_end()
        except Exception as error:
            if isinstance(error, tf.errors.OpError) and not has_fixed_order(state.dataset):
                state.taken += 1
                raise
            # the iterator's own graph raises the error as alone, and gives the elements behind it
            self.settle(state, f"{type(error).__name__} at an element")
            return plain()
        return running.finish(taken, arguments)

    def _is_split(self, state: IteratorState, plan: Plan) -> bool:
        """Return whether data workers prepare the next element of an iterator, by their trial.

        Where another iterator with the same seeds would give other elements, they do from the first one on.
        """
        if not has_fixed_order(state.dataset) or state.place is not None:
            return True
        if self._datasets.is_split(self._name, plan.split):
            return True
        if state.running is not None:
            self.settle(state, "")
        return False

    def plain_step(self, state: IteratorState, plain: Callable[[], Any]) -> Any:
        """Take an element, or run a step, as the program alone, on an iterator that data workers may serve later."""
        import tensorflow as tf

        try:
            with self._datasets.ours():
                return plain()
        except tf.errors.OutOfRangeError:
            state.is_over = dataset_state(state.dataset).meets_end = True
            raise
        except tf.errors.OpError:
            state.is_plain = True  # with an element lost in a batch, later batches have other elements
            raise
        finally:
            self.places.count(state)
            state.pulled += 1

    def plain_element(self, iterator: Any, state: IteratorState) -> Any:
        """Return the next element, from TensorFlow's own iterator."""
        if state.running is not None or state.place is not None:
            self.settle(state, "the program takes an element itself")
            state = iterator_state(iterator) or state
        return self.plain_step(state, lambda: self.next(iterator))

    def settle(self, state: IteratorState, reason: str) -> None:
        """Let TensorFlow's own iterator go on from the program's position, for good."""
        import tensorflow as tf

        with state.lock:
            if state.is_plain:
                return
            state.is_plain = True
            with self._datasets.drawing:
                self._single.discard(state)
            if state.running is not None:
                state.running.end()
                if reason:
                    self._datasets.say_once(f"{self._name}: the rest of an iteration is prepared at home: {reason}")
            state.running = state.raw = None
            iterator = state.iterator()
            with tf.init_scope(), self._datasets.ours():
                there = 0 if iterator is None else self._pulled(iterator, state)
            if iterator is not None and state.place is not None and not self._arrived(state, there):
                with tf.init_scope(), self._datasets.drawing:
                    self._remade(iterator, None).is_plain = True

    def _pulled(self, iterator: Any, state: IteratorState) -> int:
        """Pull TensorFlow's iterator to the program's position; return how many elements there were before that."""
        import tensorflow as tf

        while state.pulled < state.taken:
            try:
                self.next(iterator)
            except tf.errors.OutOfRangeError:
                return state.pulled
            except tf.errors.OpError:
                pass  # the program saw this error when it received this element
            state.pulled += 1
        return state.pulled

    def settle_singles(self, dataset: Any) -> None:
        """Let iterators go on without data workers if another iterator will now draw from their shuffles.

        This concerns shuffles that draw orders while an iterator runs.
        """
        with self._datasets.drawing:
            singles = [*self._single]
        shuffles = {id(each) for each in shuffles_of(dataset)} if singles else set[int]()
        for state in singles:
            if shuffles & state.orders.keys():
                self.settle(state, "another iterator draws orders of its shuffle")

    def _running(self, state: IteratorState, plan: Plan) -> Pass:
        """Return the pass of an iterator, and begin it at the program's position if there is none."""
        if state.running is not None and state.running.plan is plan:
            return state.running
        raw = self._raw(state, plan.opening) if state.running is None else state.running.end()
        state.running = self._datasets.begin(plan, raw)
        if plan.opening.is_single:
            with self._datasets.drawing:
                self._single.add(state)
        finalize(state, state.running.feed.end, state.running.stream.name)
        return state.running

    def _raw(self, state: IteratorState, opening: Opening) -> RawElements:
        """Return the raw elements of an iterator from the program's position on. Raises _TooShort."""
        with self._datasets.drawing:
            waiting = dataset_state(state.dataset).waiting
            while state.raw is None:  # iterators made earlier draw their orders earlier
                each = waiting.pop(0)()
                if each is not None and not each.is_plain:
                    each.raw = self._datasets.raw_of(opening, each.orders)
        with self._datasets.ours():
            there = state.raw.drop(state.taken)
        if state.place is not None and not self._arrived(state, there):
            raise _TooShort
        return state.raw

    # --- places -------------------------------------------------------------------------------------------

    def counted(self, state: IteratorState, plain: Callable[[], Any]) -> Any:
        """Run a step as the program alone, and count the element that it takes."""
        import tensorflow as tf

        iterator = state.iterator()
        self.settle(state, "the program takes an element itself")
        state = iterator_state(iterator) or state
        try:
            result = plain()
        except tf.errors.OutOfRangeError:
            state.is_over = dataset_state(state.dataset).meets_end = True
            raise
        except tf.errors.OpError:
            self.places.count(state)
            raise
        self.places.count(state)
        return result

    def _remade(self, iterator: Any, place: DatasetPlace | None) -> IteratorState:
        """Begin an iterator again with the next order, at a place."""
        iterator._create_iterator(iterator._dataset)
        state = iterator_state(iterator)
        assert state is not None
        state.place, state.taken = place, place.consumed if place else 0
        return state

    def _arrived(self, state: IteratorState, there: int) -> bool:
        """Return whether an iterator has all elements before its place, and write a line about it."""
        place, state.place = state.place, None
        assert place is not None
        if there < place.consumed:
            self._datasets.resume.say_short(place, there)
            return False
        self._datasets.resume.say_at(place)
        return True


class _TooShort(Exception):
    """Exception: an iterator has fewer elements than were trained before its place."""

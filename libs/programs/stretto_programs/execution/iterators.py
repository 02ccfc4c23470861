"""The iterators of a program, each with the pass that gives its elements.

An iterator stays one of TensorFlow, which can go on by itself at any time: it is pulled as far as the program is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet, finalize, ref

from ..errors import ProgramRefused
from .datasets import Datasets, Pass, Plan, RawElements
from .held import Held, held_of, hold, known
from .iterator_places import IteratorPlaces
from .opening import Opening, has_fixed_order, open_dataset, shuffles_of
from .places import Place

ELEMENTS_MIN = 8
"""Least elements of an iteration: data workers begin with it, and must come before its end (taste)."""


class Iterators:
    """All iterators of one program. next: TensorFlow's own way to take an element. name: of the way, for people."""

    def __init__(self, datasets: Datasets, name: str) -> None:
        self.next: Callable[[Any], Any] = next
        self._datasets = datasets
        self._name = name
        self._single: WeakSet[Held] = WeakSet()
        """those that draw orders while they run"""
        self.places = IteratorPlaces(datasets)
        datasets.resume.add_source(self.places.of_now)
        datasets.resume.on_restored(lambda: self.places.restored(self._remade))

    def made(self, iterator: Any, place: Place | None = None) -> None:
        """Note a new iterator. `Datasets.drawing` is held since before it was made. place: where it begins."""
        dataset = iterator._dataset
        held = Held(dataset, self._datasets.drawn.at(dataset), ref(iterator))
        hold(iterator, held)
        held.place, held.taken = place, place.consumed if place else 0
        self.places.made(held)
        found = known(dataset)
        found.waiting = [each for each in found.waiting if each() is not None]
        found.waiting.append(ref(held))

    def open(self, held: Held) -> Opening:
        """Open the data set of an iterator. Raises ProgramRefused."""
        found, datasets = known(held.dataset), self._datasets
        if found.opening is None:
            opening = open_dataset(held.dataset, datasets.is_fixed, lambda shuffle: datasets.drawn.of(shuffle) - 1)
            if not opening.is_apart:
                raise ProgramRefused("its shuffles cannot be made a second time")
            if len(opening.shuffles) > 1:
                raise ProgramRefused("it draws orders at several places")
            found.opening = opening
        return found.opening

    def plan(self, held: Held, key: object, title: str, plan: Callable[[], Plan]) -> Plan | None:
        """Return the plan for what is done with an element, decided at the first. key: what is done. None: it stays."""
        plans = known(held.dataset).plans
        if key not in plans:
            is_short = 0 <= int(held.dataset.cardinality()) < ELEMENTS_MIN
            plans[key] = None if is_short else self._datasets.planned(title, plan)
        found = plans[key]
        if found is not None and found.opening.is_single and held.running is None:
            own, _ = found.opening.shuffles[0]
            return found if self._datasets.drawn.of(own) == 1 else None
        return found

    def step(
        self,
        held: Held,
        plan: Plan,
        arguments: Sequence[Any],
        plain: Callable[[], Any],
        at_end: Callable[[], Any],
    ) -> Any:
        """Do a step with the next element. plain: does it as the program alone; at_end: where no element is left."""
        import tensorflow as tf

        try:
            with held.lock:
                running = self._running(held, plan)
                taken = running.take()
                self.places.count(held)
        except _TooShort:
            held.taken = 0
            self.settle(held, "it has too few elements")
            return plain()
        except tf.errors.OutOfRangeError:
            held.is_over = known(held.dataset).meets_end = True
            return at_end()
        except Exception as error:
            if isinstance(error, tf.errors.OpError) and not has_fixed_order(held.dataset):
                held.taken += 1
                raise
            # its own graph raises it, and the elements that follow are those that follow there
            self.settle(held, f"{type(error).__name__} at an element")
            return plain()
        return running.finish(taken, arguments)

    def plain_element(self, iterator: Any, held: Held) -> Any:
        """Return the next element as the program alone takes it."""
        import tensorflow as tf

        if held.running is not None or held.place is not None:
            self.settle(held, "the program takes an element itself")
            held = held_of(iterator) or held
        try:
            with self._datasets.ours():
                return self.next(iterator)
        except tf.errors.OutOfRangeError:
            held.is_over = known(held.dataset).meets_end = True
            raise
        except tf.errors.OpError:
            held.is_plain = True  # behind a lost element of a batch, batches are others
            raise
        finally:
            self.places.count(held)
            held.pulled += 1

    def settle(self, held: Held, reason: str) -> None:
        """Let an iterator go on by itself, from the program's place on."""
        import tensorflow as tf

        with held.lock:
            if held.is_plain:
                return
            held.is_plain = True
            with self._datasets.drawing:
                self._single.discard(held)
            if held.running is not None:
                held.running.end()
                self._datasets.say_once(f"{self._name}: the rest of an iteration is prepared at home: {reason}")
            held.running = held.raw = None
            iterator = held.iterator()
            with tf.init_scope(), self._datasets.ours():
                there = 0 if iterator is None else self._pulled(iterator, held)
            if iterator is not None and held.place is not None and not self._arrived(held, there):
                with tf.init_scope(), self._datasets.drawing:
                    self._remade(iterator, None).is_plain = True

    def _pulled(self, iterator: Any, held: Held) -> int:
        """Pull an iterator as far as the program is; return the elements that there were before it."""
        import tensorflow as tf

        while held.pulled < held.taken:
            try:
                self.next(iterator)
            except tf.errors.OutOfRangeError:
                return held.pulled
            except tf.errors.OpError:
                pass  # the program has met it at its place
            held.pulled += 1
        return held.pulled

    def settle_singles(self, dataset: Any) -> None:
        """Let iterators go on by themselves whose shuffles draw orders while they run, and will now for another one."""
        with self._datasets.drawing:
            singles = [*self._single]
        shuffles = {id(each) for each in shuffles_of(dataset)} if singles else set[int]()
        for held in singles:
            if shuffles & held.orders.keys():
                self.settle(held, "another iterator draws orders of its shuffle")

    def _running(self, held: Held, plan: Plan) -> Pass:
        """Return the pass of an iterator, begun at the program's place."""
        if held.running is not None and held.running.plan is plan:
            return held.running
        raw = self._raw(held, plan.opening) if held.running is None else held.running.end()
        held.running = self._datasets.begin(plan, raw)
        if plan.opening.is_single:
            with self._datasets.drawing:
                self._single.add(held)
        finalize(held, held.running.feed.end, held.running.stream.name)
        return held.running

    def _raw(self, held: Held, opening: Opening) -> RawElements:
        """Return the raw elements of an iterator, from the program's place on. Raises _TooShort."""
        with self._datasets.drawing:
            waiting = known(held.dataset).waiting
            while held.raw is None:  # those made before draw their orders before
                each = waiting.pop(0)()
                if each is not None and not each.is_plain:
                    each.raw = self._datasets.raw_of(opening, each.orders)
        with self._datasets.ours():
            there = held.raw.drop(held.taken)
        if held.place is not None and not self._arrived(held, there):
            raise _TooShort
        return held.raw

    # --- places -------------------------------------------------------------------------------------------

    def counted(self, held: Held, plain: Callable[[], Any]) -> Any:
        """Do a step that takes one element of an iterator, as the program alone."""
        import tensorflow as tf

        iterator = held.iterator()
        self.settle(held, "the program takes an element itself")
        held = held_of(iterator) or held
        try:
            result = plain()
        except tf.errors.OutOfRangeError:
            held.is_over = known(held.dataset).meets_end = True
            raise
        except tf.errors.OpError:
            self.places.count(held)
            raise
        self.places.count(held)
        return result

    def _remade(self, iterator: Any, place: Place | None) -> Held:
        """Let an iterator begin again, with the next order."""
        iterator._create_iterator(iterator._dataset)
        held = held_of(iterator)
        assert held is not None
        held.place, held.taken = place, place.consumed if place else 0
        return held

    def _arrived(self, held: Held, there: int) -> bool:
        """Tell whether an iterator has the elements before its place."""
        place, held.place = held.place, None
        assert place is not None
        if there < place.consumed:
            self._datasets.resume.say_short(place, there)
            return False
        self._datasets.resume.say_at(place)
        return True


class _TooShort(Exception):
    """Tells that an iterator has not the elements before its place."""

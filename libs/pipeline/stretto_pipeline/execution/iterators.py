"""The iterators of a program, each with the pass that gives its elements.

An iterator stays one of TensorFlow, which can go on by itself at any time: it is pulled as far as the program is.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet, finalize, ref

from ..errors import ProgramRefused
from .datasets import Datasets, Pass, Plan, RawElements
from .opening import Opening, Orders, has_fixed_order, open_dataset, shuffles_of
from .places import Place

ELEMENTS_MIN = 8
"""Least elements of an iteration: data workers begin with it, and must come before its end (taste)."""
_HELD, _KNOWN = "_stretto_held", "_stretto_known"


@dataclass(eq=False)
class Held:
    """An iterator of the program. orders: those that it has drawn. iterator: refers to it.

    taken: elements that the program has had; pulled: those of them that the iterator itself has given. is_plain: it
    goes on by itself for good. made, used: when it was made, and last gave an element. is_over: it met its end.
    by_function: a function took its elements. place: where it began, until it is there. unknown: why nobody can tell
    its place any more. is_saved: it is in a checkpoint of the program's own.
    """

    dataset: Any
    orders: Orders
    iterator: ref[Any]
    taken: int = 0
    pulled: int = 0
    raw: RawElements | None = None
    running: Pass | None = None
    is_plain: bool = False
    made: int = 0
    used: int = 0
    is_over: bool = False
    by_function: bool = False
    place: Place | None = None
    unknown: str = ""
    is_saved: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)


@dataclass(eq=False)
class Known:
    """A data set of the program. waiting: its iterators without raw elements, in the order in which they were made.

    plans: by what is done with an element; None: that cannot move.
    """

    waiting: list[ref[Held]] = field(default_factory=list[ref[Held]])
    opening: Opening | None = None
    meets_end: bool = False
    """An iterator of it met its end."""
    plans: dict[object, Plan | None] = field(default_factory=dict[object, Plan | None])


def known(dataset: Any) -> Known:
    """Return what is known of a data set; it lives as long as that."""
    return dataset.__dict__.setdefault(_KNOWN, Known())


def held_of(value: Any) -> Held | None:
    """Return the iterator that a value is, None if it is none of the program's."""
    return getattr(value, "__dict__", {}).get(_HELD)


class Iterators:
    """All iterators of one program. next: TensorFlow's own way to take an element. name: of the way, for people."""

    def __init__(self, datasets: Datasets, name: str) -> None:
        self.next: Callable[[Any], Any] = next
        self._datasets = datasets
        self._name = name
        self._single: WeakSet[Held] = WeakSet()
        """those that draw orders while they run"""
        self._clock = itertools.count(1)
        self._all: WeakSet[Held] = WeakSet()
        self._iterated: WeakSet[Any] = WeakSet()
        """data sets of which an iterator was made"""
        datasets.resume.tells(self._places)
        datasets.resume.calls(self._restored)

    def made(self, iterator: Any, place: Place | None = None) -> None:
        """Note a new iterator. `Datasets.drawing` is held since before it was made. place: where it begins."""
        dataset = iterator._dataset
        held = Held(dataset, self._datasets.drawn.at(dataset), ref(iterator))
        iterator.__dict__[_HELD] = held
        if self._datasets.resume.is_on:
            held.made = held.used = next(self._clock)
            held.place, held.taken = place, place.consumed if place else 0
            self._all.add(held)
            self._iterated.add(dataset)
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
                self._count(held)
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
            self._count(held)
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
            self._count(held)
            raise
        self._count(held)
        return result

    def counts(self, held: Held) -> bool:
        """Return whether elements of an iterator that goes on by itself are counted."""
        return self._datasets.resume.is_on and not held.unknown and not held.is_saved

    def _count(self, held: Held) -> None:
        held.taken += 1
        held.used = next(self._clock)

    def claimed(self, dataset: Any) -> Place | None:
        """Return where the next iterator over a data set begins, its orders drawn; None: at its beginning.

        `Datasets.drawing` is held.
        """
        place = self._datasets.claimed(dataset)
        return place if place is not None and self._datasets.advance(dataset, place) else None

    def _restored(self) -> None:
        """Let iterators that are not used yet go on at places that wait."""
        if self._datasets.is_keras:  # `fit` takes no element of them
            return
        with self._datasets.drawing:
            for held in sorted(self._all, key=lambda each: each.made):
                iterator = held.iterator()
                if iterator is None or held.taken or held.is_plain or held.running is not None:
                    continue
                place = self._datasets.claimed(held.dataset)
                if place is not None and place.orders == tuple(held.orders.values()):
                    held.place, held.taken = place, place.consumed
                elif place is not None and self._datasets.advance(held.dataset, place):
                    self._remade(iterator, place)

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

    def _places(self) -> Iterator[Place]:
        """Return the places of iterators under way, and of data sets without one."""
        running = sorted((each for each in self._all if self._is_running(each)), key=lambda each: each.made)
        for held in running:
            orders = [*held.orders.values()]
            place = self._datasets.place(held.dataset, orders, held.taken)
            yield replace(place, unknown=held.unknown or place.unknown)
        under_way = {id(each.dataset) for each in self._all if self._is_running(each) or each.is_saved}
        for dataset in [*self._iterated]:
            if id(dataset) not in under_way and any(True for _ in shuffles_of(dataset)):
                yield self._datasets.next_place(dataset)

    def _is_running(self, held: Held) -> bool:
        """Return whether the program would go on with an iterator.

        It has left one once it uses a later one of such a data set. A function took the last element of an iterator
        whose end the program does not look for: it counts, and makes another.
        """
        if held.iterator() is None or held.is_over or held.is_saved:
            return False
        identity = self._datasets.identity(held.dataset).digest
        later = [each for each in self._all if each.made > held.used and each.used > each.made]
        if any(self._datasets.identity(each.dataset).digest == identity for each in later):
            return False
        is_all = held.taken == int(held.dataset.cardinality())
        return not (is_all and held.by_function and not known(held.dataset).meets_end)


class _TooShort(Exception):
    """Tells that an iterator has not the elements before its place."""

"""The iterators of a program, each with the pass that gives its elements.

An iterator stays one of TensorFlow, which can go on by itself at any time: it is pulled as far as the program is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet, finalize, ref

from ..errors import ProgramRefused
from .datasets import Datasets, Pass, Plan, RawElements
from .opening import Opening, Orders, has_fixed_order, open_dataset, shuffles_of

ELEMENTS_MIN = 8
"""Least elements of an iteration: data workers begin with it, and must come before its end (taste)."""
_HELD, _KNOWN = "_stretto_held", "_stretto_known"


@dataclass(eq=False)
class Held:
    """An iterator of the program. orders: those that it has drawn. iterator: refers to it.

    taken: elements that the program has had; pulled: those of them that the iterator itself has given. is_plain: it
    goes on by itself for good.
    """

    dataset: Any
    orders: Orders
    iterator: ref[Any]
    taken: int = 0
    pulled: int = 0
    raw: RawElements | None = None
    running: Pass | None = None
    is_plain: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)


@dataclass(eq=False)
class Known:
    """A data set of the program. waiting: its iterators without raw elements, in the order in which they were made.

    plans: by what is done with an element; None: that cannot move.
    """

    waiting: list[ref[Held]] = field(default_factory=list[ref[Held]])
    opening: Opening | None = None
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

    def made(self, iterator: Any) -> None:
        """Note a new iterator. `Datasets.drawing` is held since before it was made."""
        dataset = iterator._dataset
        held = Held(dataset, self._datasets.drawn.at(dataset), ref(iterator))
        iterator.__dict__[_HELD] = held
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
                held.taken += 1
        except tf.errors.OutOfRangeError:
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

        if held.running is not None:
            self.settle(held, "the program takes an element itself")
        try:
            with self._datasets.ours():
                return self.next(iterator)
        except tf.errors.OutOfRangeError:
            raise
        except tf.errors.OpError:
            held.is_plain = True  # behind a lost element of a batch, batches are others
            raise
        finally:
            held.taken += 1
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
                while iterator is not None and held.pulled < held.taken:
                    held.pulled += 1
                    with suppress(tf.errors.OpError):  # the program has met it at its place
                        self.next(iterator)

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
        """Return the raw elements of an iterator, from the program's place on."""
        import tensorflow as tf

        with self._datasets.drawing:
            waiting = known(held.dataset).waiting
            while held.raw is None:  # those made before draw their orders before
                each = waiting.pop(0)()
                if each is not None and not each.is_plain:
                    each.raw = self._datasets.raw_of(opening, each.orders)
        for _ in range(held.taken):
            with self._datasets.ours(), suppress(tf.errors.OpError):  # as above
                held.raw.next()
        return held.raw

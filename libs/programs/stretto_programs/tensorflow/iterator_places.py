"""The places of a program's iterators: which it would go on with, and where they go on after a restore."""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from ..graphs.shuffles import shuffles_of
from ..resume.places import Key, Place
from .datasets import Datasets
from .state import IteratorState, dataset_state

TWINS = "another data set has its operations and length, so that another run cannot tell them apart"


class IteratorPlaces:
    """All iterators of one program, while places are kept."""

    def __init__(self, datasets: Datasets) -> None:
        self._datasets = datasets
        self._clock = itertools.count(1)
        self._all: WeakSet[IteratorState] = WeakSet()
        self._iterated: WeakSet[Any] = WeakSet()
        """data sets of which an iterator was made"""

    def made(self, state: IteratorState) -> None:
        """Note a new iterator."""
        if self._datasets.resume.is_on:
            state.made = state.used = next(self._clock)
            self._all.add(state)
            self._iterated.add(state.dataset)

    def count(self, state: IteratorState) -> None:
        """Note that the program has had an element."""
        state.taken += 1
        state.used = next(self._clock)

    def counts(self, state: IteratorState) -> bool:
        """Return whether elements of an iterator that goes on by itself are counted."""
        return self._datasets.resume.is_on and not state.unknown and not state.is_saved

    def restored(self, remade: Callable[[Any, Place], IteratorState]) -> None:
        """Let iterators that are not used yet go on at places that wait.

        remade: lets one begin again, with the next order.
        """
        if self._datasets.is_keras:  # `fit` takes no element of them
            return
        with self._datasets.drawing:
            for state in sorted(self._all, key=lambda each: each.made):
                iterator = state.iterator()
                if iterator is None or state.taken or state.is_plain or state.running is not None:
                    continue
                place = self._datasets.places.claimed(state.dataset)
                if place is not None and place.orders == tuple(state.orders.values()):
                    state.place, state.taken = place, place.consumed
                elif place is not None and self._datasets.places.advance(state.dataset, place):
                    remade(iterator, place)

    def of_now(self) -> Iterator[Place]:
        """Return the places of iterators under way, and of data sets without one."""
        doubled = self._doubled()
        for place in self._of_all():
            yield replace(place, unknown=TWINS) if place.key in doubled and not place.unknown else place

    def _of_all(self) -> Iterator[Place]:
        running = sorted((each for each in self._all if self._is_running(each)), key=lambda each: each.made)
        for state in running:
            orders = [*state.orders.values()]
            place = self._datasets.places.of(state.dataset, orders, state.taken)
            yield replace(place, unknown=state.unknown or place.unknown)
        under_way = {id(each.dataset) for each in self._all if self._is_running(each) or each.is_saved}
        for dataset in [*self._iterated]:
            if id(dataset) not in under_way and any(True for _ in shuffles_of(dataset)):
                yield self._datasets.places.of_next(dataset)

    def _doubled(self) -> set[Key]:
        """Return the keys of several data sets."""

        def counted() -> Counter[Key]:
            return Counter(self._datasets.places.identity(each).key for each in [*self._iterated])

        found = counted()
        if found.total() > len(found):
            gc.collect()  # one that the program has left may refer to itself
            found = counted()
        return {key for key, count in found.items() if count > 1}

    def _is_running(self, state: IteratorState) -> bool:
        """Return whether the program would go on with an iterator.

        It has left one once it uses a later one of such a data set. A function took the last element of an iterator
        whose end the program does not look for: it counts, and makes another.
        """
        if state.iterator() is None or state.is_over or state.is_saved:
            return False
        key = self._datasets.places.identity(state.dataset).key
        later = [each for each in self._all if each.made > state.used and each.used > each.made]
        if any(self._datasets.places.identity(each.dataset).key == key for each in later):
            return False
        is_all = state.taken == int(state.dataset.cardinality())
        return not (is_all and state.by_function and not dataset_state(state.dataset).meets_end)

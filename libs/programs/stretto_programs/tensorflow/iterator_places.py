"""The places of a program's iterators: recorded at checkpoints, and assigned after a restore."""

from __future__ import annotations

import gc
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from ..graphs.shuffles import shuffles_of
from ..resume.places import DatasetPlace, Key
from .datasets import Datasets
from .state import IteratorState, dataset_state

TWINS = "another data set has its operations and length, so that another run cannot tell them apart"


class IteratorPlaces:
    """The iterators of a program, recorded if places are kept."""

    def __init__(self, datasets: Datasets) -> None:
        self._datasets = datasets
        self._clock = itertools.count(1)
        self._all: WeakSet[IteratorState] = WeakSet()
        self._iterated: WeakSet[Any] = WeakSet()
        """Data sets over which an iterator was made."""

    def made(self, state: IteratorState) -> None:
        """Record a new iterator."""
        if self._datasets.resume.is_on:
            state.made = state.used = next(self._clock)
            self._all.add(state)
            self._iterated.add(state.dataset)

    def count(self, state: IteratorState) -> None:
        """Count an element that the program has received."""
        state.taken += 1
        state.used = next(self._clock)

    def counts(self, state: IteratorState) -> bool:
        """Return whether elements of an iterator are counted that no lane serves."""
        return self._datasets.resume.is_on and not state.unknown and not state.is_saved

    def restored(self, remade: Callable[[Any, DatasetPlace], IteratorState]) -> None:
        """Assign restored places to iterators that the program has not used yet.

        remade: begins an iterator again with the next order, at a place.
        """
        if self._datasets.is_keras:  # `fit` takes no element of these iterators
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

    def of_now(self) -> Iterator[DatasetPlace]:
        """Return the places of iterators under way, and of data sets without an iterator under way."""
        doubled = self._doubled()
        for place in self._of_all():
            yield replace(place, unknown=TWINS) if place.key in doubled and not place.unknown else place

    def _of_all(self) -> Iterator[DatasetPlace]:
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
        """Return keys that several data sets share."""

        def counted() -> Counter[Key]:
            return Counter(self._datasets.places.identity(each).key for each in [*self._iterated])

        found = counted()
        if found.total() > len(found):
            gc.collect()  # a data set that the program has dropped may be in a reference cycle
            found = counted()
        return {key for key, count in found.items() if count > 1}

    def _is_running(self, state: IteratorState) -> bool:
        """Return whether the program would go on with an iterator after this moment.

        It would not if it uses a later iterator of the same data set. It also would not if a function has taken the
        last element and the program never looks for the end: then the program counts elements, and makes another
        iterator.
        """
        if state.iterator() is None or state.is_over or state.is_saved:
            return False
        key = self._datasets.places.identity(state.dataset).key
        later = [each for each in self._all if each.made > state.used and each.used > each.made]
        if any(self._datasets.places.identity(each.dataset).key == key for each in later):
            return False
        is_all = state.taken == int(state.dataset.cardinality())
        return not (is_all and state.by_function and not dataset_state(state.dataset).meets_end)

"""The shuffles of a data set, and the orders that iterators have drawn of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

Orders = Mapping[int, int]
"""The number of the order that an iterator has drawn, by the identity of the shuffle."""


@dataclass
class Drawn:
    """Iterators that were made over each shuffle: each draws the seeds of its order."""

    counts: WeakKeyDictionary[Any, int] = field(default_factory=WeakKeyDictionary[Any, int])

    def made(self, dataset: Any) -> None:
        """Note an iterator over a data set."""
        for each in shuffles_of(dataset):
            self.made_one(each)

    def made_one(self, shuffle: Any) -> None:
        """Note an iterator over one shuffle."""
        self.counts[shuffle] = self.of(shuffle) + 1

    def of(self, shuffle: Any) -> int:
        """Return the iterators made over a shuffle."""
        return self.counts.get(shuffle, 0)

    def at(self, dataset: Any) -> Orders:
        """Return the numbers of the orders that the iterator made last over a data set has drawn."""
        return {id(each): self.of(each) for each in shuffles_of(dataset)}


def all_of(dataset: Any) -> Iterator[Any]:
    """Return a data set and all that it is made of."""
    waiting = [dataset]
    while waiting:
        each = waiting.pop()
        inner = getattr(each, "_dataset", None)
        yield each
        waiting += [inner] if inner is not None and type(each).__name__.endswith("Adapter") else each._inputs()


def shuffles_of(dataset: Any) -> Iterator[Any]:
    """Return the shuffles that a data set is made of."""
    return (each for each in all_of(dataset) if "ShuffleDataset" in type(each).__name__)


def has_fixed_order(dataset: Any) -> bool:
    """Return whether a second iterator that draws the same seeds gives the same elements in the same order."""
    import tensorflow as tf

    if dataset.options().deterministic is False:
        return False
    return all(any(tf.get_static_value(seed) for seed in (each._seed, each._seed2)) for each in shuffles_of(dataset))

"""The shuffles of a data set, and the number of orders that iterators have drawn from each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

Orders = Mapping[int, int]
"""Number of the order that an iterator has drawn from each shuffle, by the identity of the shuffle."""


@dataclass
class Drawn:
    """Count of the orders drawn from each shuffle.

    Each iterator that is made over a shuffle draws the seeds of an order.
    """

    counts: WeakKeyDictionary[Any, int] = field(default_factory=WeakKeyDictionary[Any, int])

    def made(self, dataset: Any) -> None:
        """Count an iterator over a data set: an order of each of its shuffles."""
        for each in shuffles_of(dataset):
            self.made_one(each)

    def made_one(self, shuffle: Any) -> None:
        """Count an order of a shuffle."""
        self.counts[shuffle] = self.of(shuffle) + 1

    def of(self, shuffle: Any) -> int:
        """Return how many orders were drawn from a shuffle."""
        return self.counts.get(shuffle, 0)

    def at(self, dataset: Any) -> Orders:
        """Return, for the shuffles of a data set, the numbers of the orders drawn last."""
        return {id(each): self.of(each) for each in shuffles_of(dataset)}


def all_of(dataset: Any) -> Iterator[Any]:
    """Return a data set, its inputs, their inputs, and so on."""
    waiting = [dataset]
    while waiting:
        each = waiting.pop()
        inner = getattr(each, "_dataset", None)
        yield each
        waiting += [inner] if inner is not None and type(each).__name__.endswith("Adapter") else each._inputs()


def shuffles_of(dataset: Any) -> Iterator[Any]:
    """Return the shuffles among a data set and its inputs."""
    return (each for each in all_of(dataset) if "ShuffleDataset" in type(each).__name__)


def has_fixed_order(dataset: Any) -> bool:
    """Return whether two iterators with the same seeds give the same elements in the same order."""
    import tensorflow as tf

    if dataset.options().deterministic is False:
        return False
    return all(any(tf.get_static_value(seed) for seed in (each._seed, each._seed2)) for each in shuffles_of(dataset))

"""The state of each iterator and data set of a program, kept with that object."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from ..graphs.shuffles import Orders
from ..resume.places import DatasetPlace
from ..splitting.opening import Opening
from .passes import Pass, RawElements
from .plans import Plan

_ITERATOR, _DATASET = "_stretto_iterator", "_stretto_dataset"


@dataclass(eq=False)
class IteratorState:
    """The state of an iterator of the program.

    orders: numbers of the orders that it has drawn. taken: elements that the program has received. pulled: how many of
    these TensorFlow's own iterator gave. raw, running: raw elements and pass that serve it. is_plain: no lane serves it
    any longer. made, used: times at which it was made and last used. is_over: the program has met its end. by_function:
    a function takes its elements. place: restored place at which it begins, until it is there. unknown: why its place
    cannot be told. is_saved: a checkpoint of the program has it.
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
    place: DatasetPlace | None = None
    unknown: str = ""
    is_saved: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)


@dataclass(eq=False)
class DatasetState:
    """The state of a data set of the program.

    waiting: iterators that have no raw elements yet, in the order in which they were made. meets_end: an iterator of it
    has met its end. plans: by use of its elements; None: nothing moves.
    """

    waiting: list[ref[IteratorState]] = field(default_factory=list[ref[IteratorState]])
    opening: Opening | None = None
    meets_end: bool = False
    """An iterator of the data set has met its end."""
    plans: dict[object, Plan | None] = field(default_factory=dict[object, Plan | None])


def dataset_state(dataset: Any) -> DatasetState:
    """Return the state of a data set, which lives as long as the data set."""
    return dataset.__dict__.setdefault(_DATASET, DatasetState())


def iterator_state(value: Any) -> IteratorState | None:
    """Return the state of an iterator; None if the value is no iterator of the program."""
    return getattr(value, "__dict__", {}).get(_ITERATOR)


def keep_state(iterator: Any, state: IteratorState) -> None:
    """Keep a state with its iterator."""
    iterator.__dict__[_ITERATOR] = state

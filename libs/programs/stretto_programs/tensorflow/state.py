"""Records of the iterators of a program, and of its data sets; each lives as long as that does."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from ..graphs.shuffles import Orders
from ..resume.places import Place
from ..splitting.opening import Opening
from .passes import Pass, RawElements
from .plans import Plan

_ITERATOR, _DATASET = "_stretto_iterator", "_stretto_dataset"


@dataclass(eq=False)
class IteratorState:
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
class DatasetState:
    """A data set of the program. waiting: its iterators without raw elements, in the order in which they were made.

    plans: by what is done with an element; None: that cannot move.
    """

    waiting: list[ref[IteratorState]] = field(default_factory=list[ref[IteratorState]])
    opening: Opening | None = None
    meets_end: bool = False
    """An iterator of it met its end."""
    plans: dict[object, Plan | None] = field(default_factory=dict[object, Plan | None])


def dataset_state(dataset: Any) -> DatasetState:
    """Return what is known of a data set; it lives as long as that."""
    return dataset.__dict__.setdefault(_DATASET, DatasetState())


def iterator_state(value: Any) -> IteratorState | None:
    """Return the iterator that a value is, None if it is none of the program's."""
    return getattr(value, "__dict__", {}).get(_ITERATOR)


def keep_state(iterator: Any, state: IteratorState) -> None:
    """Keep with an iterator what is known of it."""
    iterator.__dict__[_ITERATOR] = state

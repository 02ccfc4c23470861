"""The tf.data of a program, for all ways in which TensorFlow 2 takes steps: its iterators and tables, and passes.

A pass over a data set is one iteration of it whose raw elements home pulls, and whose elements are prepared elsewhere.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import wraps
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

from ..errors import ProgramRefused, in_words
from ..partition.cut import Prices
from . import graphs, splitting
from .data_workers import DataWorkers
from .feed import Feed, Raw, Stream
from .graphs import GraphPreparation, array_of
from .identities import draws_more, identity_of
from .importing import Hook, replace_method
from .opening import Drawn, Opening, Orders, check_travels, shuffles_of
from .places import Place
from .resume import Identity, Resume, dropped
from .splitting import Prepared, Split, Traced, moved_in_words, moved_us, prepared_for, split_of
from .values import packed

PREPARED_MAX = 16
"""Bound of preparations that are kept though no pass needs them (taste)."""
_IDENTITY = "_stretto_identity"


@dataclass(frozen=True)
class Plan:
    """A data set that is prepared for a split step."""

    split: Split
    opening: Opening
    prepared: Prepared


class Splits:
    """The splits of one step. One holds for all data sets of one kind of elements, as a traced function does.

    They keep how the last data sets were prepared for them.
    """

    def __init__(self) -> None:
        self._prepared: dict[tuple[int, object], Prepared] = {}
        """by split and by what maps have in common; the last one is the one used last"""
        self._splits: list[tuple[Any, Split]] = []

    def of(self, element_spec: Any) -> Split | None:
        """Return the split for elements of a kind, None if there is none yet."""
        return next((split for spec, split in self._splits if spec == element_spec), None)

    def keep(self, element_spec: Any, split: Split) -> None:
        """Keep a split for later data sets."""
        if self.of(element_spec) is None:
            self._splits.append((element_spec, split))

    def prepared(self, split: Split, opening: Opening) -> Prepared:
        """Return how a data set is prepared for one of them. Raises ProgramRefused: that cannot be."""
        key = id(split), opening.stage_key
        found = self._prepared.pop(key, None) or prepared_for(split, opening)
        self._prepared[key] = found
        if len(self._prepared) > PREPARED_MAX:
            del self._prepared[next(iter(self._prepared))]
        return found


@dataclass(frozen=True)
class LivePreparation(GraphPreparation):
    """A preparation that lanes know as long as anything at home refers to it. live: the numbers of all of these."""

    live: Callable[[], list[int]]

    def head(self) -> dict[str, Any]:
        """Return the part that is JSON."""
        return super().head() | {"live": self.live()}


class Numbered:
    """Gives preparations the numbers under which lanes know them.

    A preparation that no pass needs, and that was not used lately, is forgotten; if it is used again, it gets another
    number, and lanes are taught again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[int, tuple[GraphPreparation, LivePreparation]] = {}
        """by the identity of the first; the last one is the one used last"""
        self._live: WeakValueDictionary[int, LivePreparation] = WeakValueDictionary()

    def of(self, made: GraphPreparation) -> LivePreparation:
        """Return a preparation under a number of now."""
        with self._lock:
            _, found = self._last.pop(id(made), (made, None))
            if found is None:
                values: dict[str, Any] = {each.name: getattr(made, each.name) for each in fields(made)}
                values["number"] = next(splitting.numbers)
                found = LivePreparation(**values, live=self.live)
                self._live[found.number] = found
            self._last[id(made)] = made, found
            if len(self._last) > PREPARED_MAX:
                del self._last[next(iter(self._last))]
            return found

    def live(self) -> list[int]:
        """Return the numbers that lanes may still be asked for."""
        with self._lock:
            return [*self._live.keys()]


@dataclass
class RawElements:
    """Raw elements of one pass. waiting: pulled before, for another step, and not used; errors at their place."""

    iterator: Any
    waiting: list[Any] = field(default_factory=list[Any])

    def next(self) -> Sequence[Any]:
        """Return the next one; raises what the program's own iterator would."""
        import tensorflow as tf

        if self.waiting:
            found = self.waiting.pop(0)
            if isinstance(found, BaseException):
                raise found
            return found
        try:
            return tf.nest.flatten(next(self.iterator))
        except StopIteration:
            raise tf.errors.OutOfRangeError(None, None, "End of sequence") from None

    def drop(self, count: int) -> int:
        """Drop elements that the program has had; return how many there were. An error is one at its place."""
        return dropped(self.next, count)


@dataclass
class Pass:
    """One pass over a data set, for one step."""

    plan: Plan
    feed: Feed
    stream: Stream
    raw: RawElements

    def take(self) -> dict[str, Any]:
        """Return what home takes of the next element, by name. Raises what the program's own iterator would."""
        raw, values = self.feed.take(self.stream)
        _untie(self.stream.ended)
        prepared = self.plan.prepared
        taken = {name: raw.element[place] for name, place in prepared.local.items()}
        return taken | dict(zip(prepared.names, values, strict=True))

    def finish(self, taken: Mapping[str, Any], arguments: Sequence[Any]) -> Any:
        """Do home's part of a step, and return its result. arguments: tensors that it takes beside its iterator."""
        return self.plan.split.finish(taken, arguments)

    def end(self) -> RawElements:
        """End the pass, and return its raw elements: another may go on with them."""
        self.feed.end(self.stream.name)
        pulled: list[Any] = [each.element for each in self.stream.raw.values()]
        pulled += [] if self.stream.ended is None else [self.stream.ended]
        return RawElements(self.raw.iterator, pulled + self.raw.waiting)


class Datasets:
    """The tf.data of one program, and what all ways know of it.

    workers: prepare elements. resume: knows the places of iterations.
    """

    def __init__(self, workers: DataWorkers, resume: Resume) -> None:
        self.workers, self.resume = workers, resume
        self.drawn = Drawn()
        self.drawing = threading.RLock()
        """held while an iterator is made and counted: its order is the one of its count"""
        self.is_keras = False
        """Set while Keras `fit` runs: it takes its steps itself."""
        self.is_aside = False
        """Set while Keras evaluates, predicts or adapts: that is no training, and goes on nowhere."""
        self._fixed: dict[int, Any] = {}
        self._numbers = itertools.count()
        self._numbered = Numbered()
        self._said: set[str] = set()
        self._thread = threading.local()

    def hooks(self) -> dict[str, Hook]:
        """Return the hooks, by the module after whose import they belong."""
        return {
            "tensorflow.python.data.ops.iterator_ops": self._hook_iterators,
            "tensorflow.python.ops.lookup_ops": self._hook_tables,
        }

    def _hook_iterators(self, module: ModuleType) -> None:
        def made(original: Any) -> Any:
            @wraps(original)
            def create(iterator: Any, dataset: Any) -> Any:
                with self.drawing:
                    if not self.is_ours:
                        self.drawn.made(dataset)
                    return original(iterator, dataset)

            return create

        replace_method(module.OwnedIterator, "_create_iterator", made)

    def _hook_tables(self, module: ModuleType) -> None:
        def made(original: Any) -> Any:
            @wraps(original)
            def create(table: Any) -> Any:
                handle = original(table)
                self._fixed[id(handle)] = handle
                return handle

            return create

        replace_method(module.StaticHashTable, "_create_resource", made)

    @property
    def is_ours(self) -> bool:
        """Return whether this thread runs code of ours: what it makes is not the program's."""
        return getattr(self._thread, "depth", 0) > 0

    @contextmanager
    def ours(self) -> Generator[None]:
        """Mark what runs within as ours."""
        self._thread.depth = getattr(self._thread, "depth", 0) + 1
        try:
            yield
        finally:
            self._thread.depth -= 1

    def is_fixed(self, handle: Any) -> bool:
        """Return whether nothing can change a resource: a static table."""
        return id(handle) in self._fixed

    def say_once(self, text: str) -> None:
        """Say something to people, once."""
        if text not in self._said:
            self._said.add(text)
            self.workers.say(text)

    def planned(self, title: str, plan: Callable[[], Plan]) -> Plan | None:
        """Return a plan, with data workers started. None: the program runs as it is, and the reason is said once."""
        try:
            with self.ours():
                found = plan()
            self.workers.started(graphs.FRAMEWORK, graphs.settings())
        except Exception as error:  # data workers never stop a program that would run without them
            reason = in_words(error)
        else:
            return found
        self.say_once(f"{title}: nothing moves to data workers: {reason}")
        return None

    def plan(self, opening: Opening, splits: Splits, trace: Callable[[], Traced]) -> Plan:
        """Decide what of a step moves, and make both parts. Nothing of the data set is drawn. Raises PipelineError."""
        check_travels(opening.source)
        kept = splits.of(opening.dataset.element_spec)
        split = split_of(trace(), opening, Prices()) if kept is None else kept
        if (left_us := moved_us(split, opening)) < splitting.REQUEST_US:
            raise ProgramRefused(f"{left_us / 1e3:.2f} ms of a step could move: too little")
        splits.keep(opening.dataset.element_spec, split)
        return Plan(split, opening, splits.prepared(split, opening))

    def tell_moved(self, title: str, plan: Plan, *, once: bool = False) -> None:
        """Say what moves. once: not if the same was said before."""
        what = moved_in_words(plan.split.partition, plan.opening.moved)
        text = f"{title}: {self.workers.count} data workers prepare {what}"
        if not once or text not in self._said:
            self.workers.say(f"{text}: {moved_us(plan.split, plan.opening) / 1e3:.2f} ms of CPU a step")
        self._said.add(text)

    # --- places -------------------------------------------------------------------------------------------

    def identity(self, dataset: Any) -> Identity:
        """Return the identity of a data set."""
        found: Identity | None = vars(dataset).get(_IDENTITY)
        if found is None:
            with self.ours():
                vars(dataset)[_IDENTITY] = found = identity_of(dataset)
        return found

    def place(self, dataset: Any, orders: Sequence[int], consumed: int, *, epoch_steps: int = 0) -> Place:
        """Return a place in a data set."""
        found = self.identity(dataset)
        return Place(found.source, found.digest, tuple(orders), consumed, epoch_steps, found.length, found.unknown)

    def next_place(self, dataset: Any) -> Place:
        """Return the place of the next iterator over a data set."""
        return self.place(dataset, [self.drawn.of(each) + 1 for each in shuffles_of(dataset)], 0)

    def claimed(self, dataset: Any) -> Place | None:
        """Return the place at which the next iterator over a data set begins, None: at its beginning."""
        if self.is_aside or not self.resume.is_waiting:
            return None
        try:
            return self.resume.claim(self.identity(dataset))
        except Exception as error:  # a data set that nobody can read begins where it does alone
            self.say_once(f"resume: a data set begins anew: {in_words(error)}")
            return None

    def resumed_place(self, dataset: Any) -> Place | None:
        """Return the place at which the next iterator over a data set begins, after drawing the orders before it.

        None: at its beginning. `drawing` is held.
        """
        place = self.claimed(dataset)
        return place if place is not None and self.advance(dataset, place) else None

    def advance(self, dataset: Any, place: Place) -> bool:
        """Draw the orders before a place; return whether the next iterator draws the place's own. `drawing` is held."""
        try:
            shuffles = [*shuffles_of(dataset)]
            missing = [wanted - 1 - self.drawn.of(each) for each, wanted in zip(shuffles, place.orders, strict=True)]
            if min(missing, default=0) < 0:
                raise ProgramRefused("the program has drawn more orders of its shuffle than before the checkpoint")
            if any(missing) and not draws_more(dataset):
                raise ProgramRefused("nobody can tell how many orders a shuffle under a repeat or a cache has drawn")
            for each, count in zip(shuffles, missing, strict=True):
                for _ in range(count):
                    with self.ours():
                        iter(each)
                    self.drawn.made_one(each)
        except Exception as error:  # the data begin where they do alone
            self.resume.refuse(place, in_words(error))
            return False
        return True

    # --- passes -------------------------------------------------------------------------------------------

    def raw_of(self, opening: Opening, orders: Orders) -> RawElements:
        """Return the raw elements of a pass in the orders that an iterator of the program's has drawn."""
        with self.ours(), self.drawing:
            for own, twin in opening.shuffles:
                while self.drawn.of(twin) < orders[id(own)] - 1:
                    iter(twin)  # draws of this shuffle only: those before it draw when an element is taken
                    self.drawn.made_one(twin)
            iterator = iter(opening.source)
            self.drawn.made(opening.source)
        return RawElements(iterator)

    def begin(self, plan: Plan, raw: RawElements) -> Pass:
        """Begin a pass with these raw elements."""
        feed = self.workers.started(graphs.FRAMEWORK, graphs.settings())
        prepared = plan.prepared

        def pull() -> Raw:
            with self.ours():
                element = raw.next()
            return Raw(element, packed([array_of(element[place]) for place in prepared.used]))

        name = f"pass {next(self._numbers)}"
        return Pass(plan, feed, Stream(name, self._numbered.of(prepared.preparation), pull, prepared.here), raw)

    def at_end(self, dataset: Any) -> Any:
        """Return an iterator at the end of a data set, of which nothing is drawn."""
        with self.ours():
            return iter(dataset.take(0))


def _untie(error: BaseException | None) -> None:
    """Free an error that waits for its step of the frames it was met in: they refer to the program's iterator."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__

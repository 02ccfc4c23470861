"""The tf.data of a program, for all hooks: iterators and tables, plans, and passes over data sets."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from ..errors import ProgramRefused, in_words
from ..graphs.shuffles import Drawn, Orders
from ..import_hooks import Hook, replace_method
from ..lanes.data_workers import DataWorkers
from ..lanes.feed import Raw, Stream
from ..partition.cut import Prices
from ..resume.dataset_places import DatasetPlaces
from ..resume.resume import Resume
from ..splitting import graph_preparation
from ..splitting.graph_preparation import array_of
from ..splitting.opening import Opening, check_travels
from ..splitting.split import Split, check_moves, moved_in_words, moved_us, split_of
from ..splitting.traced import Traced
from ..splitting.values import packed
from .passes import Pass, RawElements
from .plans import Numbered, Plan, Splits


class Datasets:
    """The tf.data of a program.

    workers: prepare elements. resume: keeps the places of iterators.
    """

    def __init__(self, workers: DataWorkers, resume: Resume) -> None:
        self.workers, self.resume = workers, resume
        self.drawn = Drawn()
        self.drawing = threading.RLock()
        """Held while an iterator is made and its order is counted, so that both agree."""
        self.is_keras = False
        """Set while Keras `fit` runs, which has hooks of its own."""
        self._fixed: dict[int, Any] = {}
        self._numbers = itertools.count()
        self._numbered = Numbered()
        self._said: set[str] = set()
        self._thread = threading.local()
        self.places = DatasetPlaces(resume, self.drawn, self.ours, self.say_once)

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
        """Return whether this thread runs code of this package; iterators that it makes are not the program's."""
        return getattr(self._thread, "depth", 0) > 0

    @contextmanager
    def ours(self) -> Generator[None]:
        """Mark the block as code of this package."""
        self._thread.depth = getattr(self._thread, "depth", 0) + 1
        try:
            yield
        finally:
            self._thread.depth -= 1

    def is_fixed(self, handle: Any) -> bool:
        """Return whether the resource of a handle can never change: it is a static table."""
        return id(handle) in self._fixed

    def say_once(self, text: str) -> None:
        """Say something to people, once."""
        if text not in self._said:
            self._said.add(text)
            self.workers.say(text)

    def planned(self, title: str, plan: Callable[[], Plan]) -> Plan | None:
        """Return a plan. None: the program goes on as it is, and a line says why."""
        try:
            with self.ours():
                found = plan()
            self.workers.check()
        except Exception as error:  # data workers never stop a program that would run without them
            reason = in_words(error)
        else:
            return found
        self.say_once(f"{title}: nothing moves to data workers: {reason}")
        return None

    def plan(self, opening: Opening, splits: Splits, trace: Callable[[], Traced]) -> Plan:
        """Decide which part of a step moves, and make both parts. Raises PipelineError.

        Nothing is drawn of the data set.
        """
        check_travels(opening.source)
        kept = splits.of(opening.dataset.element_spec)
        try:
            split = split_of(trace(), opening, Prices()) if kept is None else kept
            check_moves(split, opening)
        except ProgramRefused as error:
            where = f"; maps of tf.data stay, because of {opening.ended_by}" if opening.has_kept else ""
            raise ProgramRefused(f"{error}{where}") from error
        splits.keep(opening.dataset.element_spec, split)
        return Plan(split, opening, splits.prepared(split, opening))

    def tell_moved(self, title: str, plan: Plan, *, once: bool = False) -> None:
        """Write a line: what moves. once: not again if the same was written before."""
        what = moved_in_words(plan.split.partition, plan.opening.moved)
        text = f"{title}: data workers can prepare {what}"
        if not once or text not in self._said:
            self.workers.say(f"{text}: {moved_us(plan.split, plan.opening) / 1e3:.2f} ms of CPU a step")
        self._said.add(text)

    def is_split(self, title: str, split: Split) -> bool:
        """Note that the program begins its next step; return whether data workers prepare it, by their trial."""
        trial, workers = split.trial, self.workers
        before, feed = trial.phase, workers.feed
        is_served, is_trusted = (False, False) if feed is None else (feed.is_served, feed.is_trusted)
        trial.next_step(time.monotonic(), is_served=is_served, is_trusted=is_trusted)
        if trial.phase != before:
            workers.figures = trial.in_words() or workers.figures
            if trial.phase == "waiting":
                workers.started(graph_preparation.FRAMEWORK, graph_preparation.settings())
            elif trial.phase == "home":
                workers.say(f"{title} goes on without data workers: {trial.in_words()}")
        workers.steps_alone += not trial.is_split
        return trial.is_split

    # --- passes -------------------------------------------------------------------------------------------

    def raw_of(self, opening: Opening, orders: Orders) -> RawElements:
        """Return the raw elements of a pass, in the orders that an iterator of the program has drawn."""
        with self.ours(), self.drawing:
            for own, twin in opening.shuffles:
                while self.drawn.of(twin) < orders[id(own)] - 1:
                    # draws an order of this shuffle only: shuffles before it draw when the first element is taken
                    iter(twin)
                    self.drawn.made_one(twin)
            iterator = iter(opening.source)
            self.drawn.made(opening.source)
        return RawElements(iterator)

    def begin(self, plan: Plan, raw: RawElements) -> Pass:
        """Begin a pass over raw elements."""
        feed = self.workers.started(graph_preparation.FRAMEWORK, graph_preparation.settings())
        prepared = plan.prepared

        def pull() -> Raw:
            with self.ours():
                element = raw.next()
            return Raw(element, packed([array_of(element[place]) for place in prepared.used]))

        name = f"pass {next(self._numbers)}"
        return Pass(plan, feed, Stream(name, self._numbered.of(prepared.preparation), pull, prepared.here), raw)

    def at_end(self, dataset: Any) -> Any:
        """Return an iterator that is at the end of a data set, and draws no order."""
        with self.ours():
            return iter(dataset.take(0))

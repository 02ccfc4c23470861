"""PyTorch's `DataLoader` with data workers: the program keeps its iterator, whose batches are prepared elsewhere.

Samplers stay at home, and draw at the steps at which they would draw alone. The first batches of a loader are prepared
at home, to see what they cost and whether their items are pure functions; then lanes get the data set. Home prepares in
the program's own thread, at the batch's own step: so items that are not pure give the same batches, too.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, finalize, ref

import numpy as np
from stretto_pipeline.arrays import size_bytes

from ..errors import HookMissing, ProgramRefused, in_words
from ..import_hooks import Hook, replace_method
from ..lanes.data_workers import DataWorkers
from ..lanes.feed import Feed, Raw, Stream
from ..partition.cut import Prices
from ..partition.partition import REQUEST_US, WORTH_SHARE
from . import purity, samples, trees

MEASURED = 3
"""Batches of a loader that home prepares first: the first may open files, two more are measured."""
LIVE_MAX = 4
"""Most data sets that lanes keep; together they have at most `samples.CODE_BYTES_MAX`."""
CODE_SHARE_MAX = 0.25
"""Largest share of a pass's CPU that reading the data set, to see whether it has changed, may take (taste)."""
TURN_STEPS, TURNS_MAX = 8, 2
"""Steps of a short turn, and number of short turns after which a pass goes home.

Two passes that alternate would otherwise move in and out all the time.
"""


_T = TypeVar("_T")


@dataclass
class LoaderMeasures:
    """The measurements of a loader. tuples: types of named tuples in its batches, by name."""

    name: str
    num_workers: int = 0
    refused: str = ""
    took_s: list[float] = field(default_factory=list[float])
    between_s: list[float] = field(default_factory=list[float])
    """Seconds that the program took between two batches."""
    tuples: dict[str, type] = field(default_factory=dict[str, type])
    digest: str = ""
    """Digest of the data set when it was measured."""
    code_s: float = 0.0
    """Seconds of CPU to read the data set."""
    batch_bytes: int = 0
    is_told: bool = False
    is_change_told: bool = False

    @property
    def is_measured(self) -> bool:
        return len(self.took_s) >= MEASURED


@dataclass
class TorchLoader:
    """The hook of `DataLoader`, and the loaders that the program has iterated."""

    workers: DataWorkers
    name: str = "PyTorch DataLoader"
    was_asked: bool = False
    """Set once a loader has been iterated."""
    turn: Callable[[], Any] = field(default=lambda: None)
    """Returns the pass that took a batch last."""
    _sources: WeakKeyDictionary[Any, LoaderMeasures] = field(default_factory=WeakKeyDictionary[Any, LoaderMeasures])
    _live: tuple[samples.SamplePreparation, ...] = ()
    """Preparations that lanes keep, least recently used first; replaced as a whole, since threads of lanes read it."""
    _numbers: Any = field(default_factory=itertools.count)
    _pid: int = field(default_factory=os.getpid)
    _is_busy: bool = False
    """Set while items of a pass are prepared, which may iterate loaders of their own."""

    def hooks(self) -> dict[str, Hook]:
        """Return the hooks, by the module after whose import they belong."""
        return {"torch.utils.data.dataloader": self._hook}

    def _hook(self, module: ModuleType) -> None:
        single: Any = getattr(module, "_SingleProcessDataLoaderIter", None)
        if single is None or not hasattr(single, "_next_data"):
            raise HookMissing(
                "torch.utils.data.dataloader has no _SingleProcessDataLoaderIter._next_data: torch 2 is known"
            )

        def made(original: Any) -> Any:
            @wraps(original)
            def iterate(loader: Any) -> Any:
                iterator = original(loader)
                if self.is_own():
                    self._move(loader, iterator, single)
                return iterator

            return iterate

        replace_method(module.DataLoader, "__iter__", made)

    def is_own(self) -> bool:
        """Return whether this is the program's own thread, outside of items that are being prepared."""
        is_main = threading.current_thread() is threading.main_thread()
        return is_main and os.getpid() == self._pid and not self._is_busy

    def _move(self, loader: Any, iterator: Any, single: type) -> None:
        self.was_asked = True
        title = "DataLoader" if type(loader).__name__ == "DataLoader" else f"{type(loader).__name__} (a DataLoader)"
        source = LoaderMeasures(f"{title} of {type(loader.dataset).__name__}", loader.num_workers)
        known = self.decided(source, lambda: self._sources.setdefault(loader, source))
        if known is None or known.refused:
            return
        if known is source:
            refusal = self.decided(source, lambda: _refusal_of(loader))
            if refusal := refusal or ("" if type(iterator) is single else "its iterator is another one"):
                self.refuse(source, refusal)
        found = None if known.refused else self.decided(known, lambda: _Pass(self, known, loader, iterator))
        if found is not None:
            iterator._next_data = found

    # --- what a pass asks for -----------------------------------------------------------------------------

    def refuse(self, source: LoaderMeasures, reason: str) -> None:
        """Leave a loader as it is from now on, and write a line that says why."""
        if not source.refused:
            source.refused = reason
            self.workers.say(f"{source.name}: nothing moves to data workers: {reason}")

    def measured(self, source: LoaderMeasures) -> None:
        """Note that a loader's first batches were measured, and that it will move."""

    def decided(self, source: LoaderMeasures, decide: Callable[[], _T]) -> _T | None:
        """Return a decision about a loader; None if deciding failed, and the loader is left as it is.

        Decisions look at objects of the program and start processes; an exception there must not reach the program.
        """
        try:
            return decide()
        except Exception as error:  # data workers never stop a program that would run without them
            self.refuse(source, in_words(error))
        return None

    def preparation(self, source: LoaderMeasures, code: samples.Code) -> samples.SamplePreparation:
        """Return the preparation of a loader's data set; the least recently used preparations are dropped."""
        found = next((each for each in self._live if each.code.digest == code.digest), None)
        kept = [each for each in self._live if each is not found]
        if found is None or found.tuples != source.tuples:
            number = next(self._numbers)
            tuples, live = dict(source.tuples), lambda: [each.number for each in self._live]
            found = samples.SamplePreparation(number, code, tuples, source.batch_bytes, live)
        kept.append(found)
        while len(kept) > LIVE_MAX or sum(each.code.size_bytes for each in kept) > samples.CODE_BYTES_MAX:
            del kept[0]
        self._live = tuple(kept)
        return found

    def is_live(self, preparation: samples.SamplePreparation) -> bool:
        """Return whether lanes still keep a preparation."""
        return any(each is preparation for each in self._live)

    def begin(
        self, source: LoaderMeasures, code: samples.Code, stream: Callable[[str, samples.SamplePreparation], Stream]
    ) -> tuple[Feed, samples.SamplePreparation, Stream]:
        """Return the feed, the preparation of the data set, and a stream for a pass. Raises ProgramRefused."""
        feed = self.workers.started(samples.FRAMEWORK, samples.settings(), is_home_ahead=False)
        preparation = self.preparation(source, code)
        if not source.is_told:
            source.is_told = True
            took_ms = min(source.took_s) * 1e3
            self.workers.say(f"{source.name}: {self.workers.count} data workers prepare it: {took_ms:.2f} ms a step")
        return feed, preparation, stream(f"pass {next(self._numbers)}", preparation)

    def tell_changed(self, source: LoaderMeasures, name: str) -> None:
        """Write a line, once for a loader: home prepares the rest of a pass, since the program changed the data set."""
        if not source.is_change_told:
            self.workers.say(
                f"{source.name}: home prepares the rest of a pass: the program changed the data set, {name}"
            )
        source.is_change_told = True

    @contextmanager
    def busy(self) -> Generator[None]:
        """Mark that the block prepares items: loaders that they iterate stay as they are."""
        before, self._is_busy = self._is_busy, True
        try:
            yield
        finally:
            self._is_busy = before


class _Pass:
    """A pass over a loader. It replaces `_next_data` of the loader's iterator, and returns the same batches."""

    def __init__(self, way: TorchLoader, source: LoaderMeasures, loader: Any, iterator: Any) -> None:
        self._way, self._source = way, source
        self._indices: Any = iterator._sampler_iter
        self._fetcher: Any = iterator._dataset_fetcher
        self._pin = (iterator._pin_memory, iterator._pin_memory_device)
        self._roots = (loader.dataset, iterator._collate_fn)
        self._iterator = ref(iterator)
        self._may_draw_ahead = _draws_ahead(loader)
        self._steps = len(loader)
        self._drawn = 0
        """Number of batches of indices drawn so far."""
        self._left: deque[Any] = deque()
        """Indices that were drawn for lanes, and are now prepared at home."""
        self._ended: BaseException | None = None
        self._is_home = False
        self._moved: tuple[Feed, samples.SamplePreparation, Stream] | None = None
        self._marks: purity.Marks = []
        self._given_s: float | None = None
        self._turn_steps = self._short_turns = 0
        if not source.is_measured:
            source.took_s.clear()
            source.between_s.clear()

    def __call__(self) -> Any:
        """Return the next batch, or raise what the loader itself would raise."""
        if self._given_s is not None and not self._source.is_measured:
            self._source.between_s.append(time.perf_counter() - self._given_s)
        batch = self._batch()
        if self._pin[0]:
            from torch.utils.data._utils.pin_memory import pin_memory

            batch = pin_memory(batch, self._pin[1])
        self._given_s = time.perf_counter()
        return batch

    def _batch(self) -> Any:
        if self._is_home or self._source.refused or not self._way.is_own():
            self._go_home()
        elif not self._source.is_measured:
            return self._measured()
        elif self._moved is None:
            if not self._way.decided(self._source, self._begin):
                self._go_home()
        elif not self._way.decided(self._source, self._is_as_taught):
            self._go_home()
        if self._moved is not None and not self._is_its_turn():
            self._go_home()
        return self._fetcher.fetch(self._next_indices()) if self._moved is None else self._taken(self._moved)

    # --- at home ------------------------------------------------------------------------------------------

    def _next_indices(self) -> Any:
        if self._left:
            return self._left.popleft()
        if self._ended is not None:
            ended, self._ended = self._ended, None
            raise ended
        indices = next(self._indices)
        self._drawn += 1
        return indices

    def _go_home(self) -> None:
        """Leave the rest of the pass to the loader's own code."""
        self._is_home = True
        if self._moved is not None:
            feed, _, stream = self._moved
            self._moved = None
            feed.end(stream.name)
            self._left.extend(each.element[0] for each in stream.raw.values())
            self._ended = stream.ended

    def _measured(self) -> Any:
        """Prepare a batch at home; measure its cost, and whether anything speaks against lanes."""
        source, way, indices = self._source, self._way, self._next_indices()
        with way.busy():
            watch = way.decided(source, lambda: purity.Watch(self._roots))
            batch, took_s = _timed(lambda: self._fetcher.fetch(indices))
            source.took_s.append(took_s)
            if watch is None:
                return batch
            if reason := way.decided(source, lambda: watch.reason() or self._against(indices, batch)):
                way.refuse(source, reason)
            elif source.is_measured and not source.refused:
                way.measured(source)
        return batch

    def _against(self, indices: Any, batch: Any) -> str:
        """Return what speaks against lanes, "" if nothing does. Raises ProgramRefused, ArraysRefused."""
        source = self._source
        if samples.indices_of(indices) is None:
            return "its sampler gives indices that are no integers"
        source.tuples |= trees.named_tuples(batch)
        if len(source.took_s) < MEASURED - 1:
            return ""
        begun_s = time.thread_time()
        code = samples.code_of(*self._roots)
        source.code_s = time.thread_time() - begun_s
        if not source.is_measured:
            source.digest = code.digest
            return ""
        if source.digest != code.digest:
            return "its data set changes from step to step"
        if _overlap(trees.memory_of(batch), code.memory):
            return "its batches share memory with its data set, which the program could change through them"
        return self._too_little(batch)

    def _too_little(self, batch: Any) -> str:
        """Return why lanes would save too little, "" if they save enough."""
        source, prices = self._source, Prices()
        arrays = trees.packed(batch)
        source.batch_bytes = size_bytes(arrays)
        receiving_s = min(_timed(lambda: trees.unpacked(arrays, source.tuples))[1] for _ in range(MEASURED))
        receiving_s += (prices.tensor_us * len(arrays) + prices.byte_us * source.batch_bytes) / 1e6
        cost_s, between_s = min(source.took_s), min(source.between_s)
        saved_s = cost_s - receiving_s
        if saved_s < REQUEST_US / 1e6 or saved_s < WORTH_SHARE * (cost_s + between_s):
            return f"moving would save {saved_s * 1e3:.2f} of {(cost_s + between_s) * 1e3:.2f} ms of a step: too little"
        if source.code_s > CODE_SHARE_MAX * cost_s * self._steps:
            return f"to see whether its data set has changed takes {source.code_s:.3f} s a pass: too much"
        return ""

    # --- elsewhere ----------------------------------------------------------------------------------------

    def _begin(self) -> bool:
        """Let lanes prepare from now on. Raises whatever prevents it."""
        code = samples.code_of(*self._roots)
        self._marks = purity.marks_of(self._roots)
        self._moved = feed, _, stream = self._way.begin(self._source, code, self._stream)
        finalize(self._iterator(), feed.end, stream.name)  # the program may leave a pass before its end
        return True

    def _stream(self, name: str, preparation: samples.SamplePreparation) -> Stream:
        def pull() -> Raw:
            indices = next(self._indices)
            self._drawn += 1
            return Raw((indices,), samples.indices_of(indices) or {})

        return Stream(
            name,
            preparation,
            pull,
            lambda element: [self._fetcher.fetch(element[0])],
            lambda: self._may_draw_ahead is not None and self._may_draw_ahead(self._drawn),
        )

    def _taken(self, moved: tuple[Feed, samples.SamplePreparation, Stream]) -> Any:
        feed, _, stream = moved
        self._turn_steps += 1
        try:
            with self._way.busy():
                return feed.take_from(stream)[1][0]
        except StopIteration:
            self._go_home()
            raise

    def _is_as_taught(self) -> bool:
        """Return whether the data set is unchanged since lanes were taught."""
        assert self._moved is not None
        _, preparation, _ = self._moved
        if not self._way.is_live(preparation):
            return False
        marks = purity.marks_of(self._roots)
        changed = purity.change_between(self._marks, marks)
        if not changed:
            return True
        self._marks = marks
        try:
            if samples.code_of(*self._roots).digest == preparation.code.digest:
                return True
        except ProgramRefused:
            pass
        self._way.tell_changed(self._source, changed)
        return False

    def _is_its_turn(self) -> bool:
        """Return whether lanes should prepare for this pass: not if it alternates with another one all the time."""
        if self._way.turn() is not self:
            if 0 < self._turn_steps < TURN_STEPS:
                self._short_turns += 1
            self._turn_steps = 0
            self._way.turn = ref(self)
        return self._short_turns < TURNS_MAX


def _timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of a function, and the seconds that it took."""
    begun_s = time.perf_counter()
    result = run()
    return result, time.perf_counter() - begun_s


def _refusal_of(loader: Any) -> str:
    """Return why a loader stays as it is, "" if it may move."""
    from torch.utils.data import IterableDataset, MapDataPipe

    if loader.num_workers:
        return f"num_workers={loader.num_workers}: workers of its own prepare its batches"
    if isinstance(loader.dataset, IterableDataset):
        return "it is an IterableDataset, which itself decides what comes next"
    if isinstance(loader.dataset, MapDataPipe):
        return "it is a data pipe"
    if _draws_ahead(loader) is None:
        sampler = loader.sampler if loader.batch_size is not None or loader.batch_sampler is None else None
        name = type(sampler if sampler is not None else loader.batch_sampler).__name__
        return f"its {name} may draw random numbers as it goes, which must not run ahead of the training"
    return ""


def _draws_ahead(loader: Any) -> Callable[[int], bool] | None:
    """Return a function that tells whether the n-th batch of indices, from 0, may be drawn before its step.

    It may if that draws no random number from a generator that the program uses, too. None: this sampler is not known.
    """
    from torch.utils.data import (
        BatchSampler,
        DistributedSampler,
        RandomSampler,
        SequentialSampler,
        SubsetRandomSampler,
        WeightedRandomSampler,
    )

    batches, sampler, size = loader.batch_sampler, loader.sampler, 1
    if type(batches) in (list, tuple):
        return lambda n: n > 0
    if batches is not None:
        if type(batches) is not BatchSampler:
            return None
        sampler, size = batches.sampler, batches.batch_size
    if type(sampler) is RandomSampler and sampler.generator is not None:
        if sampler.replacement:
            return None
        permuted = len(sampler.data_source)
        # the sampler draws a permutation from the program's generator at each multiple of its length
        return lambda n: n > 0 and (n * size - 1) // permuted == ((n + 1) * size - 1) // permuted
    if type(sampler) is SubsetRandomSampler and type(sampler.indices) not in (list, tuple, range, np.ndarray):
        return None
    # these samplers draw at their first index only, or from a generator of their own
    known = (list, tuple, range, SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    return (lambda n: n > 0) if type(sampler) in (*known, DistributedSampler) else None


def _overlap(some: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    """Return whether a range of one list overlaps a range of the other."""
    ranges = sorted([*((*each, True) for each in some), *((*each, False) for each in others)])
    ends = {True: 0, False: 0}
    for begin, end, which in ranges:
        if begin < ends[not which]:
            return True
        ends[which] = max(ends[which], end)
    return False

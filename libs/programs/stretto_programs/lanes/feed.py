"""The feed of a program: it gives prepared elements in the program's own order. Decided by `stretto_pipeline.feeding`.

A `Stream` is a pass over a data set. It holds each raw element from when home pulls it until the program takes what was
prepared of it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from stretto_pipeline.arrays import Arrays, difference, size_bytes
from stretto_pipeline.feeding import (
    CREDITS,
    SPARE,
    Action,
    Answered,
    Ask,
    Compare,
    Compared,
    Deliver,
    Differs,
    Drop,
    Event,
    Excluded,
    FeedMachine,
    HomePrepared,
    Needed,
    Prepare,
    Released,
    SampleRange,
    Tick,
    Wanted,
)

from ..errors import in_words
from .protocol import Preparation

WINDOW_BYTES = 64 * 1024**2
"""Most bytes of raw elements that wait, and of prepared elements that wait; two elements may always wait."""


@dataclass(frozen=True, slots=True)
class Raw:
    """A raw element. element: the values that home prepares from. arrays: the part that a lane needs."""

    element: Sequence[Any]
    arrays: Arrays


@dataclass
class Stream:
    """A pass over a data set.

    pull: returns the next raw element, or raises what the program's own iterator would raise. prepare: prepares a raw
    element at home. may_pull_ahead: returns whether the next raw element may be pulled before its step. raw: raw
    elements that were pulled and not taken yet. ended: the exception at the end of the pass.
    """

    name: str
    preparation: Preparation
    pull: Callable[[], Raw]
    prepare: Callable[[Sequence[Any]], list[Any]]
    may_pull_ahead: Callable[[], bool] = lambda: True
    raw: dict[SampleRange, Raw] = field(default_factory=dict[SampleRange, Raw])
    steps: int = 0
    ended: BaseException | None = None


class Lanes(Protocol):
    """The lanes that a feed asks."""

    def ask(self, lane: str, wanted: SampleRange, preparation: Preparation, raw: Arrays) -> None:
        """Ask a lane for an element. The answer is reported by `Feed.answered` or `Feed.failed`."""
        ...


@dataclass
class _Found:
    values: list[Any]
    arrays: Arrays | None = None
    """The arrays of a lane's answer; None for values that home prepared."""


class _Broken(Exception):
    """Exception that tells the waiting thread to prepare the element itself."""


_Job = tuple[Stream, SampleRange, Sequence[Any]]


class Feed:
    """The feed of a program. The program's threads take elements from it, each in its turn.

    is_home_ahead: home prepares in a thread of its own; otherwise in the program's thread, while that waits.
    """

    def __init__(self, lane_count: int, say: Callable[[str], None], *, is_home_ahead: bool = True) -> None:
        self.machine = FeedMachine(WINDOW_BYTES, is_home_ahead=is_home_ahead, kind_of=self._kind_of)
        self.cpu_us = 0
        """CPU that lanes have spent on answers."""
        self._say = say
        self._ahead = SPARE + CREDITS * lane_count
        self._lanes: Lanes | None = None
        self._lock = threading.RLock()
        self._due = threading.Condition(self._lock)
        self._due_s = float("inf")
        self._turn = threading.Condition(self._lock)
        self._jobs: list[_Job] = []
        """Elements that the program's thread has to prepare next."""
        self._is_home_ahead = is_home_ahead
        self._events: deque[Event] = deque()
        self._actions: deque[Action] = deque()
        """Actions of the machine that are still to be done."""
        self._is_telling = False
        self._is_broken = False
        """The feed itself has failed: each element is prepared by the thread that takes it."""
        self._taking = threading.Lock()
        """Held while a thread takes an element: threads of the program take turns."""
        self._streams: dict[str, Stream] = {}
        """Passes under way, by name."""
        self._over: deque[str] = deque()
        """Names of passes that have ended and are still in `_streams`."""
        self._here: dict[tuple[SampleRange, str], _Found | BaseException] = {}
        self._needed: Future[_Found] | None = None
        self._differing = ""
        self._failure = ""
        """Text of the last failure of a lane."""
        self._closed = False
        self._home = ThreadPoolExecutor(1, thread_name_prefix="stretto-home")
        threading.Thread(target=self._keep_time, name="stretto-feed", daemon=True).start()

    def use(self, lanes: Lanes) -> None:
        """Set the lanes that this feed asks."""
        self._lanes = lanes

    def take(self, stream: Stream) -> tuple[Raw, list[Any]]:
        """Return the next raw element of a pass, and the values prepared from it.

        Raises what the program's own iterator would raise, at the same step.
        """
        with self._taking:
            self._pull(stream)
            if not stream.raw:
                ended, stream.ended = stream.ended, None
                assert ended is not None
                raise ended
            wanted = next(iter(stream.raw))
            try:
                return stream.raw[wanted], self._values(stream)
            finally:
                del stream.raw[wanted]

    def _values(self, stream: Stream) -> list[Any]:
        """Return the values prepared from the first raw element of a pass."""
        future: Future[_Found] = Future()
        try:
            with self._lock:
                while self._over:
                    self._streams.pop(self._over.popleft(), None)
                self._streams[stream.name] = stream
                self._needed = future
                others = (each.raw for each in self._streams.values() if each is not stream)
                self.tell(Wanted((*stream.raw, *(wanted for raw in others for wanted in raw))))
                self.tell(Needed())
            self._prepare_until(future)
            return future.result().values
        except _Broken:
            return stream.prepare(next(iter(stream.raw.values())).element)
        except BaseException:
            with self._lock:
                if self._needed is future:  # an interrupt: no thread waits now
                    self._needed = None
                    self.tell(Wanted(()))
            raise

    def _kind_of(self, wanted: SampleRange) -> int:
        stream = self._streams.get(wanted.partition)
        return -1 if stream is None else stream.preparation.number

    def end(self, name: str) -> None:
        """End a pass, which is dropped when the next element is taken: a finalizer may call this in any thread."""
        self._over.append(name)

    def _pull(self, stream: Stream) -> None:
        raws = [stream.raw, *(each.raw for each in self._streams.values() if each is not stream)]
        held = sum(size_bytes(each.arrays) for raw in raws for each in raw.values())
        while stream.ended is None and len(stream.raw) < self._ahead and (held < WINDOW_BYTES or len(stream.raw) < 2):
            if stream.raw and not stream.may_pull_ahead():
                return
            try:
                raw = stream.pull()
            except Exception as error:  # raised at its own step, once the elements before it are taken
                stream.ended = error
                return
            stream.raw[SampleRange(stream.name, stream.steps, 1)] = raw
            stream.steps += 1
            held += size_bytes(raw.arrays)

    def _prepare_until(self, future: Future[_Found]) -> None:
        """Prepare the elements that home is asked for, in this thread, until the awaited element is there."""
        try:
            while True:
                with self._turn:
                    self._turn.wait_for(lambda: future.done() or self._jobs)
                    if future.done():
                        return
                    job = self._jobs.pop(0)
                self._prepare(*job)
        except BaseException as error:  # an interrupt: what was asked for must not be prepared at a later step
            with self._lock:
                jobs, self._jobs = self._jobs, []
                for _, wanted, _ in jobs:
                    self._here[wanted, ""] = error
                    self.tell(HomePrepared(wanted, is_failure=True))
            raise

    def close(self) -> None:
        """Stop preparing ahead. An element that is taken later is prepared by the thread that takes it."""
        with self._lock:
            self._closed = True
            self._due.notify()
        self._home.shutdown(wait=False)

    def failed(self, lane: str, wanted: SampleRange, why: str) -> None:
        """Report that a lane failed at an element, and why."""
        with self._lock:
            self._failure = why
            self.tell(Answered(lane, wanted, is_failure=True))

    def answered(self, lane: str, wanted: SampleRange, arrays: Arrays, values: list[Any], cpu_us: int) -> None:
        """Report the answer of a lane for an element."""
        with self._lock:
            self.cpu_us += cpu_us
            self._here[wanted, lane] = _Found(values, arrays)
            self.tell(Answered(lane, wanted, size_bytes(arrays)))

    def tell(self, event: Event) -> None:
        """Tell the machine an event, and do what it decides."""
        with self._lock:
            self._events.append(event)
            if self._is_telling or self._is_broken:  # an action of the machine is being done, or the feed has failed
                self._break()
                return
            self._is_telling = True
            try:
                while self._actions or self._events:
                    if self._actions:
                        self._do(self._actions.popleft())
                    else:
                        self._actions.extend(self.machine.handle(self._events.popleft(), time.monotonic()))
            except Exception as error:  # the program goes on without data workers
                self._is_broken = True
                self._say(f"no data worker is used any more: {in_words(error)}")
                self._break()
            finally:
                self._is_telling = False
            if self.machine.next_s() < self._due_s:
                self._due.notify()

    def _break(self) -> None:
        """If the feed has failed, tell the waiting thread to prepare its element itself."""
        if self._is_broken:
            self._events.clear()
            self._actions.clear()
            if self._needed is not None:
                self._deliver(_Broken())

    def _do(self, action: Action) -> None:
        match action:
            case Ask(lane, wanted):
                stream = self._streams[wanted.partition]
                assert self._lanes is not None
                self._lanes.ask(lane, wanted, stream.preparation, stream.raw[wanted].arrays)
            case Prepare(wanted):
                stream = self._streams[wanted.partition]
                job = (stream, wanted, stream.raw[wanted].element)
                if self._is_home_ahead and not self._closed:
                    self._home.submit(self._prepare, *job)
                else:
                    self._jobs.append(job)
                    self._turn.notify_all()
            case Compare(lane, wanted):
                self._compare(lane, wanted)
            case Deliver(wanted, lane):
                self._deliver(self._here.pop((wanted, lane)))
            case Drop(wanted, lane):
                self._here.pop((wanted, lane), None)
            case Differs(lane, _):
                self._say(f"no data worker is used any more: {lane} prepared other values, {self._differing}")
            case Excluded(lane):
                self._say(f"{lane} is not used any more: it failed several times in a row: {self._failure}")
            case Released():
                raise AssertionError("lanes of a program stay until it ends")

    def _deliver(self, found: _Found | BaseException) -> None:
        future, self._needed = self._needed, None
        assert future is not None
        if isinstance(found, BaseException):
            future.set_exception(found)
        else:
            future.set_result(found)
        self._turn.notify_all()

    def _compare(self, lane: str, wanted: SampleRange) -> None:
        ours, theirs = self._here[wanted, ""], self._here.pop((wanted, lane))
        assert isinstance(ours, _Found)
        assert isinstance(theirs, _Found)
        assert theirs.arrays is not None
        prepared = self._streams[wanted.partition].preparation.arrays_of(ours.values)
        self._differing = difference(prepared, theirs.arrays)
        self._events.append(Compared(lane, wanted, not self._differing))

    def _prepare(self, stream: Stream, wanted: SampleRange, raw: Sequence[Any]) -> None:
        found: _Found | BaseException
        size = 0
        try:
            found = _Found(stream.prepare(raw))
            size = stream.preparation.size_of(found.values)
        except BaseException as error:
            found = error
        with self._lock:
            self._here[wanted, ""] = found
            self.tell(HomePrepared(wanted, size, is_failure=isinstance(found, BaseException)))

    def _keep_time(self) -> None:
        with self._lock:
            while not (self._closed or self._is_broken):
                self._due_s = self.machine.next_s()
                left_s = self._due_s - time.monotonic()
                if left_s <= 0:
                    self.tell(Tick())
                else:
                    self._due.wait(min(left_s, threading.TIMEOUT_MAX))

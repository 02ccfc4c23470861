"""The edge of a feed: it carries the decisions of :mod:`.feeding` out, with a thread of home's own.

A feed of a kind says in a subclass how home prepares, how lanes are asked, and what people are told.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import Generic, TypeVar

from .errors import FeedFailed
from .feeding import (
    Action,
    Answered,
    Ask,
    Compare,
    Compared,
    Counts,
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

Batch = TypeVar("Batch")


class FeedEdge(ABC, Generic[Batch]):
    """Batches in the order in which they are wanted, prepared at home or by lanes. Thread-safe."""

    def __init__(self, machine: FeedMachine) -> None:
        self.differing = ""
        """The place where a lane prepared other values than home, in words; empty if none did."""
        self._machine = machine
        self._lock = threading.RLock()
        self._due = threading.Condition(self._lock)
        self._due_s = inf
        self._events: deque[Event] = deque()
        self._actions: deque[Action] = deque()
        """Actions of the machine that are still to be done."""
        self._why = ""
        """Text of the last failure of a lane."""
        self._is_telling = False
        self._failure: Exception | None = None
        """The error that ended the feed."""
        self._here: dict[tuple[SampleRange, str], Batch | BaseException] = {}
        self._needed: Future[Batch] | None = None
        self._closed = False
        self._home = ThreadPoolExecutor(1, thread_name_prefix="stretto-home")
        self._timer: threading.Thread | None = None

    @property
    def counts(self) -> Counts:
        return self._machine.counts

    @property
    def is_served(self) -> bool:
        """Return whether there is a lane."""
        return self._machine.is_served

    @property
    def is_trusted(self) -> bool:
        """Return whether there is a lane whose answers are used."""
        return bool(self._machine.lanes)

    def follow(self, ranges: Sequence[SampleRange], ahead: int = 1) -> None:
        """State the batches to come, in order, and how many of them home has ready where there are no lanes.

        Without batches, a `take` that still waits is given up.
        """
        with self._lock:
            if not ranges:
                self._needed = None
            self.tell(Wanted(tuple(ranges), ahead))

    def ready(self) -> list[tuple[SampleRange, Batch]]:
        """Return the batches that the next calls of `take` get at once, in their order, and leave them there."""
        with self._lock:
            found = ((wanted, self._here[wanted, lane]) for wanted, lane in self._machine.ready)
            return [(wanted, batch) for wanted, batch in found if not isinstance(batch, BaseException)]

    def take(self, waited_s: float = 0.0) -> Future[Batch]:
        """Return the future of the first batch to come. Its error is what preparing the batch raised, or FeedFailed.

        The next call must wait until this batch is delivered. waited_s: how long the caller has waited for the one
        before; home may spend as much on batches ahead.
        """
        future: Future[Batch] = Future()
        with self._lock:
            assert self._needed is None, "one batch at a time"
            self._needed = future
            try:
                self.tell(Needed(waited_s))
            except BaseException:  # an interrupt: nobody waits for this batch
                self.follow(())
                raise
        return future

    def answered(self, lane: str, wanted: SampleRange, batch: Batch, size_bytes: int) -> None:
        """Report a batch that a lane has prepared."""
        with self._lock:
            self._here[wanted, lane] = batch
            self.tell(Answered(lane, wanted, size_bytes))

    def failed(self, lane: str, wanted: SampleRange, why: str) -> None:
        """Report that a lane failed at a batch, and why."""
        with self._lock:
            self._why = why
            self.tell(Answered(lane, wanted, is_failure=True))

    def close(self) -> None:
        """Stop preparing ahead."""
        with self._lock:
            self._closed = True
            self._due.notify()
        self._home.shutdown(wait=False, cancel_futures=True)

    def tell(self, event: Event) -> None:
        """Tell the machine an event, and do what it decides. An error in doing so ends the feed."""
        with self._lock:
            self._events.append(event)
            if self._failure is not None:
                self._give_up(self._failure)
            elif not self._is_telling:  # else this is within an action, and the loop below goes on with the event
                self._is_telling = True
                try:
                    self._handle_all()
                except Exception as error:  # else the thread that takes a batch would wait for ever
                    self._failure = error
                    self._failed(error)
                    self._give_up(error)
                finally:
                    self._is_telling = False

    # --- for the subclass: each is called with the lock held ------------------------------------------------

    @abstractmethod
    def _ask(self, lane: str, wanted: SampleRange) -> None:
        """Ask a lane for a batch; `answered` or `failed` reports what becomes of it."""

    @abstractmethod
    def _start(self, wanted: SampleRange) -> None:
        """Let a thread prepare a batch at home by `_prepare`."""

    @abstractmethod
    def _difference(self, wanted: SampleRange, ours: Batch, theirs: Batch) -> str:
        """Return where a lane's batch differs from home's, "" if nowhere."""

    @abstractmethod
    def _note(self, action: Differs | Excluded | Released) -> None:
        """Note that the feed has stopped asking a lane."""

    @abstractmethod
    def _failed(self, error: Exception) -> None:
        """Note that the feed has failed: each further `take` has the error FeedFailed."""

    # --- the machine ----------------------------------------------------------------------------------------

    def _handle_all(self) -> None:
        while self._actions or self._events:
            if self._actions:
                self._do(self._actions.popleft())
            else:
                self._actions.extend(self._machine.handle(self._events.popleft(), time.monotonic()))
        self._keep_time()

    def _do(self, action: Action) -> None:
        match action:
            case Ask(lane, wanted):
                self._ask(lane, wanted)
            case Prepare(wanted):
                self._start(wanted)
            case Compare(lane, wanted):
                self._compare(lane, wanted)
            case Deliver(wanted, lane):
                self._deliver(self._here.pop((wanted, lane)))
            case Drop(wanted, lane):
                self._here.pop((wanted, lane), None)
            case Differs() | Excluded() | Released():
                self._note(action)

    def _prepare(self, wanted: SampleRange, prepare: Callable[[], tuple[Batch, int, float]]) -> None:
        """Prepare a batch in this thread, and report it with its size and the processor time that it took."""
        found: Batch | BaseException
        try:
            found, size_bytes, busy_s = prepare()
        except BaseException as error:
            found, size_bytes, busy_s = error, 0, 0.0
        self._prepared(wanted, found, size_bytes, busy_s)

    def _prepared(
        self, wanted: SampleRange, found: Batch | BaseException, size_bytes: int = 0, busy_s: float = 0.0
    ) -> None:
        with self._lock:
            self._here[wanted, ""] = found
            self.tell(HomePrepared(wanted, size_bytes, isinstance(found, BaseException), busy_s))

    def _compare(self, lane: str, wanted: SampleRange) -> None:
        ours, theirs = self._here[wanted, ""], self._here.pop((wanted, lane))
        assert not isinstance(ours, BaseException)
        assert not isinstance(theirs, BaseException)
        found = self._difference(wanted, ours, theirs)
        self.differing = found or self.differing
        self._events.append(Compared(lane, wanted, not found))

    def _deliver(self, found: Batch | BaseException) -> None:
        future, self._needed = self._needed, None
        assert future is not None
        if isinstance(found, BaseException):
            future.set_exception(found)
        else:
            future.set_result(found)

    def _give_up(self, cause: Exception) -> None:
        self._events.clear()
        self._actions.clear()
        if self._needed is not None:
            failed = FeedFailed(f"the feed has failed: {cause!r}")
            failed.__cause__ = cause
            self._deliver(failed)

    # --- time -----------------------------------------------------------------------------------------------

    def _keep_time(self) -> None:
        """Let the timer wake at the machine's next time; its thread starts when the machine first has one."""
        if self._machine.next_s() >= self._due_s:
            return
        self._due.notify()
        if self._timer is None and not self._closed:
            self._timer = threading.Thread(target=self._tick, name="stretto-feed", daemon=True)
            self._timer.start()

    def _tick(self) -> None:
        with self._lock:
            while not self._closed and self._failure is None:
                self._due_s = self._machine.next_s()
                left_s = self._due_s - time.monotonic()
                if left_s <= 0:
                    self.tell(Tick())
                else:
                    self._due.wait(min(left_s, threading.TIMEOUT_MAX))

"""The feed of a program: it gives prepared elements in the program's own order, over the edge of `stretto_pipeline`.

A `Stream` is a pass over a data set. It holds each raw element from when home pulls it until the program takes what was
prepared of it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from stretto_pipeline.arrays import Arrays, difference, size_bytes
from stretto_pipeline.edge import FeedEdge
from stretto_pipeline.errors import FeedFailed
from stretto_pipeline.feeding import (
    CREDITS,
    SPARE,
    Differs,
    Excluded,
    FeedMachine,
    Released,
    SampleRange,
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
    element at home. raw: raw elements that were pulled and not taken yet. ended: the exception at the end of the
    pass.
    """

    name: str
    preparation: Preparation
    pull: Callable[[], Raw]
    prepare: Callable[[Sequence[Any]], list[Any]]
    raw: dict[SampleRange, Raw] = field(default_factory=dict[SampleRange, Raw])
    steps: int = 0
    ended: BaseException | None = None


class Lanes(Protocol):
    """The lanes that a feed asks."""

    def ask(self, lane: str, wanted: SampleRange, preparation: Preparation, raw: Arrays) -> None:
        """Ask a lane for an element. The answer is reported by `Feed.prepared` or `Feed.failed`."""
        ...


@dataclass
class _Found:
    values: list[Any]
    arrays: Arrays | None = None
    """The arrays of a lane's answer; None for values that home prepared."""


class Feed(FeedEdge[_Found]):
    """The feed of a program. The program's threads take elements from it, each in its turn."""

    def __init__(self, lane_count: int, say: Callable[[str], None]) -> None:
        super().__init__(FeedMachine(WINDOW_BYTES, kind_of=self._kind_of))
        self.cpu_us = 0
        """CPU that lanes have spent on answers."""
        self._say = say
        self._ahead = SPARE + CREDITS * (lane_count + 1)
        self._waited_s = 0.0
        """How long the program waited for the last element."""
        self._lanes: Lanes | None = None
        self._taking = threading.Lock()
        """Held while a thread takes an element: threads of the program take turns."""
        self._streams: dict[str, Stream] = {}
        """Passes under way, by name."""
        self._over: deque[str] = deque()
        """Names of passes that have ended and are still in `_streams`."""

    def use(self, lanes: Lanes) -> None:
        """Set the lanes that this feed asks."""
        self._lanes = lanes

    def take_from(self, stream: Stream) -> tuple[Raw, list[Any]]:
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
        future: Future[_Found] | None = None
        try:
            if self._closed:
                raise FeedFailed("the feed is closed")
            with self._lock:
                while self._over:
                    self._streams.pop(self._over.popleft(), None)
                self._streams[stream.name] = stream
                others = (each.raw for each in self._streams.values() if each is not stream)
                self.follow((*stream.raw, *(wanted for raw in others for wanted in raw)))
                future = self.take(self._waited_s)
            begun_s = time.monotonic()
            found = future.result()
            self._waited_s = time.monotonic() - begun_s
            return found.values
        except FeedFailed:  # the program goes on without data workers
            return stream.prepare(next(iter(stream.raw.values())).element)
        except BaseException:
            with self._lock:
                if self._needed is not None and self._needed is future:  # an interrupt: no thread waits now
                    self.follow(())
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
            try:
                raw = stream.pull()
            except Exception as error:  # raised at its own step, once the elements before it are taken
                stream.ended = error
                return
            stream.raw[SampleRange(stream.name, stream.steps, 1)] = raw
            stream.steps += 1
            held += size_bytes(raw.arrays)

    def prepared(self, lane: str, wanted: SampleRange, arrays: Arrays, values: list[Any], cpu_us: int) -> None:
        """Report the answer of a lane for an element."""
        with self._lock:
            self.cpu_us += cpu_us
            self.answered(lane, wanted, _Found(values, arrays), size_bytes(arrays))

    def _ask(self, lane: str, wanted: SampleRange) -> None:
        stream = self._streams[wanted.partition]
        assert self._lanes is not None
        self._lanes.ask(lane, wanted, stream.preparation, stream.raw[wanted].arrays)

    def _start(self, wanted: SampleRange) -> None:
        stream = self._streams[wanted.partition]
        self._home.submit(self._prepare, wanted, functools.partial(_at_home, stream, stream.raw[wanted].element))

    def _difference(self, wanted: SampleRange, ours: _Found, theirs: _Found) -> str:
        assert theirs.arrays is not None
        return difference(self._streams[wanted.partition].preparation.arrays_of(ours.values), theirs.arrays)

    def _note(self, action: Differs | Excluded | Released) -> None:
        match action:
            case Differs(lane, _):
                self._say(f"no data worker is used any more: {lane} prepared other values, {self.differing}")
            case Excluded(lane):
                self._say(f"{lane} is not used any more: it failed several times in a row: {self._why}")
            case Released():
                raise AssertionError("lanes of a program stay until it ends")

    def _failed(self, error: Exception) -> None:
        self._say(f"no data worker is used any more: {in_words(error)}")


def _at_home(stream: Stream, raw: Sequence[Any]) -> tuple[_Found, int, float]:
    begun_s = time.monotonic()
    found = _Found(stream.prepare(raw))
    busy_s = time.monotonic() - begun_s  # the framework's threads work on it, too: at least one of them all the time
    return found, stream.preparation.size_of(found.values), busy_s

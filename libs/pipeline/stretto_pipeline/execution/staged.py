"""The work of a lane that other lanes feed: it prepares from what they give, in the order in which it was asked.

It stands to them as home stands to it: a feed of its own asks them, and prepares in this process what they do not have
in time. So a lane of either group may die, stop or come late.
"""

from __future__ import annotations

import hashlib
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from stretto_plane import Key, PlaneError

from ..arrays import Arrays, Parts, size_bytes
from ..feeding import Joined, Left, Range
from .feed import Feed, Raw, Stream
from .protocol import Framework, Preparation, Prepares, joined_parts, split_parts
from .requests import Requests
from .values import packed, unpacked, with_values

Answers = Callable[[Arrays], tuple[Arrays, int]]
"""A function of raw arrays: what is prepared of them, and the CPU that it took, in microseconds."""


AGAIN_S = 1.0
"""Pause before a lane is asked again that was lost, and of which home does not say that it is gone (taste)."""


@dataclass
class _Earlier:
    """The part of a preparation that the lanes before this one do. Values are arrays, in their order.

    It names no numbers that are still asked for: another lane, which they feed as well, may ask for more.
    """

    number: int
    own_parts: Sequence[memoryview]
    framework: Framework

    def parts(self) -> Parts:
        return [*self.own_parts]

    def arrays_of(self, values: Sequence[Any]) -> Arrays:
        return packed(values)

    def size_of(self, values: Sequence[Any]) -> int:
        return size_bytes(packed(values))

    def values_of(self, arrays: Arrays) -> list[Any]:
        return unpacked(arrays)

    @cached_property
    def _here(self) -> Prepares:
        return self.framework.taught(self.own_parts)

    def prepare(self, raw: Sequence[Any]) -> list[Any]:
        """Prepare in this process."""
        [arrays] = raw
        return unpacked(self._here(arrays))


@dataclass
class _Taught:
    """A preparation. digest: of its parts. waiting: raw elements that were asked for, and that the feed has not pulled.

    answer: its function, once it has one. in_hand: elements that are not finished. is_over: it is forgotten, and its
    stream ends with the last of these.
    """

    digest: bytes
    stream: Stream
    finish: Prepares
    waiting: deque[Raw] = field(default_factory=deque[Raw])
    answer: Answers | None = None
    in_hand: int = 0
    is_over: bool = False


@dataclass(frozen=True)
class _Job:
    taught: _Taught
    answer: Future[tuple[Arrays, int]]


class Staged:
    """Prepares from what the lanes before this one give.

    lane_count: of these; credits: elements that each is asked for at once. say: tells people.
    """

    def __init__(
        self, framework: Framework, key: Key, lane_count: int, credits: int, say: Callable[[str], None]
    ) -> None:
        self._framework, self._key, self._credits = framework, key, credits
        self._feed = Feed(lane_count, credits, say, is_home_ahead=False)
        self._feed.use(self)
        self._say = say
        self._lock = threading.Lock()
        self._joining = threading.Lock()
        """held while the feed hears of a lane; never taken by what the feed calls"""
        self._addresses: dict[str, str] = {}
        """of lanes that are not gone"""
        self._names: dict[str, str] = {}
        """of lanes that are asked, as the feed has them"""
        self._lanes: dict[str, Requests] = {}
        """by those names"""
        self._taught: dict[int, _Taught] = {}
        self._times = itertools.count()
        """numbers of streams: each begins at step 0, so a late answer for one fits another of the same name"""
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._told_us = self._cpu_us()
        threading.Thread(target=self._work, name="stretto-stage", daemon=True).start()

    # --- the lanes before this one --------------------------------------------------------------------------

    def use(self, lane: str, address: str) -> None:
        """Ask a lane from now on, under its name; without an address it is gone."""
        if address:
            with self._joining:
                self._addresses[lane] = address
            self._join(lane)
            return
        with self._joining:
            self._addresses.pop(lane, None)
            name = self._names.get(lane)
        if name is not None:
            self._leave(lane, name)

    def _join(self, lane: str, time_number: int = 0) -> None:
        """Ask a lane, under another name each time: a late answer to requests before must not pass for one to these."""
        address = self._addresses.get(lane)
        if address is None:
            return
        name = f"{lane}, time {time_number}" if time_number else lane

        def lost() -> None:
            if self._leave(lane, name):
                self._join_later(lane, time_number + 1)

        try:
            made = Requests(name, address, self._key, credits=self._credits, feed=self._feed, lost=lost)
        except (PlaneError, OSError):  # it has ended meanwhile, or stands still
            self._join_later(lane, time_number + 1)
            return
        with self._joining:
            is_gone = lane not in self._addresses
            if not is_gone:
                self._names[lane] = name
                with self._lock:
                    self._lanes[name] = made
                self._feed.tell(Joined(name))
        if is_gone:
            made.close()
        elif time_number:
            self._say(f"{lane} was lost, and is asked again")

    def _join_later(self, lane: str, time_number: int) -> None:
        again = threading.Timer(AGAIN_S, self._join, (lane, time_number))
        again.daemon = True
        again.start()

    def _leave(self, lane: str, name: str) -> bool:
        """Ask a lane no more under a name. Return whether it was asked under it."""
        with self._joining:
            with self._lock:
                left = self._lanes.pop(name, None)
            if left is None:
                return False
            del self._names[lane]
            self._feed.tell(Left(name))
        threading.Thread(target=left.close, daemon=True).start()  # its threads may be waiting for answers
        return True

    def ask(self, lane: str, wanted: Range, preparation: Preparation, raw: Arrays) -> None:
        """Ask a lane; its answer goes to the feed."""
        with self._lock:
            asked = self._lanes.get(lane)
        if asked is not None:  # if it is gone, the feed is about to hear so
            asked.ask(wanted, preparation, raw)

    # --- what this lane is asked for ------------------------------------------------------------------------

    def taught(self, number: int, parts: Sequence[memoryview]) -> Answers:
        """Return the function that `Preparation.parts` describes; the present one, if it was taught the same before."""
        digest, known = _digest_of(parts), self._taught.get(number)
        if known is not None and known.answer is not None and known.digest == digest:
            return known.answer
        *before, last = split_parts(parts)
        joined = joined_parts([[*each] for each in before])
        earlier = _Earlier(number, [memoryview(cast("bytes", each)) for each in joined], self._framework)
        waiting: deque[Raw] = deque()
        name = f"preparation {number}, {next(self._times)}"
        stream = Stream(name, earlier, waiting.popleft, earlier.prepare, may_pull_ahead=lambda: bool(waiting))
        found = _Taught(digest, stream, self._framework.taught(last), waiting)

        def answer(raw: Arrays) -> tuple[Arrays, int]:
            job = _Job(found, Future())
            with self._lock:  # the order of jobs is that of what waits
                found.in_hand += 1
                waiting.append(Raw([raw], raw))
                self._jobs.put(job)
            return job.answer.result()

        found.answer, self._taught[number] = answer, found
        if known is not None:
            self._end(known)
        return answer

    def forget(self, number: int) -> None:
        """Forget a preparation."""
        self._end(self._taught.pop(number))

    def _end(self, taught: _Taught) -> None:
        """End a stream once nothing of it is in hand: the feed would take it up again with the next element."""
        with self._lock:
            taught.is_over = True
            is_done = not taught.in_hand
        if is_done:
            self._feed.end(taught.stream.name)

    def _finished(self, taught: _Taught) -> None:
        with self._lock:
            taught.in_hand -= 1
            is_done = taught.is_over and not taught.in_hand
        if is_done:  # perhaps once more: a lane may ask while the preparation is forgotten
            self._feed.end(taught.stream.name)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                raw, values = self._feed.take(job.taught.stream)
                prepared = job.taught.finish(with_values(raw.arrays, packed(values)))
                job.answer.set_result((prepared, self._spent_us()))
            except Exception as error:  # told to whoever asked
                job.answer.set_exception(error)
            self._finished(job.taught)

    def _spent_us(self) -> int:
        """Return the CPU of this lane, and of those before it, since the last answer."""
        told_us, self._told_us = self._told_us, self._cpu_us()
        return self._told_us - told_us

    def _cpu_us(self) -> int:
        return int(time.process_time() * 1e6) + self._feed.cpu_us


def _digest_of(parts: Sequence[memoryview]) -> bytes:
    found = hashlib.sha256()
    for each in parts:
        found.update(f"{each.nbytes} ".encode())
        found.update(each)
    return found.digest()

"""Requests to a lane, each on a connection and a thread of its own."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from stretto_pipeline.arrays import Arrays, Reader, Writer
from stretto_pipeline.errors import ArraysRefused
from stretto_pipeline.feeding import CREDITS, SampleRange
from stretto_plane import Connection, Key, PeerFailed, PlaneError

from ..errors import in_words
from .feed import Feed
from .protocol import LaneMessageKind, Preparation, request

ANSWER_S = 60.0
"""Time after which a lane without an answer is given up; home has prepared its elements long before."""

_Asked = tuple[SampleRange, Preparation, Arrays]


class Requests:
    """The requests to a lane, whose answers go to the feed.

    name: of the lane's start. lost: called when a connection is lost, perhaps several times.

    Raises PlaneError, OSError: the lane cannot be reached.
    """

    def __init__(self, name: str, address: str, key: Key, *, feed: Feed, lost: Callable[[], None]) -> None:
        self._name, self._feed, self._lost = name, feed, lost
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._teaching = threading.Lock()
        self._taught: set[int] = set()
        with contextlib.ExitStack() as opened:
            links = [opened.enter_context(Connection(address, key, timeout_s=ANSWER_S)) for _ in range(CREDITS)]
            self._opened = opened.pop_all()
        self._threads = [threading.Thread(target=self._work, args=(link,), daemon=True) for link in links]
        for each in self._threads:
            each.start()

    def ask(self, wanted: SampleRange, preparation: Preparation, raw: Arrays) -> None:
        """Ask for an element."""
        self._asked.put((wanted, preparation, raw))

    def close(self) -> None:
        """End the connections to a lane that has ended, and wait for their threads."""
        for _ in self._threads:
            self._asked.put(None)
        for each in self._threads:
            each.join()
        self._opened.close()

    def _work(self, link: Connection) -> None:
        """Ask for elements in turn, until the connection is lost."""
        name, writer, reader = self._name, Writer(), Reader()
        while (job := self._asked.get()) is not None:
            wanted, preparation, raw = job
            try:
                with self._teaching:
                    if preparation.number not in self._taught:
                        link.call(LaneMessageKind.TEACH, [str(preparation.number).encode(), *preparation.parts()])
                        self._taught.add(preparation.number)
                answer = link.call(LaneMessageKind.PREPARE, request(preparation.number, raw, writer)).parts
                arrays = reader.arrays(answer[1:])
                self._feed.prepared(name, wanted, arrays, preparation.values_of(arrays), int(bytes(answer[0])))
            except (PeerFailed, ArraysRefused) as error:
                writer = Writer()  # it is unknown how much of the schema has arrived
                self._feed.failed(name, wanted, str(error))
            except (PlaneError, OSError):
                self._lost()
                return
            except Exception as error:  # the preparation cannot be sent, or the answer is damaged
                writer, reader = Writer(), Reader()
                self._feed.failed(name, wanted, in_words(error))

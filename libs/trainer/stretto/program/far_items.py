"""The items that a worker's program asks for, and the data workers that compute them: the worker between both.

The program asks by lines over a connection of its own. Its pieces wait in one queue, from whose head one thread for
each process of a data worker takes. The program takes back what waits there once the batch is wanted, and computes
that, as well as each piece that is answered empty.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple, TextIO

from stretto_messages.actuator import DataWorkersChanged
from stretto_plane import Connection, PeerFailed, PlaneError

from ..items import BACK, ITEMS, TOOK, Took, send_frame
from ..pod.process import Pod
from ..pod.servers import ServerList
from .item_server import Kind

CONNECT_S = 5.0
ANSWER_S = 30.0
"""Seconds after which a connection to a data worker that does not answer is left, as one is that ends."""
AGAIN_S = 1.0
"""Seconds until a data worker whose connection was left is tried again."""
LOOK_EVERY_S = 10.0
"""Interval at which the actuator is asked for the data workers: an event may have been missed."""
SAID_EVERY_S = 60.0

log = logging.getLogger("stretto.worker")


class _Answers:
    """The answers to one process of the program, in a queue: whoever gives an answer waits for no slow reader."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._waiting: queue.SimpleQueue[tuple[int, bytes | memoryview] | None] = queue.SimpleQueue()
        threading.Thread(target=self._send, name="items", daemon=True).start()

    def put(self, piece: int, items: bytes | memoryview = b"") -> None:
        self._waiting.put((piece, items))

    def close(self) -> None:
        self._waiting.put(None)

    def _send(self) -> None:
        with contextlib.suppress(OSError):  # the program is gone
            while (answer := self._waiting.get()) is not None:
                send_frame(self._link, *answer)


class _Piece(NamedTuple):
    """Items that a process of the program has asked for; ``numbers`` as in its line."""

    answers: _Answers
    piece: int
    numbers: str


class FarItems:
    """The pieces that wait for a data worker, and a connection to each process of each data worker. Thread-safe.

    ``took`` is called with what the program says of its items.
    """

    def __init__(self, pod: Pod, took: Callable[[Took], None]) -> None:
        self._pod, self._took = pod, took
        self._moved = threading.Condition()
        """Notified when there is another piece, or there are other data workers."""
        self._waiting: deque[_Piece] = deque()
        self._addresses: frozenset[str] = frozenset()
        self._connections: dict[str, int] = {}
        """Number of connections to each data worker that there are, or that begin."""
        self._said_s = -SAID_EVERY_S

    def follow(self) -> None:
        """Use the data workers that the actuator names from now on."""
        servers = ServerList(self._pod.bus, self.use)
        self._pod.bus.follow(
            DataWorkersChanged, lambda event: servers.take_data_workers(event.version, event.data_workers)
        )
        servers.ask()
        self._pod.every(lambda: LOOK_EVERY_S, servers.ask)

    def use(self, addresses: Collection[str]) -> None:
        """Use the data workers at these addresses and no others; one that was lost is tried again."""
        with self._moved:
            self._addresses = frozenset(addresses)
            for address in addresses:
                if not self._connections.get(address):
                    self._begin(address)
            self._moved.notify_all()

    # --- the program ------------------------------------------------------------------------------------------

    def serve(self, link: socket.socket, lines: TextIO, first: str) -> None:
        """Answer a process of the program, whose first line is known, until it closes its connection."""
        answers, line = _Answers(link), first
        try:
            while line:
                word, _, rest = line.strip().partition(" ")
                if word == ITEMS:
                    piece, numbers = rest.split(" ", 1)
                    self._put(_Piece(answers, int(piece), numbers))
                elif word == BACK:
                    self._take_back(answers, int(rest))
                elif word == TOOK:
                    self._took(Took.read(rest))
                line = lines.readline()
        except ValueError:
            log.warning("a line of the program that is none of stretto.agent ends its connection: %.100s", line)
        finally:
            with self._moved:
                self._waiting = deque(each for each in self._waiting if each.answers is not answers)
            answers.close()

    def _put(self, piece: _Piece) -> None:
        with self._moved:
            self._waiting.append(piece)
            self._moved.notify()

    def _take_back(self, answers: _Answers, number: int) -> None:
        """Leave a piece to the program, unless a data worker has begun it."""
        with self._moved:
            for at in range(len(self._waiting) - 1, -1, -1):
                if self._waiting[at].answers is answers and self._waiting[at].piece == number:
                    del self._waiting[at]
                    answers.put(number)
                    return

    # --- data workers -----------------------------------------------------------------------------------------

    def _begin(self, address: str, is_first: bool = True) -> None:
        self._connections[address] = self._connections.get(address, 0) + 1
        threading.Thread(target=self._ask, args=(address, is_first), name=f"items {address}", daemon=True).start()

    def _ask(self, address: str, is_first: bool) -> None:
        """Have one process of a data worker compute items while it is named; a connection that is lost begins anew."""
        access, begins_others = self._pod.access, is_first
        while True:
            try:
                with Connection(address, access.key, timeout_s=CONNECT_S, encrypted=access.encrypted) as connection:
                    if begins_others:
                        self._begin_others(address, connection)
                        begins_others = False
                    while (piece := self._next(address)) is not None:
                        self._have_computed(connection, piece)
            except (PlaneError, ValueError) as error:
                self._warn(f"{address} is asked for items again in {AGAIN_S:g} s: {error}")
            with self._moved:
                if self._moved.wait_for(lambda: address not in self._addresses, AGAIN_S):
                    self._connections[address] -= 1
                    return

    def _begin_others(self, address: str, connection: Connection) -> None:
        """Begin a connection for each further process of a data worker."""
        processes = int(bytes(connection.call(Kind.PROCESSES, []).parts[0]))
        with self._moved:
            for _ in range(processes - 1):
                self._begin(address, is_first=False)

    def _warn(self, text: str) -> None:
        """Log a text, of many within a minute the first."""
        with self._moved:
            is_due = time.monotonic() - self._said_s >= SAID_EVERY_S
            self._said_s = time.monotonic() if is_due else self._said_s
        if is_due:
            log.warning("%s", text)

    def _next(self, address: str) -> _Piece | None:
        """Wait for a piece; None: the data worker is left out."""
        with self._moved:
            self._moved.wait_for(lambda: self._waiting or address not in self._addresses)
            return self._waiting.popleft() if address in self._addresses else None

    def _have_computed(self, connection: Connection, piece: _Piece) -> None:
        items: bytes | memoryview = b""
        try:
            items = connection.call(Kind.ITEMS, [piece.numbers.encode()], ANSWER_S).parts[0]
        except PeerFailed as error:  # computed by the program, the item tells what is wrong
            self._warn(str(error))
        finally:
            piece.answers.put(piece.piece, items)

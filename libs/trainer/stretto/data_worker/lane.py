"""A lane: it prepares batches of a job in a process of its own, for whichever trainer of the job asks."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stretto_pipeline.arrays import Writer
from stretto_plane import Listener, Message, Peer

from ..batches.preparation import LEAVE_S, REQUEST_BYTES_MAX, BatchesPrepared, Fingerprint, Kind, arrays_of, range_of
from ..engine.link import Access
from ..errors import DataError
from ..model.reading import BatchReader

if TYPE_CHECKING:
    from ..model.program import Program

log = logging.getLogger("stretto.data_worker")

LOOK_S = 0.02
"""Seconds between two looks at the connections that are still open."""


class Lane:
    """Serves an address. It reads one batch at a time; trainers that ask meanwhile wait in the order they came."""

    def __init__(self, reader: Program | BatchReader, fingerprint: Fingerprint, address: str, access: Access) -> None:
        self._reader = reader
        self._fingerprint = fingerprint
        self._turn, self._preparing = threading.Lock(), threading.Lock()
        self._lock = threading.Lock()
        self._in_hand, self._since_s = 0, 0.0
        """Batches that the lane has in hand, and until when its time with some in hand is counted."""
        self.work = BatchesPrepared()
        """Batches that this lane has prepared so far. Another thread reads it, so it is replaced as a whole."""
        self._writers: WeakKeyDictionary[Peer, Writer] = WeakKeyDictionary()
        self._listener = Listener(
            address, self._handle, access.key, size_bytes_max=REQUEST_BYTES_MAX, encrypted=access.encrypted
        )
        self.address = self._listener.address

    def leave(self) -> None:
        """Serve on until every trainer has disconnected, or for LEAVE_S; then end.

        A trainer that has heard of the end asks for nothing more, and closes its connections once it has its answers.
        """
        end_s = time.monotonic() + LEAVE_S
        while self._listener.connections and time.monotonic() < end_s:
            time.sleep(LOOK_S)
        self._listener.close()

    def _handle(self, message: Message, peer: Peer) -> tuple[int, Sequence[Any]]:
        if message.kind == Kind.HELLO:
            return Kind.HELLO, [json.dumps(dict(self._fingerprint)).encode()]
        if message.kind != Kind.PREPARE:
            raise DataError(f"a request of kind {message.kind} is refused: lanes prepare batches")
        wanted = range_of(message)
        self._count(1, 0)
        prepared = 0
        try:
            with self._turn:
                batch = self._reader.read(wanted.start, wanted.length, wanted.partition)
            # beside the reading of the next batch: no computation keeps a store waiting
            with self._preparing:  # the user's keys may keep something from one call to the next
                arrays = arrays_of(self._reader.prepared(batch))
            prepared = 1
        finally:
            self._count(-1, prepared)
        return Kind.PREPARE, self._writers.setdefault(peer, Writer()).parts(arrays)

    def _count(self, more: int, prepared: int) -> None:
        """Note that there are ``more`` batches in hand, and the time in which there were some."""
        with self._lock:
            now_s = time.monotonic()
            self.work += BatchesPrepared(prepared, now_s - self._since_s if self._in_hand else 0.0)
            self._in_hand += more
            self._since_s = now_s

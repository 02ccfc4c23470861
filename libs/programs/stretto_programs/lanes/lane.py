"""A lane: it prepares elements in a process of its own, forked from the nursery.

It prints one line once it serves, and ends when its standard input does: so it never outlives the program. It holds
nothing that anybody would miss.
"""

from __future__ import annotations

import importlib
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

from stretto_pipeline.arrays import Reader, Writer
from stretto_pipeline.errors import PipelineError
from stretto_plane import Key, Listener, Message, Peer

from .protocol import REQUEST_BYTES_MAX, Framework, Kind, Prepares


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a lane. key: of the plane. framework: a module's name; settings: for its `begin`."""

    key: str
    address: str
    framework: str
    settings: Mapping[str, Any]


class Lane:
    """Serves an address. It prepares one element at a time.

    The first part of a preparation is an object of JSON. Its `live` has the numbers of all preparations that home may
    still ask for; the lane forgets the others. Without it, home may ask for all.
    """

    def __init__(self, address: str, key: Key, framework: Framework) -> None:
        self._framework = framework
        self._taught: dict[int, Prepares] = {}
        self._turn = threading.Lock()
        self._readers: WeakKeyDictionary[Peer, Reader] = WeakKeyDictionary()
        self._writers: WeakKeyDictionary[Peer, Writer] = WeakKeyDictionary()
        self._listener = Listener(address, self._handle, key, size_bytes_max=REQUEST_BYTES_MAX)

    def close(self) -> None:
        """Serve no more."""
        self._listener.close()

    def _handle(self, message: Message, peer: Peer) -> tuple[int, Sequence[Any]]:
        number = int(bytes(message.parts[0]))
        if message.kind == Kind.TEACH:
            with self._turn:
                live = json.loads(bytes(message.parts[1])).get("live")
                for each in [each for each in self._taught if live is not None and each not in live]:
                    del self._taught[each]
                self._taught[number] = self._framework.taught(message.parts[1:])
            return Kind.TEACH, []
        if message.kind != Kind.PREPARE:
            raise PipelineError(f"a request of kind {message.kind} is refused: lanes prepare elements")
        if (prepare := self._taught.get(number)) is None:
            raise PipelineError(f"preparation {number} is not known here")
        raw = self._readers.setdefault(peer, Reader()).arrays(message.parts[1:])
        with self._turn:
            begun_s = time.process_time()
            prepared = prepare(raw)
            cpu_us = int((time.process_time() - begun_s) * 1e6)
        return Kind.PREPARE, [str(cpu_us).encode(), *self._writers.setdefault(peer, Writer()).parts(prepared)]


def serve(start: Start) -> None:
    """Serve until standard input ends. A fork's buffered streams may be another's: its descriptors are its own."""
    framework = cast(Framework, importlib.import_module(start.framework))
    framework.begin(start.settings)
    lane = Lane(start.address, Key.of(start.key.encode()), framework)
    os.write(1, b"serving\n")
    while os.read(0, 1 << 12):
        pass
    lane.close()

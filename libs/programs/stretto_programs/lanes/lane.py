"""A lane: a process, forked from the nursery, that prepares elements.

The lane prints a line once it serves, and ends when its standard input ends: so it never outlives the program. It holds
no state that would be missed.
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

from .protocol import REQUEST_BYTES_MAX, Framework, LaneMessageKind, Prepares


@dataclass(frozen=True, slots=True)
class Start:
    """Arguments of a lane's process.

    key: of the plane. framework: name of the module that runs in the lane. settings: arguments of the module's `begin`.
    """

    key: str
    address: str
    framework: str
    settings: Mapping[str, Any]


class Lane:
    """The server of a lane at an address. It prepares a single element at a time.

    The first part of a taught preparation is a JSON object. Its `live` lists all preparations that home may still ask
    for; the lane drops the others. Without `live`, home may ask for all of them.
    """

    def __init__(self, address: str, key: Key, framework: Framework) -> None:
        self._framework = framework
        self._taught: dict[int, Prepares] = {}
        self._turn = threading.Lock()
        self._readers: WeakKeyDictionary[Peer, Reader] = WeakKeyDictionary()
        self._writers: WeakKeyDictionary[Peer, Writer] = WeakKeyDictionary()
        self._listener = Listener(address, self._handle, key, size_bytes_max=REQUEST_BYTES_MAX)

    def close(self) -> None:
        """Stop serving."""
        self._listener.close()

    def _handle(self, message: Message, peer: Peer) -> tuple[int, Sequence[Any]]:
        number = int(bytes(message.parts[0]))
        if message.kind == LaneMessageKind.TEACH:
            with self._turn:
                live = json.loads(bytes(message.parts[1])).get("live")
                for each in [each for each in self._taught if live is not None and each not in live]:
                    del self._taught[each]
                self._taught[number] = self._framework.taught(message.parts[1:])
            return LaneMessageKind.TEACH, []
        if message.kind != LaneMessageKind.PREPARE:
            raise PipelineError(f"a request of kind {message.kind} is refused: lanes prepare elements")
        if (prepare := self._taught.get(number)) is None:
            raise PipelineError(f"preparation {number} is not known here")
        raw = self._readers.setdefault(peer, Reader()).arrays(message.parts[1:])
        with self._turn:
            begun_s = time.process_time()
            prepared = prepare(raw)
            cpu_us = int((time.process_time() - begun_s) * 1e6)
        return LaneMessageKind.PREPARE, [
            str(cpu_us).encode(),
            *self._writers.setdefault(peer, Writer()).parts(prepared),
        ]


def serve(start: Start) -> None:
    """Serve until standard input ends.

    Standard streams are used by their descriptors: a fork inherits Python's buffered objects from the nursery.
    """
    framework = cast(Framework, importlib.import_module(start.framework))
    framework.begin(start.settings)
    lane = Lane(start.address, Key.of(start.key.encode()), framework)
    os.write(1, b"serving\n")
    while os.read(0, 1 << 12):
        pass
    lane.close()

"""A lane: it prepares elements in a process of its own (`python -m stretto_pipeline.execution.lane`).

Reads a `Start` as JSON, one line of standard input; prints one line once it serves. It ends when its standard input
does: so it never outlives the program. It holds nothing that anybody would miss. A lane that others feed reads them
from the lines that follow, and what it prints is for people.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

from stretto_plane import Key, Listener, Message, Peer

from ..arrays import Arrays, Reader, Writer
from ..errors import PipelineError
from .protocol import REQUEST_BYTES_MAX, Framework, Kind
from .staged import Answers, Staged


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a lane. key: of the plane. framework: a module's name; settings: for its `begin`.

    feeding: lanes that feed it, 0 for none; feeding_credits: batches that it asks each of these for at once.
    """

    key: str
    address: str
    framework: str
    settings: Mapping[str, Any]
    feeding: int = 0
    feeding_credits: int = 0


class Alone:
    """Prepares from raw arrays, one element at a time."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._turn = threading.Lock()

    def taught(self, number: int, parts: Sequence[memoryview]) -> Answers:
        """Return the function that `Preparation.parts` describes."""
        with self._turn:
            prepare = self._framework.taught(parts)

        def answer(raw: Arrays) -> tuple[Arrays, int]:
            with self._turn:
                begun_s = time.process_time()
                return prepare(raw), int((time.process_time() - begun_s) * 1e6)

        return answer

    def forget(self, number: int) -> None:
        """Forget a preparation."""


class Lane:
    """Serves an address.

    The first part of a preparation is an object of JSON. Its `live` has the numbers of all preparations that home may
    still ask for; the lane forgets the others. Without it, home may ask for all.
    """

    def __init__(self, address: str, key: Key, preparing: Alone | Staged) -> None:
        self._preparing = preparing
        self._taught: dict[int, Answers] = {}
        self._teaching = threading.Lock()
        self._readers: WeakKeyDictionary[Peer, Reader] = WeakKeyDictionary()
        self._writers: WeakKeyDictionary[Peer, Writer] = WeakKeyDictionary()
        self._listener = Listener(address, self._handle, key, size_bytes_max=REQUEST_BYTES_MAX)

    def close(self) -> None:
        """Serve no more."""
        self._listener.close()

    def _handle(self, message: Message, peer: Peer) -> tuple[int, Sequence[Any]]:
        number = int(bytes(message.parts[0]))
        if message.kind == Kind.TEACH:
            with self._teaching:
                live = json.loads(bytes(message.parts[1])).get("live")
                for each in [each for each in self._taught if live is not None and each not in live]:
                    del self._taught[each]
                    self._preparing.forget(each)
                self._taught[number] = self._preparing.taught(number, message.parts[1:])
            return Kind.TEACH, []
        if message.kind != Kind.PREPARE:
            raise PipelineError(f"a request of kind {message.kind} is refused: lanes prepare elements")
        if (answer := self._taught.get(number)) is None:
            raise PipelineError(f"preparation {number} is not known here")
        raw = self._readers.setdefault(peer, Reader()).arrays(message.parts[1:])
        prepared, cpu_us = answer(raw)
        return Kind.PREPARE, [str(cpu_us).encode(), *self._writers.setdefault(peer, Writer()).parts(prepared)]


def main() -> None:
    """Serve until standard input ends."""
    start = Start(**json.loads(sys.stdin.readline()))
    framework = cast(Framework, importlib.import_module(start.framework))
    framework.begin(start.settings)
    key = Key.of(start.key.encode())
    staged = Staged(framework, key, start.feeding, start.feeding_credits, _say) if start.feeding else None
    lane = Lane(start.address, key, staged or Alone(framework))
    _say("serving")
    for line in sys.stdin:
        if staged is not None:
            staged.use(**json.loads(line))
    lane.close()
    os._exit(0)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""The steps of a program that knows nothing of Stretto: in what it prints, which is passed on to the pod's log as it
comes, or in its event files of TensorBoard."""

from __future__ import annotations

import contextlib
import heapq
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from ..worker.step_timer import StepTime, StepTimer

LINE_MAX = 4096
"""Bytes of a line that are searched for steps."""
CHUNK = 65536
STEPS_MAX = 2**53
"""Largest number of steps that counts; a larger one is none."""
_ENDS = re.compile(rb"[\r\n]")
LOOK_S = 1.0
"""Interval at which event files are read."""
FILES_MAX = 1000
"""Event files that are looked at: the latest that were written."""
_HEAD, _TAIL = 12, 4
"""Bytes before the content of a record of an event file, which begin with its length, and behind it."""
_BEGIN_BYTES = 32
"""Bytes of a record's content that hold its time and its step, which are the first fields of an ``Event``."""


class ToldSteps:
    """The steps that a program tells, counted into a timer. One thread at a time uses it."""

    def __init__(self, meter: StepTimer) -> None:
        self._meter = meter
        self._told = 0
        """Steps that were told last; a smaller number is of another epoch."""
        self._at_s: float | None = None

    def tell(self, told: int, now_s: float) -> None:
        """Count the steps since those that were told last."""
        steps = told - self._told if told >= self._told else told
        self._told = told
        if steps and self._at_s is not None:
            self._meter.step(self._at_s, now_s, steps, StepTime(), steps)
        self._at_s = now_s


class PrintedSteps:
    """The steps that a program's lines tell. One thread at a time uses it."""

    def __init__(self, pattern: str, told: ToldSteps) -> None:
        self._pattern = re.compile(pattern.encode())
        self._told = told
        self._rest = b""

    def feed(self, chunk: bytes, now_s: float) -> None:
        """Search the lines that ``chunk`` ends."""
        *lines, rest = _ENDS.split(self._rest + chunk)
        self._rest = rest[-LINE_MAX:]
        for line in lines:
            for found in self._pattern.finditer(line[:LINE_MAX]):
                self._told_now(found[1], now_s)

    def _told_now(self, text: bytes | None, now_s: float) -> None:
        if text is not None and text.isdigit() and len(text) <= 16 and (told := int(text)) <= STEPS_MAX:
            self._told.tell(told, now_s)


class EventSteps:
    """The greatest step of event files below a folder, of what is written from now on. One thread at a time uses it.

    A file is a row of records: the length of the content in 8 bytes, its checksum in 4, the content, a checksum in 4.
    """

    def __init__(self, folder: Path, told: ToldSteps) -> None:
        self._folder, self._told = folder, told
        self._most = -1
        self._read = {path: status.st_size for path, status in self._files()}
        """The bytes of each file that are read, or were there before."""

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._folder.rglob("*tfevents*"):
            with contextlib.suppress(OSError):  # it was removed, or leads nowhere
                yield path, path.stat()

    def look(self, now_s: float) -> None:
        """Tell the greatest step, if it is greater than at the last look."""
        found = [self._most]
        newest = heapq.nlargest(FILES_MAX, self._files(), key=lambda each: each[1].st_mtime)
        for path in sorted(path for path, _ in newest):
            with contextlib.suppress(OSError):  # it was removed
                found.extend(step for step in self._steps(path) if step <= STEPS_MAX)
        if (most := max(found)) > self._most:
            self._most = most
            self._told.tell(most, now_s)

    def _steps(self, path: Path) -> Iterator[int]:
        """Yield the step of each record that is whole and was not read yet."""
        with path.open("rb") as file:
            size, at = os.fstat(file.fileno()).st_size, self._read.get(path, 0)
            while at + _HEAD + _TAIL <= size:
                file.seek(at)
                length = int.from_bytes(file.read(_HEAD)[:8], "little")
                if at + _HEAD + length + _TAIL > size:
                    break
                yield step_of(file.read(min(length, _BEGIN_BYTES)))
                at += _HEAD + length + _TAIL
            self._read[path] = at


def step_of(event: bytes) -> int:
    """Return the step of an ``Event`` of TensorBoard: field 2, behind field 1, a double; it is left out if it is 0."""
    fields = event[9:] if event[:1] == b"\x09" else event
    step = 0
    for place, byte in enumerate(fields[1:11] if fields[:1] == b"\x10" else b""):
        step |= (byte & 127) << 7 * place
        if byte < 128:
            break
    return step


def read_events(steps: EventSteps) -> Callable[[float], None]:
    """Begin to read event files in a thread; return a function that ends it after a last look, for which it waits."""
    over = threading.Event()

    def run() -> None:
        is_over = False
        while not is_over:
            is_over = over.wait(LOOK_S)
            with contextlib.suppress(OSError):  # a folder was removed: there is a next look
                steps.look(time.monotonic())

    reading = threading.Thread(target=run, name="event files of the program", daemon=True)
    reading.start()

    def end(wait_s: float) -> None:
        over.set()
        reading.join(wait_s)

    return end


def follow(stream: IO[bytes], steps: PrintedSteps) -> threading.Thread:
    """Begin to pass on what the program prints until it has closed its end; return the thread that does so."""

    def run() -> None:
        with stream:
            while chunk := stream.read1(CHUNK):  # type: ignore[attr-defined]
                with contextlib.suppress(OSError):  # no room for the log: the program goes on
                    sys.stdout.buffer.write(chunk)
                    sys.stdout.buffer.flush()
                steps.feed(chunk, time.monotonic())

    thread = threading.Thread(target=run, name="output of the program", daemon=True)
    thread.start()
    return thread

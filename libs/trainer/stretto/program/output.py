"""Output of a program: passed on to the pod's log as it comes, and searched for the number of steps."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from typing import IO

from ..worker.step_timer import StepTime, StepTimer

LINE_MAX = 4096
"""Bytes of a line that are searched for steps."""
CHUNK = 65536
STEPS_MAX = 2**53
"""Largest number of steps that counts; a larger one is none."""
_ENDS = re.compile(rb"[\r\n]")


class PrintedSteps:
    """The steps that a program's lines tell, counted into a timer. One thread at a time uses it."""

    def __init__(self, pattern: str, meter: StepTimer) -> None:
        self._pattern = re.compile(pattern.encode())
        self._meter = meter
        self._told = 0
        """Steps that the last line told; a smaller number is of another epoch."""
        self._at_s: float | None = None
        self._rest = b""

    def feed(self, chunk: bytes, now_s: float) -> None:
        """Search the lines that ``chunk`` ends."""
        *lines, rest = _ENDS.split(self._rest + chunk)
        self._rest = rest[-LINE_MAX:]
        for line in lines:
            for found in self._pattern.finditer(line[:LINE_MAX]):
                self._told_now(found[1], now_s)

    def _told_now(self, text: bytes | None, now_s: float) -> None:
        if text is None or not text.isdigit() or len(text) > 16 or (told := int(text)) > STEPS_MAX:
            return
        steps = told - self._told if told >= self._told else told
        self._told = told
        if steps and self._at_s is not None:
            self._meter.step(self._at_s, now_s, steps, StepTime(), steps)
        self._at_s = now_s


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

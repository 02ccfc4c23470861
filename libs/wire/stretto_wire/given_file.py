"""Reader of files that people give: a pipe or a device may never end, and a file may be larger than the memory."""

from __future__ import annotations

import errno
import os
import select
import stat
import sys
from pathlib import Path

JOB_BYTES = 4 << 20
"""Largest job file that is read: the most that a gateway can be told to take."""
DATA_BYTES = 256 << 20
"""Largest file with measurements or traces that is read."""
SILENCE_S = 30.0
"""Time without a byte after which a pipe is given up."""
STDIN = "-"
_PART = 1 << 20


def read_given(file: str | Path, most_bytes: int, silence_s: float = SILENCE_S) -> bytes:
    """Return what is in a file, a pipe or, for "-", the standard input.

    Raises OSError, whose ``strerror`` says so where there are more bytes, or where a pipe stays silent.
    """
    if str(file) == STDIN:
        content = sys.stdin.buffer.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise _too_large(file, most_bytes)
        return content
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size > most_bytes:
            raise _too_large(file, most_bytes)
        return _bounded(descriptor, file, most_bytes, silence_s)
    finally:
        os.close(descriptor)


def _bounded(descriptor: int, file: str | Path, most_bytes: int, silence_s: float) -> bytes:
    parts: list[bytes] = []
    left = most_bytes
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    while True:
        if not ready.poll(silence_s * 1000):
            raise OSError(errno.ETIMEDOUT, f"a pipe from which nothing came for {silence_s:g} s", str(file))
        part = os.read(descriptor, min(_PART, left + 1))
        if not part:
            return b"".join(parts)
        left -= len(part)
        if left < 0:
            raise _too_large(file, most_bytes)
        parts.append(part)


def text_of(content: bytes) -> str:
    """Return the text in UTF-8, with or without a mark of the order of bytes. Raises UnicodeDecodeError."""
    return content.decode("utf-8-sig")


def _too_large(file: str | Path, most_bytes: int) -> OSError:
    size = f"{most_bytes >> 20} MiB" if most_bytes >= 1 << 20 else f"{most_bytes} bytes"
    return OSError(errno.EFBIG, f"larger than {size}, the most that is read: give a smaller file", str(file))

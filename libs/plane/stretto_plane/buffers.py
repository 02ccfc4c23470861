"""Buffers of received messages: used again once no view of them lives.

A fresh buffer of 2 MB costs 500 page faults, about as much time as two copies of its bytes. So those that were used are
kept for all connections of the process. A buffer is free when nothing but the pool refers to it: every view, and every
array on a view, refers to it.
"""

from __future__ import annotations

import mmap
import sys
import threading
from collections.abc import Sequence

SMALL_BYTES = 16 << 10
"""Size below which the memory allocator serves as well (taste)."""
KEPT_BYTES_MAX = 64 << 20
KEPT_COUNT_MAX = 32
SIZE_CLASSES = 4
"""Number of sizes between two powers of two: at most a quarter of a buffer lies idle, and similar sizes share
buffers."""


class BufferPool:
    """Gives buffers to any thread. It keeps at most ``kept_bytes_max``; what exceeds that goes with its last view."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._kept: list[mmap.mmap] = []
        self._kept_bytes = 0
        self._lock = threading.Lock()
        self._idle_references = _references([mmap.mmap(-1, mmap.PAGESIZE)], 0)

    def take(self, size_bytes: int) -> memoryview:
        """Return a view of ``size_bytes`` writable bytes, whose content is arbitrary. Raises MemoryError, OSError."""
        if size_bytes <= SMALL_BYTES:
            return memoryview(bytearray(size_bytes))
        capacity = capacity_of(size_bytes)
        with self._lock:
            for index in range(len(self._kept)):  # a variable for the buffer would be a further reference
                if len(self._kept[index]) == capacity and _references(self._kept, index) == self._idle_references:
                    return memoryview(self._kept[index])[:size_bytes]
        populate = mmap.MAP_POPULATE if capacity <= self._kept_bytes_max // 4 else 0
        buffer = mmap.mmap(-1, capacity, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate)
        view = memoryview(buffer)[:size_bytes]
        if populate:
            with self._lock:
                self._keep(buffer)
        return view

    def _keep(self, buffer: mmap.mmap) -> None:
        self._kept.append(buffer)
        self._kept_bytes += len(buffer)
        while self._kept_bytes > self._kept_bytes_max or len(self._kept) > KEPT_COUNT_MAX:
            self._kept_bytes -= len(self._kept.pop(0))


def capacity_of(size_bytes: int) -> int:
    """Round up to a size class, a multiple of pages."""
    step = max(1 << (size_bytes.bit_length() - 1), SIZE_CLASSES * mmap.PAGESIZE) // SIZE_CLASSES
    return -(-size_bytes // step) * step


def _references(buffers: Sequence[mmap.mmap], index: int) -> int:
    return sys.getrefcount(buffers[index])


POOL = BufferPool()
"""The pool of this process."""

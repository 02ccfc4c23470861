"""A file of pages on the disk: read one by one at random, and written whole.

The file passes the system's cache by where system and disk allow it (O_DIRECT and asynchronous reads of Linux). Of a
page a row or two are wanted, so the cache would fill with what nobody reads, at the cost of the pod's memory. And a
read takes a third of the processor time (measured, 5 and 12 us a page). Elsewhere pages are asked for in advance, and
come by the cache.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..kernels import QUEUED, Kernels
from ..layout import PAGE_BYTES

Bytes = NDArray[np.uint8]
I64 = NDArray[np.int64]

_QUEUES_MAX = 8
"""Threads that read past the cache at once, others by it: these keep any disk busy, and the system has few queues."""


class ReadQueues:
    """The queues of reads of a store. Each serves one thread at a time."""

    def __init__(self, kernels: Kernels) -> None:
        self._queues = kernels.queues
        self._unused: list[int] = [0] * _QUEUES_MAX
        """Queues that no thread has; 0 for one that is not opened. Threads take and give them in one step of a list."""

    @contextmanager
    def taken(self) -> Generator[int]:
        """Yield a queue for the block; 0 where there is none."""
        try:
            queue = self._unused.pop()
        except IndexError:
            yield 0
            return
        try:
            if not queue and self._queues is not None:
                queue = self._queues.open()
            yield queue
        finally:
            self._unused.append(queue)

    def fetch(self, file: int, offsets: I64, record_bytes: int, page_bytes: int, out: Bytes) -> int:
        """Read records as `Queues.fetch` does; return how many came, 0 where no queue is to be had."""
        with self.taken() as queue:
            if not queue or self._queues is None:
                return 0
            return self._queues.fetch(queue, file, offsets, record_bytes, aligned(QUEUED * page_bytes), out)

    def close(self) -> None:
        """Give the queues back, when no thread reads any more."""
        for queue in filter(None, self._unused):
            assert self._queues is not None, "somebody has opened them"
            self._queues.close(queue)
        self._unused = [0] * _QUEUES_MAX


class PageFile:
    """A file in a folder, unlinked when it is opened. page_bytes: of a page, a multiple of PAGE_BYTES."""

    def __init__(self, folder: Path, page_bytes: int, kernels: Kernels, queues: ReadQueues) -> None:
        """Raises OSError."""
        self._page_bytes = page_bytes
        self._kernels = kernels
        self._queues = queues
        self._direct = -1
        """The same file past the cache; -1 where that is not to be had."""
        self.number, name = tempfile.mkstemp(prefix="rows-", dir=folder)
        """The file's descriptor."""
        try:
            with contextlib.suppress(OSError, AttributeError):
                self._direct = os.open(name, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        finally:
            os.unlink(name)
        with contextlib.suppress(OSError, AttributeError):  # what lies beside a page is not wanted
            os.posix_fadvise(self.number, 0, 0, os.POSIX_FADV_RANDOM)
        if self._direct >= 0 and not self._passes():
            os.close(self._direct)
            self._direct = -1

    def _passes(self) -> bool:
        """Try a page past the cache: a file system may refuse it only when it is asked to."""
        page, found = aligned(self._page_bytes), np.empty(self._page_bytes, np.uint8)
        page[:] = 0x5A
        try:
            self.write(page, 0)
        except OSError:
            return False
        came = self._read_past(np.zeros(1, np.int64), self._page_bytes, found)
        return came == 1 and bool((found == page).all())

    def close(self) -> None:
        """Give the file's room back to the disk."""
        for file in (self.number, self._direct):
            if file >= 0:
                os.close(file)

    def resize(self, size_bytes: int) -> None:
        """Let the file have so many bytes; those that nobody has written are zero. Raises OSError."""
        os.ftruncate(self.number, size_bytes)

    def write(self, pages: Bytes, offset: int) -> None:
        """Write whole pages, which lie as `aligned` has them. Raises OSError."""
        data = pages.data
        while data:
            written = os.pwrite(self.number if self._direct < 0 else self._direct, data, offset)
            data, offset = data[written:], offset + written

    def read(self, offsets: I64, record_bytes: int, out: Bytes) -> int:
        """Read records, none across two pages, of ascending offsets [n]; return how many came, in their order."""
        if self._direct >= 0 and self._read_past(offsets, record_bytes, out) == len(offsets):
            return len(offsets)
        return self._kernels.fetch(self.number, offsets, record_bytes, out)

    def _read_past(self, offsets: I64, record_bytes: int, out: Bytes) -> int:
        return self._queues.fetch(self._direct, offsets, record_bytes, self._page_bytes, out)

    def uncache(self) -> None:
        """Take the file's pages out of the system's cache, where they go by it, so that each read is one of the disk.

        Raises OSError.
        """
        if self._direct < 0:
            os.fdatasync(self.number)
            os.posix_fadvise(self.number, 0, 0, os.POSIX_FADV_DONTNEED)

    def read_range(self, offset: int, size_bytes: int) -> Bytes:
        """Return successive pages, less than that if they do not come. Raises OSError."""
        out, got = aligned(size_bytes), 0
        file = self.number if self._direct < 0 else self._direct
        while got < size_bytes and (more := os.preadv(file, [out.data[got:]], offset + got)):
            got += more
        return out[:got]


def aligned(size_bytes: int) -> Bytes:
    """Return memory of so many bytes that begins as pages do."""
    memory = np.empty(size_bytes + PAGE_BYTES, np.uint8)
    begin = -memory.__array_interface__["data"][0] % PAGE_BYTES
    return memory[begin : begin + size_bytes]

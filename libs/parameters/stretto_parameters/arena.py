"""Memory of parts that grow: one reservation of addresses, touched only as far as it is used.

A part grows where it is, so nothing is copied and addresses stay. Where the system refuses the reservation (a limit of
address space, or strict accounting of memory), each part has memory of its own, and growing copies it.
"""

from __future__ import annotations

import contextlib
import mmap

import numpy as np
from numpy.typing import NDArray

from .errors import StoreFull

PAGE_BYTES = mmap.PAGESIZE
_HUGE_BYTES = 2**21
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
NO_RESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python does not name
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14: one call touches all pages
_STEP_BYTES_MAX = 2**16
_STEP_SHARE = 8
"""A part is touched an eighth of its size ahead, 64 KiB at most: a call to the system for some hundred rows."""
_COPY_SHARE = 4

Bytes = NDArray[np.uint8]


class Arena:
    """Memory of `parts` parts, each with up to `part_bytes_max` bytes. Fresh bytes are zero.

    What a part gets at once in whole blocks of 2 MiB, as from an image, is huge pages: half the time of the first
    touch, and not a byte more than small ones.
    """

    _mapping: mmap.mmap  # pyrefly: ignore[possibly-uninitialized-attribute]
    """The reserved addresses; absent where nothing could be reserved."""
    _address: int  # pyrefly: ignore[possibly-uninitialized-attribute]
    _first: int  # pyrefly: ignore[possibly-uninitialized-attribute]
    """Where the first part begins in it, so that parts begin as huge pages do."""

    def __init__(self, parts: int, part_bytes_max: int) -> None:
        self.part_bytes_max = _rounded(part_bytes_max, _HUGE_BYTES if part_bytes_max >= _HUGE_BYTES else PAGE_BYTES)
        self._touched = [0] * parts
        self.used_bytes = 0
        """Bytes of memory that all parts take."""
        self._whole: Bytes | None = None
        self._parts: list[Bytes] = []
        try:
            memory = mmap.mmap(-1, parts * self.part_bytes_max + _HUGE_BYTES, flags=PRIVATE | NO_RESERVE)
        except OSError:
            self._parts = [np.zeros(0, np.uint8)] * parts
            return
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        self._mapping = memory
        self._whole = np.frombuffer(memory, np.uint8)
        self._address = int(self._whole.ctypes.data)
        self._first = -self._address % _HUGE_BYTES

    @property
    def is_reserved(self) -> bool:
        """True where addresses stay as parts grow."""
        return self._whole is not None

    def size_bytes(self, part: int) -> int:
        """Return the bytes of a part that may be used."""
        return self._touched[part]

    def ensure(self, part: int, size_bytes: int) -> bool:
        """Make the first `size_bytes` of a part usable; True: its address changed. Raises StoreFull."""
        touched = self._touched[part]
        if size_bytes <= touched:
            return False
        if size_bytes > self.part_bytes_max:
            raise StoreFull(
                f"a part of {size_bytes} bytes exceeds part_bytes_max = {self.part_bytes_max}: give the store more "
                "memory_bytes_max, or spread its columns over more servers"
            )
        ahead = size_bytes // (_STEP_SHARE if self._whole is not None else _COPY_SHARE)
        wanted = _rounded(size_bytes + min(ahead, _STEP_BYTES_MAX if self._whole is not None else ahead))
        wanted = min(wanted, self.part_bytes_max)
        if self._whole is not None:
            begin = self._begin(part)
            self._touch(begin + touched, begin + wanted)
        else:
            self._move(part, wanted)
        self._note(part, wanted)
        return self._whole is None

    def _touch(self, begin: int, end: int) -> None:
        """Take the memory of a range that is new."""
        first = self._first + _rounded(begin - self._first, _HUGE_BYTES)
        size_bytes = (end - first) // _HUGE_BYTES * _HUGE_BYTES
        if size_bytes > 0:
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self._mapping.madvise(mmap.MADV_HUGEPAGE, first, size_bytes)
        with contextlib.suppress(OSError):  # an older system touches each page at its first use
            self._mapping.madvise(POPULATE_WRITE, begin, end - begin)

    def _move(self, part: int, size_bytes: int) -> None:
        try:
            new = np.zeros(size_bytes, np.uint8)
        except MemoryError as error:
            raise StoreFull(f"the system refused {size_bytes} bytes: raise the limit of the process") from error
        old = self._parts[part]
        new[: len(old)] = old
        self._parts[part] = new

    def trim(self, part: int, size_bytes: int) -> bool:
        """Give back what a part has beyond `size_bytes`, but for what it would touch ahead, if that is worth a call.

        Return whether that was done.
        """
        ahead = min(size_bytes // _STEP_SHARE, _STEP_BYTES_MAX)
        kept, touched = _rounded(size_bytes + ahead), self._touched[part]
        if touched - kept <= max(ahead, PAGE_BYTES):
            return False
        if self._whole is None:
            self._parts[part] = self._parts[part][:kept].copy()
        else:
            self._mapping.madvise(mmap.MADV_DONTNEED, self._begin(part) + kept, touched - kept)
        self._note(part, kept)
        return True

    def give_back(self, part: int) -> None:
        """Give back the memory of a part; what it gets anew reads as zero."""
        touched = self._touched[part]
        self._note(part, 0)
        if self._whole is None:
            self._parts[part] = np.zeros(0, np.uint8)
        elif touched:
            self._mapping.madvise(mmap.MADV_DONTNEED, self._begin(part), touched)
            with contextlib.suppress(OSError):  # else the next byte there would take 2 MiB
                self._mapping.madvise(mmap.MADV_NOHUGEPAGE, self._begin(part), touched)

    def _note(self, part: int, size_bytes: int) -> None:
        """Note the bytes that a part has now."""
        self.used_bytes += size_bytes - self._touched[part]
        self._touched[part] = size_bytes

    def bytes_of(self, part: int) -> Bytes:
        """Return the usable bytes of a part: live memory, valid until the part grows or is given back."""
        if self._whole is None:
            return self._parts[part]
        begin = self._begin(part)
        return self._whole[begin : begin + self._touched[part]]

    def address(self, part: int) -> int:
        """Return the address of a part's first byte."""
        if self._whole is None:
            return int(self._parts[part].ctypes.data)
        return self._address + self._begin(part)

    def _begin(self, part: int) -> int:
        return self._first + part * self.part_bytes_max


def _rounded(size_bytes: int, grain_bytes: int = PAGE_BYTES) -> int:
    return -(-size_bytes // grain_bytes) * grain_bytes

"""Files in shared memory that the checkpoints service reserved for images: how they are opened, locked and mapped."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14, which Python does not name: it maps pages that exist, sixteen at a time. They can
be written to, since shared memory has no disk that would have to be informed."""
_KEPT = 2
"""The newest complete image and the one on its way take turns."""


def open_reserved(path: Path) -> BinaryIO:
    """Open and lock a file that was reserved for this server. A hole in it would be charged to this process."""
    opened = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "not a regular file of this user")
        hold_whole(opened, path)
    except OSError:
        os.close(opened)
        raise
    return open(opened, "r+b")


def hold_whole(opened: int, path: str | Path) -> None:
    """Lock the open file, so that it is not used for another image, however long this process may be frozen.

    The checkpoints service renames an image that is no longer needed, and reuses its memory if no process holds the
    lock. Raises FileNotFoundError if it did so before, and OSError if the file has holes.
    """
    try:
        fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileNotFoundError(errno.ENOENT, "it is just being given back") from None
    status = os.fstat(opened)
    if os.stat(path, follow_symlinks=False).st_ino != status.st_ino:
        raise FileNotFoundError(errno.ENOENT, "it has been given back")
    if (
        status.st_blocks * 512 < status.st_size
    ):  # writing to a hole takes memory; if none is left, the process is killed
        raise OSError(errno.EINVAL, "it has holes, so it is not the file that was reserved or written")


@dataclass(slots=True)
class _Mapping:
    opened: int
    memory: mmap.mmap


class Mappings:
    """Mappings of reserved files, kept from one image to the next: mapping a page costs half as much as the copy to it.

    A mapping keeps the memory of a file that was removed. `tidy` ends such mappings; the server calls it with every
    report. A mapping holds no lock: a file may be given to another image, and is then opened and locked again.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], _Mapping] = {}  # by device and inode, the latest last

    def of(self, file: BinaryIO) -> NDArray[np.uint8]:
        """Return the memory of an open file; it is valid until the file is cut."""
        status = os.fstat(file.fileno())
        name = (status.st_dev, status.st_ino)
        kept = self._kept.pop(name, None)
        if kept is not None and not _reaches(kept.memory, status.st_size):
            _end(kept)
            kept = None
        if kept is None:
            # the file that is locked is not the one that stays open
            opened = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDWR | os.O_CLOEXEC)
            kept = _Mapping(opened, mmap.mmap(opened, status.st_size))
            with contextlib.suppress(OSError):  # an older kernel maps each page at its first touch
                kept.memory.madvise(_POPULATE_READ)
        self._kept[name] = kept
        while len(self._kept) > _KEPT:
            _end(self._kept.pop(next(iter(self._kept))))
        return np.frombuffer(kept.memory, np.uint8, status.st_size)

    def tidy(self) -> None:
        """End the mappings of files that were removed."""
        for name, kept in list(self._kept.items()):
            if os.fstat(kept.opened).st_nlink == 0:
                _end(self._kept.pop(name))

    def close(self) -> None:
        """End all mappings."""
        while self._kept:
            _end(self._kept.popitem()[1])


def _reaches(memory: mmap.mmap, size_bytes: int) -> bool:
    """Return True if a mapping has `size_bytes`, or could be made that long: a model grows, and its image with it."""
    if len(memory) >= size_bytes:
        return True
    try:
        memory.resize(size_bytes)
    except (OSError, ValueError, BufferError):
        return False
    return True


def _end(mapping: _Mapping) -> None:
    os.close(mapping.opened)
    with contextlib.suppress(BufferError):  # a view of it is still there, and ends it
        mapping.memory.close()

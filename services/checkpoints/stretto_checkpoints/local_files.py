"""Files of a checkpoint on a local file system, where nothing that a job has put there leads elsewhere.

A job's servers write in the folder of their job, of which this service can read, write and remove all. So neither that
folder nor anything below is followed if it is a link, and only plain files are read. Each step is made relative to a
folder that is already open: there is no moment between a check and its use.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Generator
from pathlib import Path

from stretto_runtime.process.removal import remove_tree

NAMES_MAX = 10_000
"""Most names of a folder that are looked at: a job can fill its own."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PLAIN = os.O_NOFOLLOW | os.O_CLOEXEC
_LINK_OR_FILE = (errno.ELOOP, errno.ENOTDIR)


def make_folder(folder: Path) -> None:
    """Make the folder of a job, so that no other one makes it with other rights. Raises OSError."""
    with _store(folder, make=True) as store, _below(store, folder.name, make=True):
        pass


def write(file: Path, content: bytes) -> None:
    """Write a file in a checkpoint's folder: under another name first, then at once. Raises OSError."""
    draft = f"{file.name}.part"
    with _checkpoint(file.parent, make=True) as folder:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=folder)
        opened = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o666, dir_fd=folder)
        with os.fdopen(opened, "wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        os.rename(draft, file.name, src_dir_fd=folder, dst_dir_fd=folder)


def read(file: Path, size_max_bytes: int) -> bytes:
    """Return the beginning of a plain file in a checkpoint's folder. Raises OSError."""
    with _checkpoint(file.parent) as folder:
        # a pipe would be waited for otherwise
        opened = os.open(file.name, os.O_RDONLY | os.O_NONBLOCK | _PLAIN, dir_fd=folder)
        with os.fdopen(opened, "rb") as source:
            if not stat.S_ISREG(os.fstat(opened).st_mode):
                raise OSError(errno.EINVAL, "not a plain file")
            return source.read(size_max_bytes)


def names(folder: Path) -> list[str]:
    """Return at most ``NAMES_MAX`` names in the folder of a job. Raises OSError."""
    with _store(folder) as store, _below(store, folder.name) as job:
        return names_in(job)


def names_in(folder: Path | int) -> list[str]:
    """Return at most ``NAMES_MAX`` names in a folder, in their order. Raises OSError."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in itertools.islice(entries, NAMES_MAX))


def remove(folder: Path, first: str) -> None:
    """Remove a checkpoint's folder, the file ``first`` before all others. Raises OSError."""
    with (
        contextlib.suppress(FileNotFoundError),
        _store(folder.parent) as store,
        _below(store, folder.parent.name) as job,
    ):
        try:
            with _below(job, folder.name) as checkpoint, contextlib.suppress(FileNotFoundError):
                os.unlink(first, dir_fd=checkpoint)
            remove_tree(there := Path(f"/proc/self/fd/{job}/{folder.name}"), [job])
            if os.path.lexists(there):
                raise OSError(errno.ENOTEMPTY, f"{folder} cannot be removed")
        except OSError as error:
            if error.errno not in _LINK_OR_FILE:
                raise
            os.unlink(folder.name, dir_fd=job)  # the link itself, not the folder that it leads to


@contextlib.contextmanager
def _checkpoint(folder: Path, make: bool = False) -> Generator[int]:
    """Open ``<store>/<job>/<checkpoint>``."""
    with (
        _store(folder.parent, make) as store,
        _below(store, folder.parent.name, make) as job,
        _below(job, folder.name, make) as checkpoint,
    ):
        yield checkpoint


@contextlib.contextmanager
def _store(job: Path, make: bool = False) -> Generator[int]:
    """Open the folder in which a job's folder lies; it is the operator's, and may be reached by links."""
    if make:
        job.parent.mkdir(parents=True, exist_ok=True)
    opened = os.open(job.parent, _FOLDER)
    try:
        yield opened
    finally:
        os.close(opened)


@contextlib.contextmanager
def _below(parent: int, name: str, make: bool = False) -> Generator[int]:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
    opened = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    try:
        yield opened
    finally:
        os.close(opened)

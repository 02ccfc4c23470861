"""Room in shared memory for the images of parameter servers, reserved by this service.

Linux charges a page of shared memory to the control group of the process that touches it first. Were it a parameter
server, its image would count against a limit that is made for its tables, and could end it. Reserved here, the pages
are this service's, whoever writes to them later (measured: 256 MiB reserved in one group and filled from another stay
in the first).

The first touch of a page costs more than to copy to it. So the memory of an image that is no longer wanted is kept for
the job's next one, where that is little beside what is available. Nobody may still be at the old one, however long he
was frozen: servers that write or read an image hold its lock (flock, shared), and what is locked is let go instead.
Its name is another one by then, so who opened it before and locks it only now finds that it has been given back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

import structlog
from stretto_runtime.process.removal import remove_tree
from stretto_runtime.settings import images_folder

from .local_files import names_in

SHARE_MAX = 0.25
"""Largest share of the available memory that images may take: an image is not worth starving what runs."""
SPARE_MAX = 0.1
"""Largest share of available memory that files kept ready for the next checkpoint may use; their own memory counts as
available."""
SPARE_USED_MIN = 0.5
"""The share of spare memory that an image has to need, or the memory waits for a larger one."""
_SPARE = "spare"  # in the place of a checkpoint's name, which ends in a number

log = structlog.get_logger("stretto.checkpoints")


class SharedMemory:
    """Images of one installation in ``folder``: ``stretto.<job>.<installation>/<checkpoint>.<pod>``. None: none.

    A job has a folder of its own, which is all that its pods see of the others' where they are confined.
    """

    def __init__(self, folder: Path | None, installation: Path) -> None:
        self._folder = folder
        self._installation = installation

    def reserve(self, job: str, checkpoint: str, rooms: Mapping[str, int]) -> dict[str, str]:
        """Return, by pod, the path of a file of at least so many bytes that are really there; asked again, it is the
        same file.

        Together they are at most ``SHARE_MAX`` of what is available. A pod without room is not in the answer.
        """
        if self._folder is None:
            return {}
        paths = {pod: self._path(job, checkpoint, pod) for pod, size in rooms.items() if size}
        there = {pod: size for pod, path in paths.items() if (size := _our_bytes(path)) is not None}
        missing_bytes = sum(max(0, rooms[pod] - there.get(pod, 0)) for pod in paths)
        if missing_bytes > SHARE_MAX * (free := _available_bytes()):
            log.warning("images not kept in memory", job=job, size_bytes=missing_bytes, available_bytes=free)
            self._use_spares(job, {}, {})
            return {pod: str(paths[pod]) for pod in there}
        with contextlib.suppress(OSError):  # then no file can be made either, which says so
            self._of(job).mkdir(mode=0o700, exist_ok=True)
        self._use_spares(job, paths, rooms)
        return {pod: str(path) for pod, path in paths.items() if _grown(path, rooms[pod]) or pod in there}

    def _of(self, job: str) -> Path:
        """Return the folder of a job's images, or the pattern of all jobs' for ``*``."""
        assert self._folder is not None
        return images_folder(self._folder, self._installation, job)

    def _path(self, job: str, checkpoint: str, pod: str) -> Path:
        return self._of(job) / f"{checkpoint}.{pod}"

    def _use_spares(self, job: str, paths: Mapping[str, Path], rooms: Mapping[str, int]) -> None:
        """Give spare images to the same servers for reuse, unless still locked; free those of other servers.

        A difference leaves the memory of a full image to the next full one, for which it would be cut too short.
        """
        for spare, _, pod in self._images(job, {_SPARE}):
            path = paths.get(pod)
            with contextlib.suppress(OSError):
                if path is None or path.exists() or _held(spare):
                    spare.unlink()
                elif rooms[pod] >= SPARE_USED_MIN * _taken_bytes(spare):
                    spare.rename(path)

    def free(self, job: str, keep: tuple[str, ...] = ()) -> None:
        """Give back the job's images but those of the checkpoints ``keep``, also what an earlier life of us has left.

        While some are kept, there will be more: memory of the others stays for them, as far as it may.
        """
        if not keep:
            return self._remove(job)
        for path, checkpoint, pod in self._images(job):
            if checkpoint not in keep and checkpoint != _SPARE:
                self._spare(path, self._path(job, _SPARE, pod))

    def _spare(self, path: Path, spare: Path) -> None:
        try:
            if spare.exists() and _taken_bytes(spare) > _taken_bytes(path):
                path.unlink()
                return
            path.rename(spare)
            if not _is_ours(spare.stat(follow_symlinks=False)) or not self._may_spare():
                spare.unlink()
        except OSError as error:
            log.warning("image not given back", path=str(path), error=str(error))

    def _may_spare(self) -> bool:
        """So much, of all jobs."""
        spared_bytes = sum(_taken_bytes(path) for path, _, _ in self._images("*", {_SPARE}))
        return spared_bytes <= SPARE_MAX * (_available_bytes() + spared_bytes)

    def free_all(self) -> None:
        """Remove the images of all jobs of this installation."""
        self._remove("*")
        for folder in self._folders("*"):
            with contextlib.suppress(OSError):  # pods of jobs that go on hold on to this very one
                folder.rmdir()

    def end(self, job: str) -> None:
        """Remove the folder of a job that has ended, and whatever its pods have laid there."""
        for folder in self._folders(job):
            try:
                remove_tree(folder)
            except OSError as error:  # the machine lacks processes
                log.warning("images not removed from memory", path=str(folder), error=str(error))

    def _folders(self, job: str) -> Iterator[Path]:
        """Yield the folders of a job, or of all jobs for ``*``; no link, which a pod may have put in its place."""
        if self._folder is not None:
            for folder in sorted(self._folder.glob(self._of(job).name)):
                if folder.is_dir() and not folder.is_symlink():
                    yield folder

    def _images(self, job: str, only: Container[str] | None = None) -> Iterator[tuple[Path, str, str]]:
        """(path, checkpoint, pod) of the files that are there."""
        for folder in self._folders(job):
            names: list[str] = []
            with contextlib.suppress(OSError):  # removed meanwhile, as its job has ended
                names = names_in(folder)
            for name in names:
                checkpoint, _, pod = name.partition(".")
                if only is None or checkpoint in only:
                    yield folder / name, checkpoint, pod

    def _remove(self, job: str) -> None:
        for path, _, _ in self._images(job):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("image not removed from memory", path=str(path), error=str(error))


def _grown(path: Path, size_bytes: int) -> bool:
    """Return True if there is a file of ours of that size.

    A smaller one is one whose maker was killed, one reserved when there were fewer rows, or a finished image, which its
    server has cut if much was left: to that, more room at the end does no harm, and a new file would.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            status = os.fstat(file)
            new = status.st_size == 0
            if not _is_ours(status):
                raise PermissionError(errno.EPERM, "it is not a file of ours")
            whole_bytes = status.st_size if 512 * status.st_blocks >= status.st_size else 0
            try:
                if size_bytes > whole_bytes:  # to walk over the pages that are there would take as long as a copy
                    os.posix_fallocate(file, whole_bytes, size_bytes - whole_bytes)
            except OSError:
                if new:
                    path.unlink(missing_ok=True)
                raise
        finally:
            os.close(file)
    except OSError as error:
        log.warning("image not kept in memory", path=str(path), size_bytes=size_bytes, error=str(error))
        return False
    return True


def _held(path: Path) -> bool:
    """Return True if some process still writes or reads the former image."""
    # a pod may have put a link or a pipe there
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _our_bytes(path: Path) -> int | None:
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return status.st_size if _is_ours(status) else None


def _taken_bytes(path: Path) -> int:
    try:
        return 512 * path.stat(follow_symlinks=False).st_blocks
    except OSError:  # another job's is used by now
        return 0


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _available_bytes() -> int:
    """Return the bytes of memory that are available, by the kernel's estimate."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0

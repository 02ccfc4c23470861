"""Room in shared memory for the images of parameter servers, reserved by this service.

Linux charges a page of shared memory to the control group of the process that touches it first. Were it a parameter
server, its image would count against a limit that is made for its tables, and could end it. Reserved here, the pages
are this service's, whoever writes to them later (measured: 256 MiB reserved in one group and filled from another stay
in the first).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

import structlog

SHARE_MAX = 0.25
"""of the memory that is available: an image is not worth starving what runs"""

log = structlog.get_logger("stretto.checkpoints")


class SharedMemory:
    """Images of one installation in ``folder``: ``stretto.<job>.<installation>.<checkpoint>.<pod>``. None: none."""

    def __init__(self, folder: Path | None, installation: Path) -> None:
        self._folder = folder
        # installations on one machine may have jobs of the same name
        self._home = hashlib.sha256(str(installation.resolve()).encode()).hexdigest()[:8]

    def reserve(self, job: str, checkpoint: str, rooms: Mapping[str, int]) -> dict[str, str]:
        """pod -> path of a file of at least so many bytes that are really there; asked again, it is the same file.

        Together they are at most ``SHARE_MAX`` of what is available. A pod without room is not in the answer.
        """
        if self._folder is None:
            return {}
        paths = {
            pod: self._folder / f"stretto.{job}.{self._home}.{checkpoint}.{pod}" for pod, size in rooms.items() if size
        }
        there = {pod: size for pod, path in paths.items() if (size := _our_bytes(path)) is not None}
        missing_bytes = sum(max(0, rooms[pod] - there.get(pod, 0)) for pod in paths)
        if missing_bytes > SHARE_MAX * (free := _available_bytes()):
            log.warning("images not kept in memory", job=job, size_bytes=missing_bytes, available_bytes=free)
            return {pod: str(paths[pod]) for pod in there}
        return {pod: str(path) for pod, path in paths.items() if _grown(path, rooms[pod]) or pod in there}

    def free(self, job: str, keep: tuple[str, ...] = ()) -> None:
        """Remove the job's images but those of the checkpoints ``keep``, also what an earlier life of us has left."""
        self._remove(f"stretto.{job}.{self._home}.", keep)

    def free_all(self) -> None:
        """Remove the images of all jobs of this installation."""
        self._remove(f"stretto.*.{self._home}.")

    def _remove(self, stem: str, keep: tuple[str, ...] = ()) -> None:
        if self._folder is None:
            return
        for path in self._folder.glob(f"{stem}*"):
            if path.name.removeprefix(stem).partition(".")[0] in keep:
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("image not removed from memory", path=str(path), error=str(error))


def _grown(path: Path, size_bytes: int) -> bool:
    """Whether there is a file of ours of that size.

    A smaller one is one whose maker was killed, one reserved when there were fewer rows, or a finished image, which its
    server has cut to its size: to that, more room at the end does no harm, and a new file would.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            new = os.fstat(file).st_size == 0
            if not _is_ours(os.fstat(file)):
                raise PermissionError(errno.EPERM, "it is not a file of ours")
            try:
                os.posix_fallocate(file, 0, size_bytes)
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


def _our_bytes(path: Path) -> int | None:
    try:
        status = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return status.st_size if _is_ours(status) else None


def _is_ours(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()


def _available_bytes() -> int:
    """What can be taken without harm, by the kernel's estimate."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0

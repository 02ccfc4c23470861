"""Room in shared memory for the images of parameter servers, reserved by this service.

Linux charges a page of shared memory to the control group of the process that touches it first. Were it a parameter
server, its image would count against a limit that is made for its tables, and could end it. Reserved here, the pages
are this service's, whoever writes to them later (measured: 256 MiB reserved in one group and filled from another stay
in the first).
"""

from __future__ import annotations

import hashlib
import os
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
        """pod -> path of a file of so many bytes that are really there; the same again is the same file.

        Together they are at most ``SHARE_MAX`` of what is available. A pod without room is not in the answer.
        """
        if self._folder is None:
            return {}
        paths = {
            pod: self._folder / f"stretto.{job}.{self._home}.{checkpoint}.{pod}" for pod, size in rooms.items() if size
        }
        missing = {pod: path for pod, path in paths.items() if not _is_ours(path)}
        size_bytes, free = sum(rooms[pod] for pod in missing), _available_bytes()
        if size_bytes > SHARE_MAX * free:
            log.warning("images not kept in memory", job=job, size_bytes=size_bytes, available_bytes=free)
            return {pod: str(path) for pod, path in paths.items() if pod not in missing}
        there = {pod for pod in paths if pod not in missing or _reserved(missing[pod], rooms[pod])}
        return {pod: str(paths[pod]) for pod in paths if pod in there}

    def free(self, job: str, keep: tuple[str, ...] = ()) -> None:
        """Remove the job's images but those of the checkpoints ``keep``, also what an earlier life of us has left."""
        if self._folder is None:
            return
        stem = f"stretto.{job}.{self._home}."
        for path in self._folder.glob(f"{stem}*"):
            if path.name.removeprefix(stem).partition(".")[0] in keep:
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("image not removed from memory", path=str(path), error=str(error))


def _reserved(path: Path, size_bytes: int) -> bool:
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, size_bytes)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)
    except OSError as error:
        log.warning("image not kept in memory", path=str(path), size_bytes=size_bytes, error=str(error))
        return False
    return True


def _is_ours(path: Path) -> bool:
    try:
        return path.stat(follow_symlinks=False).st_uid == os.geteuid() and path.is_file() and not path.is_symlink()
    except OSError:
        return False


def _available_bytes() -> int:
    """What can be taken without harm, by the kernel's estimate."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0

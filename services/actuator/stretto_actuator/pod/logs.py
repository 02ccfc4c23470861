"""Logs of pods: the last megabyte of each is kept in the installation's store when the pod ends, and read from there.

They lie in a folder of the store that is no job's: a job's pods have their own folder alone, and reach no log.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from datetime import datetime

import structlog
from stretto_messages.actuator import LOG_PART_MAX
from stretto_wire.stores.filesystems import open_store
from stretto_wire.surroundings import monotonic_s

from ..backend import Backend, BackendError

FOLDER = ".logs"
"""No job has such a name, and no pod mounts such a folder."""
KEPT_BYTES = 1 << 20
LINES = 20_000
WRITERS = 4
WAITING_MAX = 100
"""Logs that wait to be written, a megabyte each."""
CLOSING_S = 5.0
CLEAR_EVERY_S = 24 * 3600.0
READ_KEPT_S = 20.0
READS_KEPT = 8
"""Logs that somebody reads part by part stay as they were at the first part."""

log = structlog.get_logger("stretto.actuator")


@dataclass(frozen=True, slots=True)
class Read:
    """A log as it was when its last part was asked for."""

    text: str
    at_s: float


class PodLogs:
    """The logs of an installation's pods. ``store``: URL of its store; empty: nothing is kept. ``kept_s``: how long."""

    def __init__(self, backend: Backend, store: str, kept_s: float) -> None:
        self._backend = backend
        self._store = store
        self._kept_s = kept_s
        self._room = asyncio.Semaphore(WRITERS)
        self._writing: set[asyncio.Task[None]] = set()
        self._reads: dict[tuple[str, str], Read] = {}
        self._cleared_at_s = -math.inf

    async def keep(self, job: str, pod: str) -> None:
        """Read a pod's log from where it ran, before that is gone, and write it to the store in the background."""
        if not self._store:
            return
        if len(self._writing) >= WAITING_MAX:
            log.warning("a log is not kept: too many wait for the store", job=job, pod=pod)
            return
        if text := await self._of_backend(job, pod):
            self._add(asyncio.create_task(self._write(job, pod, text), name=f"log of {job}/{pod}"))

    def keep_meanwhile(self, job: str, pod: str) -> None:
        """Do the same without waiting for where it ran."""
        self._add(asyncio.create_task(self.keep(job, pod), name=f"log of {job}/{pod}"))

    def _add(self, task: asyncio.Task[None]) -> None:
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def part(self, job: str, pod: str, skip: int) -> tuple[str, bool] | None:
        """Return the part of a log that ends ``skip`` characters before its end, and whether it has an earlier part.

        None: there is no log, neither where the pod ran nor in the store.
        """
        found = self._reads.get((job, pod))
        if skip == 0 or found is None or monotonic_s() - found.at_s > READ_KEPT_S:
            text = await self._of_backend(job, pod) or await self._of_store(job, pod)
            if not text:
                return None
            self._reads.pop((job, pod), None)
            self._reads[job, pod] = found = Read(text, monotonic_s())
            while len(self._reads) > READS_KEPT:
                del self._reads[next(iter(self._reads))]
        end = max(len(found.text) - skip, 0)
        begin = max(end - LOG_PART_MAX, 0)
        return found.text[begin:end], begin > 0

    async def clear(self, now_s: float) -> None:
        """Remove logs that were kept long enough, once a day; a failure is logged and tried a day later."""
        if not self._store or now_s - self._cleared_at_s < CLEAR_EVERY_S:
            return
        self._cleared_at_s = now_s
        try:
            await asyncio.to_thread(_clear, f"{self._store}/{FOLDER}", now_s - self._kept_s)
        except Exception as error:  # whatever a file system raises
            log.warning("old logs are not removed", error=f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        """Wait a little for the logs that are being written."""
        deadline_s = monotonic_s() + CLOSING_S
        while self._writing and (left_s := deadline_s - monotonic_s()) > 0:
            await asyncio.wait(self._writing, timeout=left_s)

    async def _of_backend(self, job: str, pod: str) -> str:
        try:
            text = await self._backend.logs(job, pod, LINES)
        except BackendError as error:
            log.info("no log where the pod ran", job=job, pod=pod, error=str(error))
            return ""
        return text.encode()[-KEPT_BYTES:].decode(errors="ignore")

    async def _of_store(self, job: str, pod: str) -> str:
        if not self._store:
            return ""
        try:
            return await asyncio.to_thread(_read, self._url(job, pod))
        except FileNotFoundError:
            return ""
        except Exception as error:  # whatever a file system raises
            log.warning("a log cannot be read", job=job, pod=pod, error=f"{type(error).__name__}: {error}")
            return ""

    async def _write(self, job: str, pod: str, text: str) -> None:
        async with self._room:
            with contextlib.suppress(asyncio.CancelledError):
                try:
                    await asyncio.to_thread(_write, self._url(job, pod), text.encode())
                except Exception as error:  # whatever a file system raises
                    log.warning("a log is not kept", job=job, pod=pod, error=f"{type(error).__name__}: {error}")

    def _url(self, job: str, pod: str) -> str:
        return f"{self._store}/{FOLDER}/{job}/{pod}.log"


def _write(url: str, content: bytes) -> None:
    filesystem, path = open_store(url)
    filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, content)


def _clear(url: str, before_s: float) -> None:
    filesystem, path = open_store(url)
    folders: set[str] = set()
    for name, facts in filesystem.find(path, detail=True).items():
        changed = facts.get("mtime") or 0.0  # a store that states none keeps them
        changed_s = changed.timestamp() if isinstance(changed, datetime) else float(changed)
        if 0 < changed_s < before_s:
            filesystem.rm_file(name)
            folders.add(name.rpartition("/")[0])
    for folder in folders:
        with contextlib.suppress(OSError):  # one with younger logs stays
            filesystem.rmdir(folder)


def _read(url: str) -> str:
    filesystem, path = open_store(url)
    return filesystem.cat_file(path).decode(errors="replace")

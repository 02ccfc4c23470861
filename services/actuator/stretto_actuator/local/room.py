"""The job that has used up the room on an installation's disk, or in its shared memory.

Jobs fill the disk, and the bus of all jobs stores nothing.

No limit of the kernel divides a disk among the processes of one user. A job's pods write into the same folders, so a
job is to blame as a whole.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

import psutil
from stretto_runtime.process.removal import remove_tree
from stretto_runtime.settings import images_folder

from .descriptors import HiddenFiles, unlinked
from .processes import PodProcesses
from .records import Record, Records

MEASURE_S = 20.0
"""Seconds for a measurement of a job's folders, after which the job hides what it has (taste)."""
MANIFEST = "manifest.json"
"""File that makes a folder of a job a checkpoint."""


class Room(NamedTuple):
    """Room on a disk. ``files``: how many more of them it can have."""

    size_bytes: float
    files: float

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return the room for files in a folder. Raises OSError."""
        found = os.statvfs(folder)
        return cls(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else math.inf)

    def __str__(self) -> str:
        files = f" in {self.files:,.0f} files" * math.isfinite(self.files)
        return f"{self.size_bytes / 2**20:,.0f} MiB{files}"


LEAST, SCARCE = Room(128 << 20, 2000), Room(32 << 20, 500)
"""Room with less of which a disk is short, so that a job is ended before the bus stores nothing; and with less of which
it is about to. A job that holds less is not to blame (taste)."""
KINDS = (0, 1)
SHORT = 0.25
"""Share of shared memory, and of the machine's memory, below which jobs are looked at (taste)."""
IMAGES_MOST = 5
"""Images of a parameter server at once: one is whole and one its differences, one is written, one is read, the room of
one is kept."""
SERVERS = "ps-"


@dataclass(frozen=True, slots=True)
class Use:
    """The share of a job in a disk.

    ``had``: the room that was free when the first of its pods started. ``own``: what goes with its pods. ``kept``: what
    stays, its checkpoints. ``hides``: there is more than it shows.
    """

    job: str
    had: Room
    own: Room
    kept: Room
    hides: bool = False


def is_short(free: Room, *, late: bool) -> bool:
    """Return whether so much room is so little that a job is to blame. ``late``: nobody was at first."""
    return any(left < least for left, least in zip(free, SCARCE if late else LEAST, strict=True))


def to_blame(free: Room, uses: Sequence[Use], *, late: bool) -> Use | None:
    """Return the job that has used up what is short, None if no job has: then other programs of the machine did.

    It is the one that holds most, if it and those that began in no more room hold half of what has gone since: a job
    that has stood still while others filled the disk is spared. ``late``: nobody was to blame at first, and there is
    hardly any room, so that checkpoints count, which are as large as the model; and whoever hides something, if no job
    is to blame by what it shows.
    """
    shown = _most(free, [replace(use, hides=False) for use in uses], late=late)
    return shown if shown is not None or not late else _most(free, uses, late=late)


def _most(free: Room, uses: Sequence[Use], *, late: bool) -> Use | None:

    def held(use: Use, kind: int) -> float:
        if not late:
            return use.own[kind]
        return math.inf if use.hides else use.own[kind] + use.kept[kind]

    least = SCARCE if late else LEAST
    for kind in (kind for kind in KINDS if free[kind] < least[kind]):
        for use in sorted(uses, key=lambda each: held(each, kind), reverse=True):
            together = sum(held(each, kind) for each in uses if each is use or each.had[kind] <= use.had[kind])
            if held(use, kind) >= least[kind] and together >= (use.had[kind] - free[kind]) / 2:
                return use
    return None


@dataclass(frozen=True, slots=True)
class Images:
    """The share of a job in shared memory, and what its parameter servers may have of memory."""

    job: str
    held_bytes: float
    servers_bytes: int


def beyond_images(found: Iterable[Images]) -> Images | None:
    """Return the job that holds most of those that hold more than their parameter servers can have filled; or None."""
    beyond = [each for each in found if each.held_bytes > max(IMAGES_MOST * each.servers_bytes, LEAST.size_bytes)]
    return max(beyond, key=lambda each: each.held_bytes, default=None)


class SharedMemory:
    """The shared memory in which each job has a folder for images of its parameter servers.

    Where there are no control groups, what a pod writes there counts as nobody's, and the end of the pod gives nothing
    back: the kernel, short of memory, would end services next.
    """

    def __init__(self, memory: Path | None, state: Path, records: Records, processes: PodProcesses) -> None:
        self._memory, self._state, self._records, self._processes = memory, state, records, processes
        self._servers_bytes: dict[str, int] = {}
        """The most that the parameter servers of each job had: while they start again, images of earlier ones wait."""

    def is_short(self) -> bool:
        """Return whether so little is left, of it or of the machine's memory, that somebody may have too much.

        Where jobs have no folders there, nothing is ever short. Raises OSError.
        """
        if self._memory is None:
            return False
        there, machine = os.statvfs(self._memory), psutil.virtual_memory()
        return there.f_bavail < SHORT * there.f_blocks or machine.available < SHORT * machine.total

    def images(self) -> list[Images]:
        """Measure what each job holds that may hold too much of what is used in all. Raises OSError.

        What a process hides does not count: honest ones hand open files to each other, too.
        """
        assert self._memory is not None
        there, device = os.statvfs(self._memory), os.stat(self._memory).st_dev
        used_bytes = (there.f_blocks - there.f_bfree) * there.f_frsize
        found: list[Images] = []
        jobs = of_jobs(self._records)
        self._servers_bytes = {job: size for job, size in self._servers_bytes.items() if job in jobs}
        for job, records in jobs.items():
            servers_bytes = sum(record.memory_bytes for record in records if record.pod.startswith(SERVERS))
            servers_bytes = self._servers_bytes[job] = max(servers_bytes, self._servers_bytes.get(job, 0))
            if not servers_bytes or used_bytes <= IMAGES_MOST * servers_bytes:
                continue
            pids = [process.pid for record in records for process in self._processes.members(record)]
            held_bytes = measured([self._folder(job)], device)[0].size_bytes
            with contextlib.suppress(HiddenFiles):
                held_bytes += sum(unlinked(pids, device, [str(self._folder(job))]).values())
            found.append(Images(job, held_bytes, servers_bytes))
        return found

    def give_back(self, job: str) -> None:
        """Remove what the ended pods of a job have written there."""
        remove_tree(self._folder(job))

    def _folder(self, job: str) -> Path:
        assert self._memory is not None
        return images_folder(self._memory, self._state, job)


class Disk:
    """The disk of an installation's state folder. ``stores``: folders in which each job has one for checkpoints."""

    def __init__(self, state: Path, stores: Iterable[Path], records: Records, processes: PodProcesses) -> None:
        self._state, self._stores = state, [*stores]
        self._records, self._processes = records, processes

    def free(self) -> Room:
        """Return the room that is left. Raises OSError."""
        return Room.of(self._state)

    def uses(self) -> list[Use]:
        """Measure what each job that has pods holds, whatever way its pods have hidden it. Raises OSError."""
        return [self._use(job, records) for job, records in of_jobs(self._records).items()]

    def give_back(self, job: str, *, checkpoints: bool) -> None:
        """Remove what the ended pods of a job have written, but the ends of their logs, and complete checkpoints.

        ``checkpoints``: remove from the job's folders of checkpoints what belongs to none.
        """
        self._records.empty(job)
        remove_tree(self._state / "spans" / job)
        for folder in self._kept(job) if checkpoints else ():
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_symlink() or not _has_checkpoints(Path(entry.path)):
                        remove_tree(Path(entry.path))

    def _use(self, job: str, records: Sequence[Record]) -> Use:
        first = min(records, key=lambda record: record.launched_at_s)
        had = Room(*(first.room or (math.inf, math.inf)))  # one of an earlier version does not tell it
        pids = [process.pid for record in records for process in self._processes.members(record)]
        device = os.stat(self._state).st_dev
        folders = [*(self._records.of(record.job, record.pod) for record in records), self._state / "spans" / job]
        own, own_hides = measured(folders, device)
        kept, kept_hides = measured(self._kept(job), device)
        try:
            open_still = unlinked(pids, device, [*map(str, folders), *map(str, self._kept(job))])
            hides = own_hides or kept_hides
        except HiddenFiles:
            open_still, hides = dict[int, int](), True
        own = Room(own.size_bytes + sum(open_still.values()), own.files + len(open_still))
        return Use(job, had, own, kept, hides)

    def _kept(self, job: str) -> list[Path]:
        return [store / job for store in self._stores if not (store / job).is_symlink()]


def of_jobs(records: Records) -> dict[str, list[Record]]:
    """Return the records of pods by job."""
    jobs: dict[str, list[Record]] = {}
    for record in records.all():
        jobs.setdefault(record.job, []).append(record)
    return jobs


def _has_checkpoints(folder: Path) -> bool:
    """Return whether a folder in a job's is a checkpoint, or has some: the stores of other jobs may lie in it."""
    return any(
        (folder / MANIFEST).is_file() or next(folder.glob(f"{below}{MANIFEST}"), None) for below in ("*/", "*/*/")
    )


def measured(folders: Iterable[Path], device: int) -> tuple[Room, bool]:
    """Return what folders on this device hold, and whether some of it cannot be seen, or not in time."""
    there: list[str] = []
    for folder in folders:
        with contextlib.suppress(OSError):
            if os.stat(folder, follow_symlinks=False).st_dev == device:
                there.append(str(folder))
    found: list[float] = []
    hides = False
    for kind in ("--block-size=1", "--inodes") if there else ():
        command = ["du", "--one-file-system", "--summarize", "--total", kind, "--", *there]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=MEASURE_S, check=False, env={**os.environ, "LC_ALL": "C"}
            )
        except subprocess.TimeoutExpired:
            return Room(0, 0), True
        hides = hides or b"Permission denied" in done.stderr
        found.append(float(done.stdout.rpartition(b"\ttotal")[0].rpartition(b"\n")[2] or 0))
    return Room(*found) if there else Room(0, 0), hides

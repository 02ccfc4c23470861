"""The files that jobs leave on the disk of an installation: folders of pods, of spans and of checkpoints, by job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stretto_runtime.process.removal import remove_tree

from .bus import store_of

PODS, SPANS, CHECKPOINTS = "pods", "spans", "checkpoints"


@dataclass(frozen=True, slots=True)
class JobFolder:
    """A folder of one job. ``changed_s``: when something was last made in it, seconds since 1970-01-01 UTC."""

    job: str
    kind: str
    path: Path
    changed_s: float

    def size_bytes(self) -> int:
        """Return the bytes on the disk of everything in it. Links are not followed: pods may have laid them."""
        total, waiting = 0, [self.path]
        while waiting:
            with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
        return total

    def remove(self) -> None:
        """Remove the folder. Raises OSError: some of it is still there."""
        remove_tree(self.path)
        if self.path.exists():
            raise OSError(f"{self.path} cannot be removed: look whose it is")


def folders(folder: Path, store_url: str = "") -> list[JobFolder]:
    """Return the folders of all jobs. A store of checkpoints that is no folder of this machine is not looked into."""
    found: list[JobFolder] = []
    for kind, place in ((PODS, folder / "pods"), (SPANS, folder / "spans"), (CHECKPOINTS, store_of(folder, store_url))):
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    changed_s = entry.stat(follow_symlinks=False).st_mtime
                    found.append(JobFolder(entry.name, kind, Path(entry.path), changed_s))
    return sorted(found, key=lambda each: (each.job, each.kind))


def removable(
    found: Iterable[JobFolder],
    ended_s: Mapping[str, float | None],
    needed: Collection[str],
    before_s: Mapping[str, float],
    named: Collection[str] = (),
) -> list[JobFolder]:
    """Return the folders that may go: of jobs that ended before the time of the folder's kind, or were last changed
    before it. A kind without a time stays.

    ``ended_s``: the end of each known job, None while it lives; a live job keeps everything. ``needed``: jobs from
    whose checkpoints a live job starts. A store may hold other folders: of a job that is not known, checkpoints go only
    if it is ``named`` and has some.
    """
    return [
        each
        for each in found
        if (before := before_s.get(each.kind)) is not None
        and (ended_s.get(each.job, each.changed_s) or before) < before
        and (each.kind != CHECKPOINTS or (each.job not in needed and (each.job in ended_s or _is_meant(each, named))))
    ]


def _is_meant(found: JobFolder, named: Collection[str]) -> bool:
    return found.job in named and any(found.path.glob("*/manifest.json"))

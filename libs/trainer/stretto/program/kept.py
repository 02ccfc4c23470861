"""Checkpoints of a program at level 2: each is a folder with its parameters and the ledger's document, of one instant.

A checkpoint is there once its folder has its name, so that parameters and ledger can only go back together. The first
one has no parameters: it is the ledger before the first sample.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError

MANIFEST = "manifest.json"
"""File that makes a folder of a job a checkpoint, for the installation as well."""
FORMAT = "stretto-program/1"
KEPT = 2
"""Checkpoints that are kept: the last one, and one before it."""
_BEGUN = "begun"
"""File of a checkpoint that this process has begun and not completed."""
_FILE = "file://"


@dataclass(frozen=True, slots=True)
class KeptCheckpoint:
    """A complete checkpoint. ``parameters``: the folder that the program filled; None: the job's beginning."""

    name: str
    ledger: str
    parameters: Path | None


class KeptCheckpoints:
    """The checkpoints of one job, of which at most one is being taken by this process."""

    def __init__(self, url: str, job: str, pod: str) -> None:
        if not url.startswith(_FILE):
            raise DataError(
                f"program.level = 2: its checkpoints are folders, and the store of this installation, {url}, is none; "
                "state level 1, or let the operator name a store of the form file:///folder that pods share"
            )
        self._folder, self._job, self._pod = Path(url.removeprefix(_FILE)), job, pod

    def last(self) -> KeptCheckpoint | None:
        """Return the newest complete checkpoint. Raises DataError: its manifest cannot be read."""
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else None

    def begin(self) -> Path:
        """Return an empty folder for parameters."""
        part = self._part
        shutil.rmtree(part, ignore_errors=True)
        (part / "parameters").mkdir(parents=True)
        (part / _BEGUN).touch()
        return part / "parameters"

    def clear(self) -> None:
        """Remove what workers before this one began and did not complete.

        A folder is taken away before it is emptied: a worker that was taken for dead completes it whole, or not at all.
        """
        for part in (*self._folder.glob(".*.part"), *self._folder.glob(".*.gone")):
            gone = part.with_suffix(".gone")
            with contextlib.suppress(OSError):  # it was completed, or another worker takes it away
                part.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def drop(self) -> None:
        """Remove what was begun."""
        shutil.rmtree(self._part, ignore_errors=True)

    def complete(self, ledger: str, samples: int) -> KeptCheckpoint:
        """Make what was begun the newest checkpoint, with the ledger's document of the same instant."""
        return self._complete({"format": FORMAT, "ledger": ledger, "samples": samples, "parameters": True})

    def beginning(self, ledger: str) -> KeptCheckpoint:
        """Make the job's beginning a checkpoint."""
        self.begin()
        return self._complete({"format": FORMAT, "ledger": ledger, "samples": 0, "parameters": False})

    def _complete(self, manifest: dict[str, Any]) -> KeptCheckpoint:
        part = self._part
        (part / _BEGUN).unlink()  # it is missing where a worker took the folder away and the program made it anew
        (part / MANIFEST).write_text(json.dumps(manifest))
        for folder, _, files in os.walk(part):
            for name in files:
                _sync(Path(folder, name))
            _sync(Path(folder))
        numbers = self._numbers()
        number = numbers[-1] + 1 if numbers else 0
        part.rename(self._path(number))  # refused where another process has just made one of this number
        _sync(self._folder)
        for earlier in numbers[: -KEPT + 1]:
            shutil.rmtree(self._path(earlier), ignore_errors=True)
        return self._read(number)

    @property
    def _part(self) -> Path:
        return self._folder / f".{self._pod}.part"

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._job}-{number:06d}"

    def _numbers(self) -> list[int]:
        """Return the numbers of all complete checkpoints, in their order."""
        found = [path.parent.name.rpartition("-")[2] for path in self._folder.glob(f"{self._job}-*/{MANIFEST}")]
        return sorted(int(number) for number in found if number.isdigit())

    def _read(self, number: int) -> KeptCheckpoint:
        path = self._path(number)
        try:
            manifest = json.loads((path / MANIFEST).read_bytes())
            parameters = path / "parameters" if manifest["parameters"] else None
            return KeptCheckpoint(path.name, manifest["ledger"], parameters)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"the checkpoint {path} cannot be read: {error}; remove it, and the one before counts"
            ) from error


def _sync(path: Path) -> None:
    """Put a file or folder on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

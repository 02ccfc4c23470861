"""The records of local pods, so that a restarted actuator goes on with them: ``pods/<job>/<pod>/``.

``lock`` (held by the pod as long as it lives: a second one of the same name cannot start), ``devices.json`` (its
devices, held as long as the lock, and as its first process), ``pod.json`` (pid and birth, since pids are used again),
``pid``, ``exit``, ``log``, ``files`` (the files that it was started with), ``work`` (all that it may write, which goes
with it).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Container, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog
from stretto_runtime.process.pid import ProcessIdentity
from stretto_runtime.process.removal import remove_tree

from ..pod.devices import Given
from .control_groups import Group

PRIVATE_FOLDER = 0o700
PRIVATE = 0o600
READ_ONLY = 0o400
LOG_END_BYTES = 1 << 20
"""The end of a log that is left of a pod that has used up the disk: as much as the store keeps."""
DEVICES_FILE, DEVICES_LOCK = "devices.json", "devices.lock"

log = structlog.get_logger("stretto.actuator")


@dataclass(frozen=True, slots=True)
class Record:
    """``pod.json``. ``pid`` is the shell's, which is also the session's and the process group's id.

    ``stop_at_s``: when the pod was first asked to end, in seconds since the boot. ``room``: bytes and files that the
    disk of the state folder had free when it was started. ``used_up``: what it was ended for.
    """

    job: str
    pod: str
    pid: int
    birth: ProcessIdentity
    launched_at_s: float
    cpu_cores: float
    memory_bytes: int
    group: Group
    limits: tuple[str, ...]
    stop_at_s: float | None = None
    oom_killed: bool = False
    room: tuple[float, float] | None = None
    used_up: str = ""


class Records:
    """The folders of an installation's pods; only its own user can read them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        _private_folder(folder)

    def of(self, job: str, pod: str) -> Path:
        """The folder of a pod."""
        return self.folder / job / pod

    def files(self, job: str, pod: str) -> Path:
        """The folder of the files that a pod was started with."""
        return self.of(job, pod) / "files"

    def scratch(self, job: str, pod: str) -> Path:
        """The folder that a pod may write, and starts in: the records beside it lead the actuator's hand."""
        return self.of(job, pod) / "work"

    def known(self, job: str, pod: str) -> bool:
        """Return True if a pod of this name was ever started."""
        return any((self.of(job, pod) / name).exists() for name in ("pod.json", "pod.done.json"))

    def all(self, job: str | None = None) -> Iterator[Record]:
        """Yield the records of pods that were not forgotten."""
        for file in sorted(self.folder.glob(f"{job or '*'}/*/pod.json")):
            record = self.read(file.parent.parent.name, file.parent.name)
            if record is not None:
                yield record

    def read(self, job: str, pod: str) -> Record | None:
        """Return the record of a pod, or None if there is none, it was forgotten, or it cannot be read."""
        try:
            fields: dict[str, Any] = json.loads((self.of(job, pod) / "pod.json").read_text())
            folders = fields["group"]["folders"].items()
            fields["limits"] = tuple(fields["limits"])
            fields["group"] = Group({controller: (folder, version) for controller, (folder, version) in folders})
            fields["birth"] = ProcessIdentity(*fields["birth"])
            return Record(**fields)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:  # a loss of power leaves empty files
            log.error("the record of a pod cannot be read; it counts as vanished", job=job, pod=pod, error=str(error))
            return None

    def write(self, record: Record) -> None:
        """Write a record atomically."""
        file = self.of(record.job, record.pod) / "pod.json"
        draft = file.with_suffix(".tmp")
        draft.write_text(json.dumps(asdict(record)))
        draft.replace(file)

    def lay(self, job: str, pod: str, files: Mapping[str, bytes]) -> None:
        """Write the files of a pod into its folder ``files``, and make its scratch folder. Raises OSError."""
        _private_folder(self.scratch(job, pod))
        folder = self.files(job, pod)
        shutil.rmtree(folder, ignore_errors=True)  # left by a start that did not come about
        _private_folder(folder)
        for name, content in files.items():
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, READ_ONLY), "wb") as out:
                out.write(content)

    @contextlib.contextmanager
    def choosing_devices(self) -> Generator[None]:
        """Keep other actuators of this machine from choosing devices until those of a pod are written down."""
        with (self.folder / DEVICES_LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def lay_devices(self, job: str, pod: str, given: Given) -> None:
        """Write down the devices of a pod that is about to start. Raises OSError."""
        if given:
            (self.of(job, pod) / DEVICES_FILE).write_text(json.dumps(given))

    def held_devices(self, job: str, pod: str) -> Iterator[Given]:
        """Yield the devices of each pod but this one that lives, or whose processes do."""
        for file in sorted(self.folder.glob(f"*/*/{DEVICES_FILE}")):
            if file.parent == self.of(job, pod):
                continue
            with contextlib.suppress(FileNotFoundError, ValueError), (file.parent / "lock").open("a") as lock:
                record = None if (file.parent / "exit").exists() else self.read(*file.parts[-3:-1])
                lives = record is not None and ProcessIdentity.of(record.pid) == record.birth
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    lives = True
                if lives:  # one that has the lock open may have given it up
                    yield {name: tuple(devices) for name, devices in json.loads(file.read_text()).items()}

    def put_away(self, job: str, pod: str, now_s: float) -> None:
        """Forget a pod; its log stays."""
        folder = self.of(job, pod)
        for gone in (self.files(job, pod), self.scratch(job, pod)):
            remove_tree(gone)
        with contextlib.suppress(FileNotFoundError):  # put away by somebody else meanwhile
            os.utime(folder / "pod.json", (now_s, now_s))
            (folder / "pod.json").rename(folder / "pod.done.json")

    def empty(self, job: str) -> None:
        """Remove what the ended pods of a job have written, but the ends of their logs."""
        for folder in self.folder.glob(f"{job}/*/"):
            remove_tree(folder / "work")
            _cut(folder / "log")

    def clear(self, before_s: float, but: Container[str]) -> None:
        """Remove the folders of pods that were put away before then, except those of the jobs in ``but``."""
        for done in self.folder.glob("*/*/pod.done.json"):
            if done.parent.parent.name in but:
                continue
            with contextlib.suppress(OSError):  # another process clears it, or another pod of the job is there
                if done.stat().st_mtime < before_s:
                    shutil.rmtree(done.parent)
                    done.parent.parent.rmdir()


def clear_spans(spans: Path, before_s: float, but: Container[str]) -> None:
    """Remove the folders of spans to which no pod has written since then, except those of the jobs in ``but``."""
    for folder in spans.glob("*/"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or not folder.is_dir() or folder.name in but:
                continue
            with os.scandir(folder) as files:  # a pod may have laid millions
                times = (each.stat(follow_symlinks=False).st_mtime for each in files)
                is_old = folder.stat().st_mtime < before_s and all(time_s < before_s for time_s in times)
            if is_old:
                remove_tree(folder)


def _cut(log: Path) -> None:
    """Leave the end of a log of a pod that has ended. The pod had it open, and may have closed it to its user."""
    with contextlib.suppress(OSError):
        log.chmod(PRIVATE)
        with log.open("r+b") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - LOG_END_BYTES, 0))
            last = file.read(LOG_END_BYTES)
            file.truncate(0)  # also what was reserved behind its end
            file.seek(0)
            file.write(last)


def _private_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(PRIVATE_FOLDER)

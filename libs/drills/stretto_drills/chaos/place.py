"""The place of a chaos run: an installation of its own in a temporary folder, or a running one of the user's.

During the run, ``run/chaos.json`` there names the run's process and its job. A killed run heals nothing: the next run
sees by that file that the owner is dead, lets frozen processes continue, and removes a temporary folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import psutil
from stretto_cli.errors import CliError
from stretto_cli.options import connect
from stretto_client import figures
from stretto_installation.errors import NotRunning
from stretto_installation.one_machine import leftovers
from stretto_installation.one_machine.detached import start_detached, take_down
from stretto_installation.one_machine.processes import named_in, pods_of
from stretto_installation.one_machine.programs import StartOptions
from stretto_installation.one_machine.state import read_state, write_json

from . import job
from .target import send

PREFIX = "stretto-chaos-"
MEMORY_BYTES = 256 << 20
MARK = Path("run", "chaos.json")

Tell = Callable[[str], None]


@dataclass(slots=True)
class PlaceUnderFire:
    """An installation under fire.

    ``memory``: folder of shared memory, if a fault may fill it. ``page``: default path of the timeline. ``spent``: the
    folder is ours and nothing in it is needed any more.
    """

    folder: Path
    page: Path
    memory: Path | None = None
    spent: bool = False

    def mark(self, job_name: str = "") -> None:
        """Name this process and its job in the folder."""
        write_json(self.folder / MARK, {**leftovers.owner_entry(), "job": job_name})

    def unmark(self) -> None:
        (self.folder / MARK).unlink(missing_ok=True)


@contextlib.contextmanager
def of_the_user(folder: Path, tell: Tell) -> Generator[PlaceUnderFire]:
    """Use a running installation of the user's. Raises NotRunning, or CliError during another chaos run in it."""
    read_state(folder)
    folder = folder.resolve()
    with _alone(folder):
        owner = leftovers.owner_in(folder / MARK)
        if owner is not None:
            if not leftovers.is_dead(owner):
                raise _at_work(folder)
            _recover(folder, owner["job"], tell)
        place = PlaceUnderFire(folder, folder / "chaos.html")
        place.mark()
        try:
            yield place
        finally:
            place.unmark()


@contextlib.contextmanager
def of_our_own(tell: Tell) -> Generator[PlaceUnderFire]:
    """Start an installation in a temporary folder; take it down at the end, and remove the folder if ``spent``.

    First clear away what killed runs left.
    """
    for left in clear_away(Path(tempfile.gettempdir())):
        tell(f"removed the remains of a killed run in {left}")
    folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    (folder / MARK).parent.mkdir()
    place = PlaceUnderFire(folder, folder.with_suffix(".html"))
    place.mark()
    try:
        with _memory(folder / "memory") as place.memory:
            try:
                settings = dict(job.SETTINGS)
                if place.memory is not None:
                    settings["STRETTO_CHECKPOINTS_MEMORY_FOLDER"] = str(place.memory)
                tell(f"an installation of its own in {folder} …")
                plan = StartOptions(folder, job.CLUSTER_CPU_CORES, job.CLUSTER_MEMORY_BYTES, settings=settings)
                where = start_detached(plan, tied=True)
                tell(f"all ready after {figures.seconds(where['ready_s'])}")
                yield place
            finally:
                with contextlib.suppress(NotRunning):
                    take_down(folder)
    finally:
        if place.spent:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            place.unmark()
            tell(f"kept: {folder}")


def clear_away(among: Path) -> list[Path]:
    """End, unmount and remove the remains of killed runs in the temporary folder ``among``; returns their folders."""
    cleared: list[Path] = []
    for folder in among.glob(f"{PREFIX}*"):
        owner = leftovers.owner_in(folder / MARK) if leftovers.is_ours(folder) else None
        if owner is None or not leftovers.is_dead(owner):
            continue
        with contextlib.suppress(NotRunning):
            take_down(folder)  # its supervisor may be taking it down already
        leftovers.free_memory(folder.resolve())
        if os.path.ismount(folder / "memory"):
            _fails("umount", "-l", str(folder / "memory"))
        shutil.rmtree(folder, ignore_errors=True)
        cleared.append(folder)
    return cleared


@contextlib.contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Let only one of two runs continue that start at the same moment, before either has its mark. Raises CliError."""
    with (folder / "run" / "chaos.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise _at_work(folder) from None
        yield


def _at_work(folder: Path) -> CliError:
    owner = leftovers.owner_in(folder / MARK)
    who = f"the chaos run of process {owner['pid']}" if owner is not None else "another chaos run"
    return CliError(f"{folder}: {who} is at work in it: wait for its end")


def _recover(folder: Path, job_name: str, tell: Tell) -> None:
    """Let processes continue that a killed run has frozen, and cancel its job."""
    frozen = [process for process in _processes(folder) if process.status() == psutil.STATUS_STOPPED]
    send(frozen, signal.SIGCONT)
    if job_name:
        with contextlib.suppress(CliError), connect(folder, None, None) as gateway:
            gateway.cancel(job_name, "the chaos run was killed")
    tell(f"a run was killed in {folder}: {len(frozen)} frozen processes continue, its job {job_name or '–'} cancelled")


def _processes(folder: Path) -> list[psutil.Process]:
    """Return the processes of services and pods."""
    known = read_state(folder)["processes"].values()
    services = [named_in(entry) for entry in known]
    return [*filter(None, services), *pods_of(folder)]


@contextlib.contextmanager
def _memory(place: Path) -> Generator[Path | None]:
    """Mount a small file system in memory; None where this user may not."""
    place.mkdir(parents=True, exist_ok=True)
    options = f"size={MEMORY_BYTES},mode=0700"
    if shutil.which("umount") is None or _fails("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)):
        yield None
        return
    try:
        yield place
    finally:
        _fails("umount", "-l", str(place))


def _fails(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode != 0
    except OSError:  # no such command here
        return True

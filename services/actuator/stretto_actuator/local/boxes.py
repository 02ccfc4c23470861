"""The boxes of local pods: which folders each one reads and writes. ``landlock.py`` puts a pod into its box.

The services of an installation and all its pods are processes of one user. The box keeps a pod from the installation's
state (keys, credentials, secrets, other jobs), from changing any file but its job's own, and from other processes.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from stretto_runtime import SettingsFault
from stretto_runtime.settings import images_folder
from stretto_wire.stores.urls import canonical

from ..backend import BackendError, PodSpec, folders_in
from ..pod import job_volumes
from ..settings import ActuatorSettings
from . import landlock, mounts, seccomp
from .control_groups import Cgroups
from .landlock import ABI_LEAST, ABI_SCOPES, BOXED, CLOSED, DEVICE, LISTEN, READ, SHOW, WRITE

FILE_URL = "file://"
SHARED_MEMORY = Path("/dev/shm")
PRIVATE_FOLDER = 0o700
OF_SCRATCH = {"TMPDIR": "tmp", "XDG_CACHE_HOME": "cache", "CUDA_CACHE_PATH": "cache/cuda"}
"""Variables that lead programs into the pod's own folder, where they would write elsewhere."""
OF_THE_SHELL = ("PATH", "HOME", "LD_LIBRARY_PATH")
MARKS = ("STRETTO_JOB", "STRETTO_POD", "STRETTO_POD_FOLDER")
"""Variables by which a pod's shell is found again."""

LAUNCH = "import sys; sys.path.insert(0, sys.argv.pop(1)); import landlock, seccomp; landlock.main(seccomp.restrict)"
"""Imported, not run as a script: an import is compiled once."""
LAUNCH_SHELTERED = LAUNCH.replace("seccomp;", "mounts, seccomp;").replace(".restrict)", ".restrict, mounts.shelter)")


@dataclass(frozen=True, slots=True)
class Box:
    """The reach of one pod. All paths are absolute and have no links in them.

    ``closed``: places that are neither read nor written, but for what follows; all others are read. ``reads`` and
    ``writes``: folders that are there already. ``devices``: files of devices. ``shown``: folders that are there in the
    pod's view, for the sockets of its job's other pods, and are neither read nor written. ``listens``: the variable
    with the port at which its program may listen; empty: it listens where the kernel chooses alone.
    """

    closed: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    devices: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    listens: str = ""

    def options(self) -> Iterator[str]:
        """Yield the arguments of ``landlock.py``."""
        places = {CLOSED: self.closed, READ: self.reads, WRITE: self.writes, DEVICE: self.devices, SHOW: self.shown}
        for name, paths in places.items():
            for path in paths:
                yield from (name, path)
        if self.listens:
            yield from (LISTEN, self.listens)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Makes the box of each pod of an installation.

    ``state``: its state folder. ``stores``: folders in which each job has a folder for its checkpoints. ``memory``:
    shared memory for images. ``closed``: files and folders elsewhere that hold secrets. ``writable``: folders that all
    pods may write.
    """

    state: Path
    stores: tuple[Path, ...]
    memory: Path | None
    closed: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    sheltered: bool = False
    """Each pod gets a view of the file system of its own."""

    def box(self, spec: PodSpec, folder: Path, scratch: Path) -> Box:
        """Return the box of a pod with these folders; what it writes is made. Raises BackendError."""
        stored = [self._plain(path) for url in spec.stores if (path := _local(url)) is not None]
        own = [scratch, self.state / "spans" / spec.job, *stored]
        barred = [self.state, *self.stores, *(place.parent for place in stored), *self.closed]
        barred += [self.memory] if self.memory is not None else []
        if self.memory is not None:
            own.append(images_folder(self.memory, self.state, spec.job))
        shared = [*self.writable, *([SHARED_MEMORY] if self.memory is None else [])]
        try:
            for place in (*own, *(scratch / name for name in OF_SCRATCH.values())):
                place.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            stored = [self._plain(place) for place in stored]  # checked last: what follows opens it without links
            volumes = [*job_volumes.folders_of(spec.volumes, [place.resolve() for place in barred])]
            others = [place for place in own if place not in stored]
            writes = _resolved([*others, *shared, *(place for place, is_writable in volumes if is_writable)])
            writes = tuple(dict.fromkeys((*writes, *map(str, stored))))
        except OSError as error:
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            remedy = "make room there" if is_full else "let the installation's user write there"
            raise BackendError(f"{spec.job}/{spec.pod} gets no folder of its own: {error}; {remedy}") from error
        started_from = (place for place in self._started_from(spec) if place.is_dir())
        reads = [folder, *started_from, *(place for place, is_writable in volumes if not is_writable)]
        return Box(_resolved(barred), _resolved(reads), writes, shown=_resolved([folder.parent]), listens=spec.listens)

    def _plain(self, folder: Path) -> Path:
        """Return a job's folder. Raises BackendError: below the operator's store the way to it has a link.

        A store may lie in the folder of another job, which can put links there.
        """
        store = max((each for each in self.stores if folder.is_relative_to(each)), default=folder.parent, key=_length)
        plain = store.resolve() / folder.relative_to(store)
        if folder.resolve() != plain:
            raise BackendError(f"checkpoint.url: on the way to {folder} is a link; name a store without links")
        return plain

    def _started_from(self, spec: PodSpec) -> Iterator[Path]:
        """Yield the folders of the jobs whose checkpoints this one starts from: <store>/<job>/<checkpoint>/<file>."""
        stores = dict.fromkeys((*self.stores, *(path.parent for url in spec.stores if (path := _local(url)))))
        for store in stores:
            for url in spec.reads:
                for first in folders_in(str(store), (url,)):
                    file = _local(url)
                    job = file.parent.parent if file is not None else store
                    yield job if job != store and job.is_relative_to(store / first) else store / first


def launch_of(
    boxes: Boxes | None, spec: PodSpec, devices: tuple[str, ...], folder: Path, scratch: Path
) -> tuple[list[str], dict[str, str]]:
    """Return command line and environment of a pod with these files of devices and folders. Raises BackendError."""
    if boxes is None:
        return [*spec.command], spec.environment
    box = replace(boxes.box(spec, folder, scratch), devices=devices)
    return command_in(box, spec.command, boxes.sheltered), environment_around(
        environment_in(box, spec.environment, scratch)
    )


def environment_around(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of what starts a pod outside of its box; the pod itself gets ``given``.

    A job chooses variables. By ``PATH`` or ``LD_PRELOAD`` its code would run in the shell, in front of the box.
    """
    own = {name: value for name in OF_THE_SHELL if (value := os.environ.get(name)) is not None}
    marks = {name: given[name] for name in MARKS if name in given}
    return {**own, **marks, **{f"{BOXED}{name}": value for name, value in given.items()}}


def environment_in(box: Box, given: dict[str, str], scratch: Path) -> dict[str, str]:
    """Return the environment of a pod in its box: temporary files go where it may write."""

    def fits(name: str) -> bool:
        return any(Path(given.get(name, "")).is_relative_to(place) for place in box.writes)

    return given | {name: str(scratch / place) for name, place in OF_SCRATCH.items() if not fits(name)}


def command_in(box: Box, command: tuple[str, ...], sheltered: bool = False) -> list[str]:
    """Return the command line that starts ``command`` in its box."""
    folder = str(Path(landlock.__file__).parent)
    launch = LAUNCH_SHELTERED if sheltered else LAUNCH
    return [sys.executable, "-I", "-S", "-c", launch, folder, *box.options(), "--", *command]


def boxes_of(settings: ActuatorSettings) -> Boxes | None:
    """Return what makes the boxes of pods here, or None if pods are not confined.

    Raises:
        SettingsFault: pods have to be confined, and the kernel cannot, or a folder that pods may write is unsuitable.
    """
    if settings.local_confine == "off":
        return None
    if settings.local_confine == "required" and (lack := _lack()):
        raise SettingsFault(f"STRETTO_ACTUATOR_LOCAL_CONFINE=required is refused: {lack}, or set auto")
    if landlock.abi() < ABI_LEAST:
        return None
    state = settings.state_folder.resolve()
    files = (
        settings.signing_key_file,
        settings.nats_credentials,
        settings.connections_credentials,
        settings.secrets_folder,
    )
    lists = (entry.removesuffix("/*") for entry in settings.allowed.stores)
    stores = dict.fromkeys(path for url in (settings.store, *lists) if (path := _local(url)) is not None)
    closed = tuple(path.resolve() for path in files if path is not None)
    kept = [state, *(path.resolve() for path in stores), *closed]
    kept += [settings.memory_folder.resolve()] if settings.memory_folder is not None else []
    return Boxes(state, tuple(stores), settings.memory_folder, closed, _writable(settings, kept), not _unsheltered())


def _writable(settings: ActuatorSettings, kept: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders that all pods may write. Raises SettingsFault for one that holds what is kept from them."""
    found: list[Path] = []
    for text in (part.strip() for part in settings.local_writable.split(",") if part.strip()):
        folder = Path(text).resolve()
        holds = next((place for place in kept if place.is_relative_to(folder)), None)
        if not Path(text).is_absolute() or not folder.is_dir() or holds is not None:
            why = f": it holds {holds}" if holds is not None else ""
            raise SettingsFault(
                f"STRETTO_ACTUATOR_LOCAL_WRITABLE={settings.local_writable!r} is refused at {text!r}{why}; give "
                "absolute folders that exist, separated by commas, without the state folder, stores and secrets"
            )
        found.append(folder)
    return tuple(found)


def _lack() -> str:
    """Return what the kernel lacks for whole boxes, what pods can do therefore, and the remedy; "" if nothing."""
    version = landlock.abi()
    landlock_remedy = "run Linux 6.12 or later, and where a container forbids Landlock, allow it"
    if version < ABI_LEAST:
        offered = f"the kernel offers version {version} of Landlock, {ABI_LEAST} is needed"
        return f"local pods are not confined: {offered}; {landlock_remedy}"
    found: list[str] = []
    if version < ABI_SCOPES:
        offered = f"the kernel offers version {version} of Landlock, {ABI_SCOPES} is needed"
        found.append(f"local pods may send signals to all processes of this user: {offered}; {landlock_remedy}")
    if not seccomp.available():
        offered = "the kernel filters no system calls, or not on this kind of machine"
        remedy = "run x86-64 or AArch64, and where a container forbids seccomp, allow it"
        found.append(f"local pods may limit and slow down all processes of this user: {offered}; {remedy}")
    if why := _unsheltered():
        remedy = (
            "allow user namespaces to this user (where there is `kernel.apparmor_restrict_unprivileged_userns`, set 0)"
        )
        found.append(
            "local pods may change mode, owner and times of files of this user, and leave processes behind and have "
            f"more than 4,096 where no control groups may be written: {why}; {remedy}"
        )
    return "; ".join(found)


@cache
def _unsheltered() -> str:
    """Return why pods get no view of the file system of their own here, empty where they do."""
    return mounts.lack()


def warning_of(settings: ActuatorSettings) -> str:
    """Return what local pods can do to each other and to the services, empty if they are confined."""
    if settings.backend != "local":
        return ""
    if settings.local_confine == "off":
        return "local pods are not confined: STRETTO_ACTUATOR_LOCAL_CONFINE=off; unset it"
    return "; ".join(filter(None, (_lack(), _unbounded(settings))))


def _unbounded(settings: ActuatorSettings) -> str:
    """Return why a pod may have any number of processes, empty where it may not: limits of a user do not bind root."""
    pods = settings.state_folder.resolve() / "pods"
    if os.geteuid() or (settings.cgroups and Cgroups.of_installation(pods).has("pids")):
        return ""
    return (
        "local pods of root may have more than 4,096 processes: no control group of processes may be written here; let "
        "this container write its control groups, or run `stretto up` as another user"
    )


def _local(url: str) -> Path | None:
    """Return the folder that a URL names, or None if it is in an object store or has no one spelling."""
    try:
        spelt = canonical(url)
    except ValueError:
        return None
    return Path(spelt.removeprefix(FILE_URL)) if spelt.startswith(FILE_URL) else None


def _length(path: Path) -> int:
    return len(path.parts)


def _resolved(paths: list[Path] | tuple[Path, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(path.resolve()) for path in paths))

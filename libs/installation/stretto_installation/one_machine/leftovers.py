"""Clears away what a killed installation left on this machine: processes, pods, images in shared memory.

Every owner of such a thing names itself there by process id and birth, because ids are reused. The things of a living
owner are never touched, nor are those of another process namespace, whose ids mean nothing here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import psutil
from stretto_runtime.process.pid import ProcessIdentity
from stretto_runtime.process.removal import remove_tree

from ..errors import InstallationError
from .processes import end_all, end_pods, named_in, namespace_of, pods_of, sessions_of, works_in
from .state import read_json, write_json

SHARED = Path("/dev/shm")
OWNER = "owner.json"
SERVICES_STOP_S = 5.0
PODS_STOP_S = 2.0


def owner_entry() -> dict[str, Any]:
    """Return the entry by which this process names itself as an owner; see ``is_dead``."""
    return {"pid": os.getpid(), "birth": ProcessIdentity.of(os.getpid()), "namespace": _namespace()}


def owner_in(path: Path) -> dict[str, Any] | None:
    """Return the owner that the file ``path`` names; None if there is none."""
    found = read_json(path)
    return found if found is not None and found.keys() >= {"pid", "birth", "namespace"} else None


def is_ours(path: Path) -> bool:
    """Return whether ``path`` exists and is this user's: in a shared folder, another user may have taken the name."""
    with contextlib.suppress(OSError):
        return path.lstat().st_uid == os.geteuid()
    return False


def is_dead(owner: dict[str, Any]) -> bool:
    """Return whether the owner was a process of this namespace and is gone."""
    return owner["namespace"] == _namespace() and named_in(owner) is None


# processes -----------------------------------------------------------------------------------------------------


def left_processes(folder: Path, shared: Path = SHARED) -> list[psutil.Process]:
    """Return the processes that a dead supervisor had started, without pods.

    They are listed in the folder and in shared memory, since a folder can be removed and made anew while they run.
    """
    owner = owner_in(_room(folder, shared) / OWNER) if is_ours(_room(folder, shared)) else None
    there = [each for each in _listed_in(read_json(folder / "run" / "up.json")) if works_in(each.pid, folder)]
    known = [*there, *(_listed_in(owner) if owner is not None and is_dead(owner) else ())]
    return [*{each.pid: each for each in known}.values()]


def _listed_in(body: dict[str, Any] | None) -> list[psutil.Process]:
    entries = [entry for entry in (body or {}).get("processes", {}).values() if entry["pid"] is not None]
    return sessions_of((entry["pid"], ProcessIdentity.parse(entry["birth"])) for entry in entries)


def end_leftovers(folder: Path, shared: Path = SHARED) -> int:
    """End the processes and pods of a dead supervisor; returns how many."""
    ended = end_all(left_processes(folder, shared), SERVICES_STOP_S)
    ended += end_pods(folder, PODS_STOP_S)  # after the actuator, which would start them again
    (folder / "run" / "up.json").unlink(missing_ok=True)
    return ended


def end_lost(folder: Path) -> int:
    """End the leftovers while no other supervisor can start.

    Raises InstallationError: a supervisor lives in another container.
    """
    lock = folder / "run" / "lock"
    if not lock.exists():
        return end_leftovers(folder)
    with lock.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InstallationError(
                f"{folder} is held by a supervisor that is not a process of this container: end it where it was "
                "started, or by SIGTERM; run/up.json names its process"
            ) from None
        return end_leftovers(folder)


# shared memory -------------------------------------------------------------------------------------------------


def claim_memory(folder: Path, shared: Path = SHARED) -> Path | None:
    """Return a folder in shared memory for the images of the installation in ``folder``, or None if there is none.

    It is the same after a restart: images that a killed installation left there are as good as before.
    """
    room = _room(folder, shared)
    try:
        room.mkdir(mode=0o700, exist_ok=True)
        status = room.lstat()
        if room.is_symlink() or status.st_uid != os.geteuid():
            return None  # another user took the name
        name_processes(room, folder, {})
    except OSError:
        return None
    return room


def name_processes(room: Path, folder: Path, processes: dict[str, Any]) -> None:
    """List the processes in shared memory as ``up.json`` does, for the case that the folder is removed."""
    write_json(room / OWNER, {**owner_entry(), "folder": str(folder), "processes": processes})


def free_memory(folder: Path, shared: Path = SHARED) -> None:
    """Remove the images of an installation that has ended in good order."""
    remove_tree(_room(folder, shared))


def sweep_memory(shared: Path = SHARED) -> list[Path]:
    """Remove the images of dead installations that no restart will read; returns the folders of these installations.

    These are installations in a temporary folder, and those whose folder is gone: their processes are ended too.
    """
    swept: list[Path] = []
    for room in shared.glob(f"stretto.{os.geteuid()}.*"):
        owner = owner_in(room / OWNER) if is_ours(room) else None
        if owner is None or not is_dead(owner):
            continue
        folder = Path(owner["folder"])
        gone = not folder.exists()
        if gone:
            end_leftovers(folder, shared)
        if (gone or (_is_temporary(folder) and not _lives(folder))) and _take_away(room, owner):
            swept.append(folder)
    return swept


def _take_away(room: Path, owner: dict[str, Any]) -> bool:
    """Remove a room unless it has another owner by now: an installation may have come back to it meanwhile.

    It is moved first, so that whoever comes then makes one anew. Under its other name the next look finds it, too.
    """
    aside = room.with_name(f"{room.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        room.rename(aside)
        if owner_in(aside / OWNER) != owner:
            aside.rename(room)
            return False
        remove_tree(aside)
        return True
    return False


def _room(folder: Path, shared: Path) -> Path:
    """Differs for the same folder name in another container, which may share this one's memory."""
    tag = hashlib.sha256(f"{_namespace()} {folder}".encode()).hexdigest()[:16]
    return shared / f"stretto.{os.geteuid()}.{tag}"


def _lives(folder: Path) -> bool:
    """Return whether processes of it run although its supervisor is gone."""
    return bool(left_processes(folder) or pods_of(folder))


def _is_temporary(folder: Path) -> bool:
    return folder.is_relative_to(Path(tempfile.gettempdir()).resolve())


def _namespace() -> str:
    with contextlib.suppress(OSError):
        return namespace_of()
    return ""

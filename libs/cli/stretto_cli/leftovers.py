"""What an installation leaves on its machine when it is killed, and how the next one clears it away.

Whoever holds something names itself there by its process id and birth (ids are used again). What a living owner holds
is never touched; nor is what belongs to another namespace of processes, whose ids say nothing here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import psutil
from stretto_runtime.process.pid import ProcessIdentity

from .errors import CliError
from .processes import end_all, named_in, namespace_of, pods_of, sessions_of

SHARED = Path("/dev/shm")
OWNER = "owner.json"


def ourselves() -> dict[str, Any]:
    """This process, for ``is_dead`` of another."""
    return {"pid": os.getpid(), "birth": ProcessIdentity.of(os.getpid()), "namespace": _namespace()}


def owner_in(path: Path) -> dict[str, Any] | None:
    """Who named itself in the file ``path``; None if nobody did. Earlier versions wrote ``created_s``, no birth."""
    found = read(path)
    named = found is not None and found.keys() >= {"pid", "namespace"} and found.keys() & {"birth", "created_s"}
    return found if named else None


def is_ours(path: Path) -> bool:
    """Whether it is there and of this user: where everybody may write, somebody else may have taken the name."""
    with contextlib.suppress(OSError):
        return path.lstat().st_uid == os.geteuid()
    return False


def is_dead(owner: dict[str, Any]) -> bool:
    """Whether it is a process of this machine that is gone. One without a birth may be anybody who has its id."""
    lives = named_in(owner) is not None if ProcessIdentity.told(owner.get("birth")) else psutil.pid_exists(owner["pid"])
    return owner["namespace"] == _namespace() and not lives


def write(path: Path, body: dict[str, Any]) -> None:
    """Whole or not at all: others read it meanwhile."""
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(body, indent=1))
    draft.replace(path)


def read(path: Path) -> dict[str, Any] | None:
    """What ``write`` wrote; None if there is nothing of the kind."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else None
    return None


# processes -----------------------------------------------------------------------------------------------------


def left_processes(folder: Path, shared: Path = SHARED) -> list[psutil.Process]:
    """What a supervisor that is gone had started; not pods. In its room in shared memory it stands, too: a folder can
    be removed, and made anew, while they run."""
    owner = owner_in(_room(folder, shared) / OWNER) if is_ours(_room(folder, shared)) else None
    told = [read(folder / "run" / "up.json"), owner if owner is not None and is_dead(owner) else None]
    known = [entry for body in told if body is not None for entry in body.get("processes", {}).values()]
    return sessions_of(
        (entry["pid"], ProcessIdentity.told(entry.get("birth"))) for entry in known if entry["pid"] is not None
    )


def end_leftovers(folder: Path, shared: Path = SHARED) -> int:
    """End what a supervisor left behind that was killed; returns how many processes."""
    ended = end_all(left_processes(folder, shared), 5.0)
    ended += end_all(pods_of(folder), 2.0)  # after the actuator, which would start them again
    (folder / "run" / "up.json").unlink(missing_ok=True)
    return ended


def end_lost(folder: Path) -> int:
    """As ``end_leftovers``, and nobody begins here meanwhile. Raises CliError where a supervisor lives that this code
    cannot know: of an earlier version, or in another container."""
    lock = folder / "run" / "lock"
    if not lock.exists():
        return end_leftovers(folder)
    with lock.open("a") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CliError(
                f"{folder} is held by a supervisor of another version of the code, or in another container: "
                "end it as it was started, or by SIGTERM; run/up.json names its process"
            ) from None
        return end_leftovers(folder)


# shared memory -------------------------------------------------------------------------------------------------


def claim_memory(folder: Path, shared: Path = SHARED) -> Path | None:
    """A folder in shared memory for the images of the installation in ``folder``: the same in each of its lives, for
    what a killed one has left there is as good as before. None: none can be had."""
    room = _room(folder, shared)
    try:
        room.mkdir(mode=0o700, exist_ok=True)
        status = room.lstat()
        if room.is_symlink() or status.st_uid != os.geteuid():
            return None  # somebody else took the name
        name_processes(room, folder, {})
    except OSError:
        return None
    return room


def name_processes(room: Path, folder: Path, processes: dict[str, Any]) -> None:
    """As ``up.json`` names them, for who finds the folder gone."""
    write(room / OWNER, {**ourselves(), "folder": str(folder), "processes": processes})


def free_memory(folder: Path, shared: Path = SHARED) -> None:
    """After an installation has ended in good order."""
    shutil.rmtree(_room(folder, shared), ignore_errors=True)


def sweep_memory(shared: Path = SHARED) -> list[Path]:
    """Remove what nobody will read any more: the images of dead installations whose folder is gone, or was a temporary
    one. What still runs without a folder is ended. Returns the folders of these installations."""
    swept: list[Path] = []
    for room in shared.glob(f"stretto.{os.geteuid()}.*"):
        owner = owner_in(room / OWNER) if is_ours(room) else None
        if owner is None or not is_dead(owner):
            continue
        folder = Path(owner["folder"])
        gone = not folder.exists()
        if gone:
            end_leftovers(folder, shared)
        if gone or (_is_temporary(folder) and not _lives(folder)):
            shutil.rmtree(room, ignore_errors=True)
            swept.append(folder)
    return swept


def _room(folder: Path, shared: Path) -> Path:
    """Not that of the same folder's name in another container, with which this one may share its memory."""
    tag = hashlib.sha256(f"{_namespace()} {folder}".encode()).hexdigest()[:16]
    return shared / f"stretto.{os.geteuid()}.{tag}"


def _lives(folder: Path) -> bool:
    """Whether it trains on, though its supervisor is gone."""
    return bool(left_processes(folder) or pods_of(folder))


def _is_temporary(folder: Path) -> bool:
    return folder.is_relative_to(Path(tempfile.gettempdir()).resolve())


def _namespace() -> str:
    with contextlib.suppress(OSError):
        return namespace_of()
    return ""

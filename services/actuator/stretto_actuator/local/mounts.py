"""Give this process, and all that it starts, a view of the file system of its own: a mount namespace.

Landlock looks at neither modes, owners and times of files nor sockets in the file system. In this view everything is
mounted read-only but the folders that a pod writes, so that none of these can be changed elsewhere; and in the closed
places stand the pod's own folders alone, so that no socket of another job has a name. Landlock, which follows, forbids
to change the view. Root makes one as it is, another user by a user namespace, where the kernel gives them to users.
Like ``landlock.py`` it imports little.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_RECURSIVE, _PRIVATE = 0x4000, 1 << 18
_OPEN_TREE, _MOVE_MOUNT, _SET_ATTRIBUTES = 428, 429, 442
_AT_HERE, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_CLONE, _CLOSE_ON_EXEC = 1, os.O_CLOEXEC
_FROM_DESCRIPTOR, _TO_DESCRIPTOR = 0x04, 0x40
_READ_ONLY, _NO_DEVICES, _NO_SET_UID = 1, 4, 2
_SMALL = b"mode=0700,size=1m,nr_inodes=1024"

PROCESSES = max(4096, 64 * (os.cpu_count() or 1))
"""Processes and threads of one pod: as many as a container has, more where libraries start some for each core."""
_OF_THE_USER = (resource.RLIMIT_NPROC, resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK)
"""Limits of what all processes of a user have together; in a namespace that a user makes, the kernel counts anew."""
OF_THE_NAMESPACE = {"max_user_namespaces": 0, "max_inotify_instances": 8, "max_fanotify_groups": 0}
"""A further namespace would have rights in it again; of instances of inotify a user has only some hundred."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "spread", "user"))


def _checked(result: int, what: str) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
    return result


def shelter(closed: Sequence[str], reads: Sequence[str], writes: Sequence[str], opened: Callable[[str], int]) -> None:
    """Move this process into a view of its own. Raises OSError; then the process is of no use any more.

    ``closed``: folders of which nothing is there but what of ``reads`` and ``writes`` lies in them; files among them
    stay. ``writes``: the only folders in which anything can be changed. All are absolute paths without links.
    ``opened`` opens a folder and follows no link on the way, which another pod may have put there meanwhile.
    """
    user, here = os.geteuid(), os.getcwd()
    if user:
        _enter_users(user, os.getegid())
    _checked(_libc.unshare(_NEW_MOUNTS), "a mount namespace")
    _checked(_libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None), "a private view")
    hidden = list[str]()
    for place in sorted(closed):
        if os.path.isdir(place) and not _within(place, hidden):
            hidden.append(place)
    kept = sorted({*reads, *writes}, key=lambda path: path.count("/"))
    trees = [(path, _clone(opened(path))) for path in kept if path in writes or _within(path, hidden)]
    _set("/", _READ_ONLY, 0)
    for place in hidden:
        flags = ctypes.c_ulong(_NO_DEVICES | _NO_SET_UID)
        _checked(_libc.mount(b"none", place.encode(), b"tmpfs", flags, _SMALL), f"an empty {place}")
    for path, tree in trees:
        if _within(path, hidden):
            os.makedirs(path, 0o700, exist_ok=True)
        if path not in writes:
            _set("", _READ_ONLY, 0, of=tree)
        place = opened(path)
        flags = _FROM_DESCRIPTOR | _TO_DESCRIPTOR
        _checked(_libc.syscall(_MOVE_MOUNT, tree, b"", place, b"", flags), path)
        os.close(place)
        os.close(tree)
    for place in hidden:
        _set(place, _READ_ONLY, 0, recursive=False)
    os.chdir(here)  # by its name in this view, where it may be written


def _enter_users(user: int, group: int) -> None:
    """Move this process into a namespace of users, in which it stays the same one, and bound what is in there.

    All pods together leave a quarter of what the user may have to his other processes, such as the services.
    """
    for kind in _OF_THE_USER:
        soft, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (_three_quarters(soft), _three_quarters(hard)))
    _checked(_libc.unshare(_NEW_USER), "a user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        _write(f"/proc/self/{name}", text)
    for name, most in OF_THE_NAMESPACE.items():
        if os.path.exists(place := f"/proc/sys/user/{name}"):
            _write(place, str(most))
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = PROCESSES if hard == resource.RLIM_INFINITY else min(PROCESSES, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _three_quarters(limit: int) -> int:
    return limit if limit == resource.RLIM_INFINITY else limit * 3 // 4


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _within(path: str, places: Sequence[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _clone(folder: int) -> int:
    """Return a copy of the mount below an open folder, which is closed; the copy can still be written."""
    flags = _CLONE | _CLOSE_ON_EXEC | _AT_RECURSIVE | _AT_EMPTY_PATH
    try:
        return _checked(_libc.syscall(_OPEN_TREE, folder, b"", flags), "a folder of the pod's own")
    finally:
        os.close(folder)


def _set(path: str, attributes: int, cleared: int, recursive: bool = True, of: int = _AT_HERE) -> None:
    asked = _Attributes(attributes, cleared, 0, 0)
    flags = (_AT_RECURSIVE if recursive else 0) | (0 if path else _AT_EMPTY_PATH)
    size = ctypes.c_size_t(ctypes.sizeof(asked))
    _checked(_libc.syscall(_SET_ATTRIBUTES, of, path.encode(), flags, ctypes.byref(asked), size), path)


def lack() -> str:
    """Return why this user gets no view of its own here, empty where it does."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-I", "-S", __file__, folder]
        tried = subprocess.run(command, capture_output=True, text=True, check=False)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else ""


def main() -> None:
    """Try it, with a folder that may be hidden as the argument: exit status 0 where this user gets such a view."""
    try:
        shelter([sys.argv[1]], [], [], lambda path: os.open(path, os.O_PATH))
    except OSError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

"""Confine this process by Landlock, then run a command in its place; ``main`` has the arguments.

A program of its own: after a fork, Python may not do this in the actuator's own process. It imports little, because
every pod waits for it: with json, dataclasses and typing it takes three times as long (33 ms instead of 11).

Landlock only allows. Everything around the closed places is therefore allowed entry by entry, on the way from ``/`` to
each of them. What is made beside them later, directly in a folder on that way, stays closed to pods that run already.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import NoReturn

CLOSED, READ, WRITE, DEVICE, SHOW = "--closed", "--read", "--write", "--device", "--show"
LISTEN = "--listen"
"""Option with the name of a variable, by which the pod learns at which port its program may listen."""
BOXED = "STRETTO_BOXED_"
"""Begins the names of the pod's own variables until it is in its box: the loader, the shell and Python heed none."""
CANNOT_CONFINE = 125
"""Exit code of a pod that was not started, as when it cannot enter its control group."""
ABI_LEAST = 3
"""Before, a file that may not be written can be truncated (Linux 6.2)."""
ABI_PORTS = 4
"""Since then a pod takes no port of its choice, such as that of a bus that is being started again (Linux 6.7)."""
ABI_IOCTL = 5
ABI_SCOPES = 6
"""Since then signals and abstract sockets end at the box (Linux 6.12)."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH, _RULE_PORT = 1, 2
_SET_NO_NEW_PRIVS, _CAPBSET_DROP = 38, 24

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_CHAR, _MAKE_DIR = 1 << 4, 1 << 5, 1 << 6, 1 << 7
_MAKE_REG, _MAKE_SOCK, _MAKE_FIFO, _MAKE_BLOCK = 1 << 8, 1 << 9, 1 << 10, 1 << 11
_MAKE_SYM, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 12, 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_DEVICE = _WRITE_FILE | _READ_FILE | _IOCTL_DEV
_MAKE = _MAKE_DIR | _MAKE_REG | _MAKE_SOCK | _MAKE_FIFO | _MAKE_SYM
_CHANGE = _READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _REFER | _MAKE
_HANDLED = _CHANGE | _MAKE_CHAR | _MAKE_BLOCK
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1
_BIND_TCP = 1 << 0
_PORT_OF_THE_KERNEL = 0
"""A pod may listen where the kernel chooses, which is at no port below those of outgoing connections."""

_DEVICES = "/dev"
_DEVICES_OPEN = ("null", "zero", "full", "random", "urandom", "tty")
"""Terminals are closed: those of the user stand among them, with what he types."""
_DEVICES_OF_ACCELERATORS = ("nvidia", "dri", "kfd", "accel")
_CAPABILITIES_KEPT = frozenset({0, 1, 3, 4, 5, 10, 14})
"""Root keeps files of other users, signals, low ports, locked memory. The others lead out of the box, or starve what is
outside: CAP_SYS_ADMIN, CAP_SYS_MODULE, CAP_SYS_NICE …"""


class _RulesetAttr(ctypes.Structure):
    _fields_ = (("access_fs", ctypes.c_uint64), ("access_net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _PortAttr(ctypes.Structure):
    _fields_ = (("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    """Make a system call. Raises OSError."""
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def _control(option: int, argument: int) -> None:
    """Call prctl. Raises OSError."""
    zero = ctypes.c_ulong(0)
    if _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(argument), zero, zero, zero):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def abi() -> int:
    """Return the version of Landlock that the kernel offers; 0: none, or a filter of system calls forbids it."""
    try:
        return _call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def around(closed: Iterable[str]) -> Iterator[str]:
    """Yield every file and folder beside the ways from ``/`` to the closed places, links excluded."""
    barred = frozenset(closed)
    above = {place[:end] or "/" for place in barred for end, letter in enumerate(place) if letter == "/"}

    def visit(folder: str) -> Iterator[str]:
        try:
            entries = list(os.scandir(folder))
        except OSError:  # neither can the pod read it
            return
        for entry in entries:
            if entry.path in barred or entry.is_symlink():
                continue
            if entry.path in above:
                yield from visit(entry.path)
            else:
                yield entry.path

    yield from visit("/")


def confine(
    closed: Sequence[str],
    reads: Sequence[str],
    writes: Sequence[str],
    version: int,
    devices: Sequence[str] = (),
    ports: Sequence[int] = (_PORT_OF_THE_KERNEL,),
) -> None:
    """Confine this process, and all that it starts, for good. ``version``: the ABI to use.

    ``closed``: places that are neither read nor written; all others are read. ``reads`` and ``writes``: what is open in
    them nevertheless. ``devices``: files of devices, beside those that every pod has. All are absolute paths without
    links. ``ports``: where it may listen. Raises OSError.
    """
    handled = _HANDLED | (_IOCTL_DEV if version >= ABI_IOCTL else 0)
    scoped = _ABSTRACT_SOCKETS | _SIGNALS if version >= ABI_SCOPES else 0
    bound = _BIND_TCP if version >= ABI_PORTS else 0
    attributes = _RulesetAttr(handled, bound, scoped)
    # an older kernel takes the longer structure as long as the rest is zero
    ruleset = _call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)), 0)

    def allow(path: str, rights: int, needed: bool = False) -> None:
        try:
            opened = _folder(path) if needed else os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            if needed:
                raise
            return  # gone meanwhile, or never there
        try:
            rights &= handled if os.path.isdir(f"/proc/self/fd/{opened}") else handled & _OF_FILES
            rule = _PathBeneathAttr(rights, opened)
            _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
        finally:
            os.close(opened)

    for port in ports if bound else ():
        _call(_ADD_RULE, ruleset, _RULE_PORT, ctypes.byref(_PortAttr(bound, port)), 0)
    # names of files are shown: Python looks for modules by listing the folders on its path
    allow("/", _READ_DIR, needed=True)
    for path in around((*closed, _DEVICES)):
        allow(path, _READ)
    for name in (*_DEVICES_OPEN, *(each for each in os.listdir(_DEVICES) if each.startswith(_DEVICES_OF_ACCELERATORS))):
        allow(f"{_DEVICES}/{name}", _DEVICE)
    for path in devices:
        allow(path, _DEVICE)
    for path in reads:
        allow(path, _READ, needed=True)
    for path in writes:
        allow(path, _CHANGE, needed=True)
    _control(_SET_NO_NEW_PRIVS, 1)
    _drop_capabilities()
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _folder(path: str) -> int:
    """Open a folder step by step, so that no link is followed that a pod has put there meanwhile. Raises OSError."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open("/", flags)
    for name in path.split("/"):
        if name:
            try:
                below = os.open(name, flags, dir_fd=opened)
            finally:
                os.close(opened)
            opened = below
    return opened


def _drop_capabilities() -> None:
    """Give up root's ways around files, for all that is executed from now on; other users have none."""
    try:
        with open("/proc/sys/kernel/cap_last_cap") as file:
            last = int(file.read())
        for capability in range(last + 1):
            if capability not in _CAPABILITIES_KEPT:
                _control(_CAPBSET_DROP, capability)
    except OSError:
        return  # not root


def _reserved_port() -> int:
    """Return a port that the kernel chooses, and keeps for this process and what it executes, since it stays bound.

    A socket may be bound to it once more, and listen, as long as no other one does (SO_REUSEADDR). Raises OSError.
    """
    import socket  # few pods need it

    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", _PORT_OF_THE_KERNEL))
    port = int(reserved.getsockname()[1])
    os.set_inheritable(reserved.detach(), True)
    return port


def _give_up(why: str) -> NoReturn:
    """End as the shell around it does when it cannot start the pod."""
    sys.stdout.write(f"not started: {why}\n")
    sys.exit(CANNOT_CONFINE)


def main(
    restrict: Callable[[], None],
    shelter: Callable[[Sequence[str], Sequence[str], Sequence[str], Callable[[str], int]], None] | None = None,
) -> None:
    """Confine this process, in a view of the file system that ``shelter`` gives it, restrict its system calls by
    ``restrict``, and execute the command.

    Arguments: the options ``--closed``, ``--read``, ``--write``, ``--device`` and ``--show`` (in the view, no more),
    each with a path, as often as needed; ``--listen``; ``--``; the command. It gets the variables that begin with
    ``BOXED``, without that.
    """
    end = sys.argv.index("--")
    options, command = sys.argv[1:end], sys.argv[end + 1 :]
    pairs = list(zip(options[::2], options[1::2], strict=True))
    closed, reads, writes, devices, shown = (
        [path for name, path in pairs if name == each] for each in (CLOSED, READ, WRITE, DEVICE, SHOW)
    )
    told = {}
    try:
        told = {name: str(_reserved_port()) for option, name in pairs if option == LISTEN}
        if shelter is not None:
            shelter(closed, [*shown, *reads], writes, _folder)
        confine(closed, reads, writes, abi(), devices, [_PORT_OF_THE_KERNEL, *map(int, told.values())])
        restrict()
    except OSError as error:
        _give_up(f"the pod cannot be confined: {error}; STRETTO_ACTUATOR_LOCAL_CONFINE=off starts it without a box")
    environment = {name[len(BOXED) :]: value for name, value in os.environ.items() if name.startswith(BOXED)} | told
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        _give_up(f"{command[0]}: {error}")

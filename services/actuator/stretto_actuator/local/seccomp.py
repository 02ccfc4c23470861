"""Forbid this process, and all that it starts, the system calls that change processes outside its box (seccomp).

Landlock looks at signals, traces and memory of other processes, but at none of their limits, priorities, processors and
pages. A filter of system calls cannot know which processes are in the box, so it lets a call name nobody but its
caller: 0, or the first process of the pod. Like ``landlock.py`` it imports little.
"""

from __future__ import annotations

import ctypes
import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

HANDLES = (424, 434, 438, 440, 448)
"""Calls that are forbidden, since they name a process by a handle that no filter can look into: pidfd_send_signal,
pidfd_open, pidfd_getfd, process_madvise, process_mrelease. Their numbers are the same on each machine."""
RING = 425
"""The call io_uring_setup, forbidden: a ring makes sockets, and no filter sees what it is asked for."""
FILE_HANDLES = {"x86_64": (303, 304), "aarch64": (264, 265)}
"""Numbers of the calls name_to_handle_at and open_by_handle_at, forbidden: by its handle root opens any file of a file
system, and Landlock takes it for one below the folder whose mount was named."""
FCNTL, LEASE, DELEGATION = {"x86_64": 72, "aarch64": 25}, 1024, 1040
"""Number of the call fcntl, and its commands F_SETLEASE and F_SETDELEG, which are forbidden: whoever opens a leased
file, such as the program of a service, waits until the holder gives the lease up, or 45 s."""
SOCKET = {"x86_64": 41, "aarch64": 198}
"""Number of the call socket."""
MPTCP, SMC, SMC_FAMILY = 262, 256, 43
"""Protocols, and a family, of sockets that listen at a port of TCP, and whose port Landlock does not look at."""
OF_MACHINES: dict[str, tuple[int, int, dict[int, int], dict[int, int], tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        317,
        {142: 0, 144: 0, 203: 0, 314: 0, 256: 0, 279: 0, 298: 1, 302: 0},
        {141: 0, 251: 1},
        (*range(29, 32), *range(64, 72), 220, 240, 248, 249, 250, 323),
    ),
    "aarch64": (
        0xC00000B7,
        277,
        {118: 0, 119: 0, 122: 0, 274: 0, 238: 0, 239: 0, 241: 1, 261: 0},
        {140: 0, 30: 1},
        (*range(186, 198), 180, 217, 218, 219, 282),
    ),
}
"""Numbers by kind of machine: of the machine in the kernel's audit; of the call seccomp; of the calls of which an
argument names a process, with that argument (sched_setparam, sched_setscheduler, sched_setaffinity, sched_setattr,
migrate_pages, move_pages, perf_event_open, prlimit64); and of those of which the second argument names processes of a
kind, with the first that means one process (setpriority, ioprio_set); of the calls of System V for shared memory,
semaphores and messages, of mq_open, add_key, request_key and keyctl, which are forbidden, since all processes of a user
share those and their bounds; and of userfaultfd, since who looks into memory whose faults nobody serves, such as the
arguments and the environment of a process, waits for ever."""
FIRST_OF_X32 = 0x40000000
"""The number from which on x86-64 has each system call a second time."""

_SET_MODE_FILTER, _GET_ACTION_AVAILABLE = 1, 2
_SPEC_ALLOW = 1 << 2
"""Before Linux 5.16 a filter would slow the process down by a mitigation that Python does not need."""
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_FORBID = _ERROR | errno.EPERM
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""Places in the kernel's description of a call. Only the low half of an argument counts: the kernel takes an int."""

Instruction = tuple[int, int, int, int]
"""Code; how many instructions to pass over if it holds, and if not; operand."""


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def available(machine: str | None = None) -> bool:
    """Return True if this kernel filters system calls, on a kind of machine whose numbers are known."""
    numbers = OF_MACHINES.get(machine or os.uname().machine)
    if numbers is None:
        return False
    action = ctypes.c_uint32(_ERROR)
    libc = ctypes.CDLL(None)
    asked = libc.syscall(ctypes.c_long(numbers[1]), _GET_ACTION_AVAILABLE, 0, ctypes.byref(action))
    return bool(asked == 0)


def program(machine: str, pid: int) -> list[Instruction]:
    """Return the filter of a machine, for a pod whose first process is ``pid``."""
    audit, _, by_process, by_kind, shared = OF_MACHINES[machine]
    return [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _FORBID),  # calls of 32 bits have other numbers
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, FIRST_OF_X32),
        (_RETURN, 0, 0, _FORBID),
        *(
            each
            for number in (*HANDLES, RING, *FILE_HANDLES[machine], *shared)
            for each in ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, _FORBID))
        ),
        *(each for number, argument in by_process.items() for each in _only_itself(number, argument, pid)),
        *(each for number, one in by_kind.items() for each in _only_itself(number, 1, pid, one)),
        *_without_detours(SOCKET[machine]),
        *_without_leases(FCNTL[machine]),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _only_itself(number: int, argument: int, pid: int, kind: int | None = None) -> Iterator[Instruction]:
    """Yield what lets the call name the caller alone. ``kind``: what its first argument has to be for that."""
    looks = [] if kind is None else [(_LOAD, 0, 0, _ARGUMENTS), (_EQUAL, 0, 4, kind)]
    body = [*looks, (_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_EQUAL, 1, 0, 0), (_EQUAL, 0, 1, pid)]
    body += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FORBID)]
    yield (_EQUAL, 0, len(body), number)
    yield from body


def _without_detours(number: int) -> Iterator[Instruction]:
    """Yield what lets the call make any socket but those by which a pod could take a port of its choice."""
    body = [(_LOAD, 0, 0, _ARGUMENTS), (_EQUAL, 3, 0, SMC_FAMILY), (_LOAD, 0, 0, _ARGUMENTS + 16)]
    body += [(_EQUAL, 1, 0, MPTCP), (_EQUAL, 0, 1, SMC), (_RETURN, 0, 0, _FORBID), (_RETURN, 0, 0, _ALLOW)]
    yield (_EQUAL, 0, len(body), number)
    yield from body


def _without_leases(number: int) -> Iterator[Instruction]:
    """Yield what lets the call do anything with a file but lease it."""
    body = [(_LOAD, 0, 0, _ARGUMENTS + 8), (_EQUAL, 1, 0, LEASE), (_EQUAL, 0, 1, DELEGATION)]
    body += [(_RETURN, 0, 0, _FORBID), (_RETURN, 0, 0, _ALLOW)]
    yield (_EQUAL, 0, len(body), number)
    yield from body


def restrict() -> None:
    """Install the filter, for good; nothing where it is not :func:`available`. Raises OSError."""
    machine = os.uname().machine
    if not available(machine):
        return
    filled = b"".join(
        code.to_bytes(2, "little") + bytes((holds, fails)) + operand.to_bytes(4, "little")
        for code, holds, fails, operand in program(machine, os.getpid())
    )
    described = _Program(len(filled) // 8, filled)
    libc = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_long(OF_MACHINES[machine][1])
    if libc.syscall(number, _SET_MODE_FILTER, ctypes.c_ulong(_SPEC_ALLOW), ctypes.byref(described)):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))

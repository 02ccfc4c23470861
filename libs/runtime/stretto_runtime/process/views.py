"""Processes found by what they are shown of the file system.

A local pod has a view of its own, in which its folder is mounted. All that it starts has the same one, and can neither
leave nor change it; sessions, parents, names and environments are the pod's to choose.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_ESCAPED = str.maketrans({"\\": r"\134", " ": r"\040", "\t": r"\011", "\n": r"\012"})
_PLACE = 4
"""Column of a line of mountinfo: the place of a mount."""


def has_mounted(pid: int, folder: Path) -> bool:
    """Return whether a process has another view than this one, with a mount below ``folder``, an absolute path."""
    begin = f"{folder}/".translate(_ESCAPED)
    own = os.stat("/proc/self/ns/mnt").st_ino
    for thread in threads_of(pid):  # the first one may have ended before the others
        with contextlib.suppress(OSError):
            if os.stat(f"{thread}/ns/mnt").st_ino == own:
                return False
            lines = Path(f"{thread}/mountinfo").read_text(errors="surrogateescape").splitlines()
            return any(line.split(" ")[_PLACE].startswith(begin) for line in lines)
    return False


def threads_of(pid: int) -> list[str]:
    """Return the folders of a process's threads below ``/proc``; none if it is gone."""
    with contextlib.suppress(OSError):
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    return []

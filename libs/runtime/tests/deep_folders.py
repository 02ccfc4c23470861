"""Folders deeper than Python's stack, as a pod can lay them wherever it writes."""

from __future__ import annotations

import atexit
import os
import subprocess
from pathlib import Path

LEVELS = 2000


def lay_deep(folder: Path) -> None:
    """Make folders below each other in ``folder``, which is made, too.

    They go with this process at the latest, before pytest looks through its own, which it could not.
    """
    atexit.register(subprocess.run, ["rm", "-rf", str(folder)], check=False)
    folder.mkdir(parents=True, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY)
    for _ in range(LEVELS):
        os.mkdir("deeper", dir_fd=opened)
        below = os.open("deeper", os.O_RDONLY, dir_fd=opened)
        os.close(opened)
        opened = below
    os.close(opened)

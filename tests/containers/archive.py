"""Debian's archive, wherever this machine's own apt has it from."""

from __future__ import annotations

import shutil
import subprocess

from tests.containers.engine import EngineUnavailable

RELEASE = "bookworm"


def archive() -> str:
    """The address of ``RELEASE``. Raises EngineUnavailable: apt knows none."""
    found: list[str] = []
    if shutil.which("apt-get") is not None:
        asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Release: {RELEASE}"]
        found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    if not found:
        raise EngineUnavailable(f"apt knows no archive of Debian {RELEASE}: name one in /etc/apt/sources.list.d")
    return found[0].rstrip("/")

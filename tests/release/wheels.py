"""The wheels of a release: one for each distribution, which need each other at exactly their own version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.release.versions import ROOT, ReleaseRefused

GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")
OLDEST_GLIBC = (2, 17)
"""That of manylinux_2_17, the oldest on which NumPy runs."""


def build(target: Path, root: Path = ROOT) -> dict[str, Path]:
    """Build every distribution's wheel into ``target``; return name -> wheel. Raises ReleaseRefused.

    Copies are built, since a build leaves files beside its sources that a later one would take for its own.
    """
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        for path in (*root.glob("libs/*/pyproject.toml"), *root.glob("services/*/pyproject.toml")):
            ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "tests", "*.so")
            shutil.copytree(path.parent, Path(folder) / path.parent.name, ignore=ignored)
        copies = sorted(Path(folder).iterdir())
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
        done = subprocess.run(
            [*command, "-w", str(target), *map(str, copies)],
            env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise ReleaseRefused(f"a wheel cannot be built: {done.stderr[-2000:]}")
    return {name_of(wheel): wheel for wheel in map(for_many_systems, sorted(target.glob("*.whl")))}


def for_many_systems(wheel: Path) -> Path:
    """Return the wheel; one with machine code is renamed for every Linux that has what its code needs.

    Raises ReleaseRefused for code that needs a younger C library than OLDEST_GLIBC.
    """
    if not wheel.stem.endswith("-linux_x86_64"):
        return wheel
    with zipfile.ZipFile(wheel) as packed:
        code = b"".join(packed.read(name) for name in packed.namelist() if name.endswith(".so"))
    needed = max((int(major), int(minor)) for major, minor in GLIBC.findall(code))
    if needed > OLDEST_GLIBC:
        raise ReleaseRefused(
            f"{wheel.name} needs the C library {needed[0]}.{needed[1]}: "
            "build it with ziglang and without another compiler, or with CC='python -m ziglang cc -target …'"
        )
    tag = f"manylinux_{OLDEST_GLIBC[0]}_{OLDEST_GLIBC[1]}_x86_64"
    command = [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, str(wheel)]
    named = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return wheel.with_name(named.splitlines()[-1])


def name_of(wheel: Path) -> str:
    return canonicalize_name(wheel.name.partition("-")[0])


def requirements_of(wheel: Path) -> list[Requirement]:
    """Return everything that a wheel requires, its extras' requirements with their markers."""
    return [Requirement(each) for each in _stated(wheel, "Requires-Dist")]


def extras_of(wheel: Path) -> list[str]:
    return _stated(wheel, "Provides-Extra")


def packages_of(wheel: Path) -> list[str]:
    """Return the top-level packages of a wheel."""
    return _text(wheel, "top_level.txt").split()


def _stated(wheel: Path, field: str) -> list[str]:
    return Parser().parsestr(_text(wheel, "METADATA")).get_all(field) or []


def _text(wheel: Path, file: str) -> str:
    with zipfile.ZipFile(wheel) as packed:
        [name] = [name for name in packed.namelist() if name.endswith(f".dist-info/{file}")]
        return packed.read(name).decode()

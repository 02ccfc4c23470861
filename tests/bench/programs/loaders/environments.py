"""An environment of its own for each loader, made once by pip below the folder that the variable LOADERS names."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "LOADERS"
PIP_S = 1500.0


class Missing(RuntimeError):
    """An environment that pip cannot make here; the text says why."""


def python_of(name: str, requirements: Sequence[str], imports: Sequence[str]) -> str:
    """Return the Python that has a loader. Packages of this environment are seen there, unless it has its own.

    Raises Missing.
    """
    python = _made(name, requirements) if requirements else sys.executable
    _checked([python, "-c", "".join(f"import {each}\n" for each in imports)])
    return python


def _made(name: str, requirements: Sequence[str]) -> str:
    if not (top := os.environ.get(VARIABLE)):
        raise Missing(f"{VARIABLE} is not set (a folder where pip may make environments, of some gigabytes each)")
    folder = Path(top).absolute() / name
    python, mark = folder / "bin" / "python", folder / "requirements.txt"
    if not mark.exists() or mark.read_text().split() != list(requirements):
        _checked([sys.executable, "-m", "venv", "--clear", str(folder)])
        here = Path(sysconfig.get_path("purelib"))
        (folder / here.relative_to(sys.prefix) / "beside.pth").write_text(f"{here}\n")
        _checked([str(python), "-m", "pip", "install", "-q", *requirements])
        mark.write_text("\n".join(requirements))
    return str(python)


def _checked(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PIP_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)[:300]) from error
    if done.returncode:
        raise Missing((done.stderr.strip().splitlines() or ["pip gave no reason"])[-1][:300])

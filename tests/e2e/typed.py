"""The README's commands, typed as a person types them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# the variables that `make test` sets would make a make below it print lines of its own
TYPED = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
BLOCKS = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
MAKE, OWN_JOB = ([line.partition("#")[0].strip() for line in block.splitlines()] for block in BLOCKS)
END_S = 40.0


def shell(command: str, limit_s: float = 600, **environment: str) -> subprocess.CompletedProcess[str]:
    """Type one command of the README in the root of the checkout; end it with its children after ``limit_s``."""
    if not (ROOT / ".venv/bin/stretto").exists():
        command = command.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    typed = subprocess.Popen(
        command,
        cwd=ROOT,
        shell=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**TYPED, **environment},
    )
    try:
        output, errors = typed.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(typed.pid, signal.SIGTERM)  # the demonstration takes its installation down
        with contextlib.suppress(subprocess.TimeoutExpired):
            typed.wait(END_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(typed.pid, signal.SIGKILL)
        output, errors = typed.communicate()
        pytest.fail(f"{command}: not over after {limit_s:.0f} s\n{output[-4000:]}\n{errors[-2000:]}")
    return subprocess.CompletedProcess(command, typed.returncode, output, errors)

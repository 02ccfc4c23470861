"""The short version of `make chaos`: one schedule of real faults on a real job, every sample counted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.night]

SEED, SAMPLES = 12642, 400_000
"""A hostile pod, a kill of a parameter server and one of a data worker: what takes longest to heal comes last, so that
none is passed over on a machine that trains faster than it heals."""
LIMIT_S, END_S = 300.0, 60.0


def test_a_job_under_fire_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    page = tmp_path / "chaos.html"
    command = [Path(sys.executable).with_name("stretto"), "chaos", "--seed", str(SEED), "--intensity", "calm",
               "--samples", str(SAMPLES), "--report", page, "-o", "json"]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STRETTO_")}
    environment |= {"TMPDIR": str(tmp_path)}  # the installation of its own is made there
    typed = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        output, errors = typed.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(typed.pid, signal.SIGTERM)  # it takes its installation down
        with contextlib.suppress(subprocess.TimeoutExpired):
            typed.wait(END_S)
        typed.kill()
        pytest.fail(f"not over after {LIMIT_S:.0f} s\n{typed.communicate()[1][-6000:]}")
    assert typed.returncode == 0, errors[-6000:]
    [run] = json.loads(output)["runs"]
    books = run["books"]
    assert books["samples"] == books["assigned"] == books["reported"] == books["applied"] == SAMPLES, errors[-6000:]
    assert (books["lost"], books["repeated"], books["columns_exact"]) == (0, 0, books["columns"])
    done = [happening["kind"] for happening in run["happenings"] if not happening["skipped"]]
    assert {"ps-kill", "data-kill", "hostile"} <= {*done}, errors[-6000:]
    assert run["counts"]["restores"] + run["counts"]["column_restores"] >= 1
    assert "<svg" in page.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("stretto-chaos-")] == []  # it was exact
    assert left_over(tmp_path) == []


def left_over(folder: Path) -> list[str]:
    """Processes that still know of the folder."""
    found: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in " ".join(process.cmdline()) and process.pid != os.getpid():
                found.append(" ".join(process.cmdline()))
    return found

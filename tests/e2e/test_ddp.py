"""The script of the page *Your PyTorch loop*, as somebody runs it who has only that page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.tutorials import fences
from tests.e2e.typed import ROOT, TYPED

PAGE = ROOT / "libs/docs/pages/how-to/your-pytorch-loop.md"
PYTHON = os.environ.get("TORCH_PYTHON", "")
"""A Python with ``torch``, which the tests' own may lack."""
WAIT_S = 300.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.night,
    pytest.mark.skipif(not PYTHON, reason="TORCH_PYTHON names no Python with torch"),
]


class Typed:
    """Commands that are typed in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, *words: str) -> str:
        command = [str(Path(sys.executable).with_name("stretto")), *words]
        done = subprocess.run(command, cwd=self.folder, env=TYPED, text=True, capture_output=True, timeout=WAIT_S)
        assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        return done.stdout

    def log(self, pod: str) -> str:
        path = self.folder / ".stretto/pods/ddp" / pod / "log"
        return path.read_text() if path.exists() else ""

    def job(self) -> Any:
        return next(each for each in json.loads(self("jobs", "-o", "json")) if each["name"] == "ddp")


@pytest.fixture
def stretto(tmp_path: Path) -> Iterator[Typed]:
    script, job, _ = (fence.text for fence in fences(PAGE) if fence.tested)
    (tmp_path / "train.py").write_text(script)
    job = job.replace("/models/mine", str(tmp_path)).replace("[python,", f"[{PYTHON},")
    (tmp_path / "ddp.yaml").write_text(f"{job}environment: {{PYTHONPATH: {ROOT / 'libs/trainer'}}}\n")
    typed = Typed(tmp_path)
    typed("up", "--detach")
    yield typed
    typed("down")


def wait_for(found: Callable[[], Any], what: str) -> Any:
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        if value := found():
            return value
        time.sleep(0.2)
    raise AssertionError(f"waited {WAIT_S:g} s for {what}")


def kill(folder: Path, pod: str) -> None:
    """Kill -9 the process of a worker, and with it its program."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        is_worker = "stretto.program" in words and "python" in words[0]  # not the shell around it
        given = process.environ() if is_worker else {}
        if given.get("STRETTO_POD") == pod and Path(given["STRETTO_POD_FOLDER"]).is_relative_to(folder):
            process.kill()
            return
    raise AssertionError(f"{pod} does not run")


def test_the_script_of_the_page_is_killed_resized_and_audited(stretto: Typed) -> None:
    stretto("submit", "ddp.yaml")
    wait_for(lambda: stretto.job()["samples_done"], "the first samples")
    kill(stretto.folder, "worker-1")
    wait_for(lambda: "rank 1 of 2" in stretto.log("worker-2"), "another worker in its place")
    stretto("scale", "ddp", "--workers", "1")
    wait_for(lambda: "rank 0 of 1" in stretto.log("worker-0"), "one rank")
    stretto("scale", "ddp", "--workers", "3")
    wait_for(lambda: "rank 2 of 3" in stretto.log("worker-4"), "three ranks")
    wait_for(lambda: stretto.job()["status"] in ("finished", "failed"), "the end")
    books = json.loads(stretto("audit", "ddp", "-o", "json"))
    assert (books["samples_done"], books["samples_in_flight"], books["samples_waiting"]) == (400_000, 0, 0)
    assert books["exact"]

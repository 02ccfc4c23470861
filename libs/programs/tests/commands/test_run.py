"""`stretto run` gives its process to the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = "import os, sys\nprint(os.getpid(), sys.argv)\nsys.stdin.read()\nsys.exit(7)\n"


@pytest.mark.parametrize("options", [[], ["--data-workers", "2", "--exact", "--resume"]])
def test_output_status_input_and_process_are_those_of_the_program(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "stretto_cli.main", "run", *options, "train.py", "--exact", "-o", "json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 7
    assert out == f"{process.pid} ['train.py', '--exact', '-o', 'json']\n"
    assert errors.startswith("stretto: the program ran without data workers: it called no Keras fit")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nowhere.py"], "nowhere.py is no file: name a Python script"),
        (["--data-workers", "0", __file__], "--data-workers 0: give 1 to 64"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(arguments: list[str], reason: str) -> None:
    command = [sys.executable, "-m", "stretto_cli.main", "run", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert reason in " ".join(done.stderr.split())

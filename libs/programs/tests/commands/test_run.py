"""`stretto run` gives its process to the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stretto_cli.main import app
from typer.testing import CliRunner

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


def test_a_script_that_is_not_there_is_named() -> None:
    refused = CliRunner().invoke(app, ["run", "nowhere.py"])
    assert refused.exit_code == 2
    assert "nowhere.py is no file: name a Python script" in " ".join(refused.output.split())

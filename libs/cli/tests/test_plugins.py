"""A package of somebody else's: installed for real, it is chosen by name like our own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "equal_shares"
INSTANCE = {
    **{"nodes": 10, "steps": 5, "step_hours": 0.0833, "sizes": [1, 2, 4, 8, 16], "doubling_efficiency": 0.8},
    "jobs": [
        {"id": f"j{n}", "demand_node_hours": 5.0, "min_nodes": 1, "max_nodes": most}
        for n, most in enumerate((1, 16, 16))
    ],
}
TRACE = "submit_s,demand_node_hours,max_nodes\n0,2,4\n600,1,4\n1200,3,2\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example by pip, in a folder of its own."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-index", "--no-deps"]
    command += ["--no-build-isolation", "--no-compile", "--target", str(folder / "site"), str(folder / "source")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder / "site"


def stretto(site: Path, *arguments: str, given: str = "") -> Any:
    command = [Path(sys.executable).with_name("stretto"), *arguments, "-o", "json"]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_it_is_listed_and_chosen_by_whatif_and_by_the_simulator(installed: Path, tmp_path: Path) -> None:
    found = stretto(installed, "whatif", "algorithms")
    assert "equal-shares" in found["allocate"]
    assert "equal-shares" in found["simulate allocation"]
    assert "equal-shares" not in stretto(tmp_path, "whatif", "algorithms")["allocate"]
    planned = stretto(installed, "whatif", "allocate", "-", "--algorithm", "equal-shares", given=json.dumps(INSTANCE))
    assert planned["nodes"] == {"j0": 1, "j1": 4, "j2": 4}
    told = stretto(installed, "simulate", "allocation", "-", "--nodes", "8", "--allocator", "equal-shares", given=TRACE)
    assert told["jobs"] == 3
    assert told["mean_queue_s"] == 0

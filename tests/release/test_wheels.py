"""Every wheel, in an empty environment: it has what it imports, what it reads, and the commands that it promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path

import httpx
import pytest

from tests.release import wheels as building
from tests.release.environments import environment
from tests.release.versions import ROOT, current

pytestmark = [pytest.mark.slow, pytest.mark.night]

DISTRIBUTIONS = sorted(
    path.parent.name for kind in ("libs", "services") for path in ROOT.glob(f"{kind}/*/pyproject.toml")
)
OPTIONAL = {"torch", "confluent_kafka"}
"""Packages of extras that no environment of tests has."""
LEFT_OUT = {"torch", "kafka", "laptop-torch", "compiler", "embedded"}
"""Extras of which nothing is installed here, and the processes of a laptop, which have a test of their own."""
IMPORTS = """
import importlib.util, json, pkgutil, sys

failed, count = {}, 0
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, f"{sys.argv[1]}.", onerror=lambda name: None):
    if module.name.endswith("__main__") or importlib.util.find_spec(module.name).origin.endswith(".so"):
        continue  # a library of ours in machine code is no module
    try:
        importlib.import_module(module.name)
        count += 1
    except ModuleNotFoundError as error:
        failed[module.name] = error.name
print(json.dumps([count, failed]))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return building.build(tmp_path_factory.mktemp("wheels"))


def test_each_distribution_is_one_wheel_of_the_version(wheels: dict[str, Path]) -> None:
    assert len(wheels) == len(DISTRIBUTIONS)
    assert {wheel.name.split("-")[1] for wheel in wheels.values()} == {current()}


def test_wheels_of_one_release_need_each_other_exactly(wheels: dict[str, Path]) -> None:
    own = [each for wheel in wheels.values() for each in building.requirements_of(wheel) if each.name in wheels]
    assert {str(each.specifier) for each in own} == {f"=={current()}"}
    others = {each.name for wheel in wheels.values() for each in building.requirements_of(wheel)} - wheels.keys()
    assert not [name for name in others if name.startswith("stretto")]


def test_machine_code_runs_on_every_system_that_the_name_promises(wheels: dict[str, Path]) -> None:
    made = [wheel.name for wheel in wheels.values() if not wheel.name.endswith("-none-any.whl")]
    assert [name.rpartition("-none-")[2] for name in made] == ["manylinux_2_17_x86_64.whl"]


def named(folder: str) -> str:
    """Return the name of the distribution in a folder."""
    [path] = ROOT.glob(f"*/{folder}/pyproject.toml")
    return str(tomllib.loads(path.read_text())["project"]["name"])


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_every_module_can_be_imported_from_a_wheel(folder: str, wheels: dict[str, Path], tmp_path: Path) -> None:
    wheel = wheels[named(folder)]
    extras = ",".join(sorted(set(building.extras_of(wheel)) - LEFT_OUT))
    python = environment(tmp_path / "env", wheels, f"{named(folder)}[{extras}]")
    [package] = building.packages_of(wheel)
    done = subprocess.run([python, "-I", "-c", IMPORTS, package], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    count, failed = json.loads(done.stdout.splitlines()[-1])
    assert count > 0
    assert {module: lacking for module, lacking in failed.items() if lacking not in OPTIONAL} == {}


BASE = """
import json, sys
import stretto

with stretto.connect("http://127.0.0.1:1", "token") as gateway:
    try:
        gateway.jobs()
    except Exception as error:
        print(json.dumps([type(error).__name__, sorted({"tensorflow", "numpy", "yaml"} & sys.modules.keys())]))
"""


def test_what_connects_needs_no_extra(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "env", wheels, "stretto")
    done = subprocess.run([python, "-I", "-c", BASE], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr[-3000:]
    assert json.loads(done.stdout) == ["NotRunning", []]


def test_a_laptop_installation_runs_from_wheels_alone(wheels: dict[str, Path], tmp_path: Path) -> None:
    python = environment(tmp_path / "env", wheels, "stretto-cli[embedded]")
    folder = tmp_path / "state"
    assert run(python, "up", "--detach", "--folder", folder).returncode == 0
    try:
        at = json.loads((folder / "run" / "gateway.json").read_text())
        with httpx.Client(base_url=f"http://{at['host']}:{at['port']}", follow_redirects=True) as gateway:
            page = gateway.get("/console/")
            assert page.status_code == 200
            [script] = re.findall(r'src="(?:\./)?(assets/[^"]+\.js)"', page.text)
            assert gateway.get(f"/console/{script}").status_code == 200
        listed = run(python, "jobs", "--folder", folder, "-o", "json")
        assert json.loads(listed.stdout) == []
    finally:
        assert run(python, "down", "--folder", folder).returncode == 0


def run(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command ``stretto`` of an environment, with nothing of this one on its paths."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "STRETTO_", "VIRTUAL"))}
    own["PATH"] = f"{python.parent}:{own['PATH']}"
    done = subprocess.run(
        [python.parent / "stretto", *arguments], env=own, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done

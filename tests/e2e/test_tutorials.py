"""The tutorials, typed as they are written: their files are saved, their commands run in order in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from stretto_installation.server import free_port

from tests.containers.bases import STAND_INS
from tests.e2e.tutorials import TUTORIALS, commands, missing, save, steps
from tests.e2e.typed import ROOT, TYPED
from tests.kubernetes import helm, prepared
from tests.kubernetes.node import Node

COMMAND_S = 300.0
CLUSTER_S = 1800.0
ON_A_CLUSTER = "on-a-cluster.md"
LISTED = re.findall(r"\]\(([\w-]+\.md)\)", (TUTORIALS / "README.md").read_text())
"""Pages in the order of their table."""

pytestmark = pytest.mark.slow


def follow(name: str, folder: Path) -> str:
    """Save the files of a tutorial, run its commands and compare what they print; return it."""
    printed = ""
    for step in steps(name):
        if step.file:
            (folder / step.file).write_text(step.text)
        else:
            now = "".join(typed(command, folder) for command in step.text.splitlines())
            assert missing(step.printed, now) == [], f"{name}\n{step.text}\n{now[-6000:]}"
            printed += now
    return printed


def typed(command: str, folder: Path) -> str:
    environment = {**TYPED, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, cwd=folder, shell=True, text=True, env=environment, timeout=COMMAND_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    subprocess.run([Path(sys.executable).with_name("stretto"), "down"], cwd=tmp_path, env=TYPED, check=False)


def auc(printed: str) -> float:
    """Return the last area under the curve that was printed."""
    return float(re.findall(r"AUC (0\.\d+)", printed)[-1])


def test_a_lack_of_output_is_found() -> None:
    assert missing("a … c\nd", "x\n│ a  b c │\nd") == []
    assert missing("a … c\nd", "d\na b c") == ["d"]


@pytest.mark.night
def test_the_tutorials_are_typed_one_after_the_other_in_one_folder(folder: Path) -> None:
    """Method: as a person does, in the order of their table: files and names of jobs of one are there for the next."""
    printed = {name: follow(name, folder) for name in LISTED if name != ON_A_CLUSTER}
    assert "clicks-again  finished" in printed["first-job.md"]
    assert "100,000 applied of 100,000, 0 lost, 0 repeated" in printed["your-keras-model.md"]
    served = printed["serve-the-result.md"]
    german, american = (float(each) for each in re.findall(r"^(?:de|us): ([01]\.\d{4})$", served, re.MULTILINE))
    assert german != american, served
    assert "Skipping variable loading" not in served
    assert "100,000 samples in 4 files" in printed["your-data.md"]
    assert "75,000 applied of 75,000, 0 lost, 0 repeated" in printed["your-data.md"]
    assert auc(printed["your-data.md"]) > 0.7
    [with_data_workers] = re.findall(r"^weights (\S+)$", printed["your-own-program.md"], re.MULTILINE)
    assert f"weights {with_data_workers}\n" in typed("STRETTO_PIPELINE=off stretto run train.py", folder)


def follow_in_one_shell(name: str, folder: Path, **variables: str) -> str:
    """Run the commands of a tutorial of which some go on behind others; its files are saved. Return what they print."""
    output = folder / "printed.log"
    script = "trap 'kill $(jobs -p) 2>/dev/null' EXIT\n" + commands(name).replace("8000", str(free_port()))
    environment = {**TYPED, **variables}
    with output.open("w") as file:
        done = subprocess.run(
            ["bash", "-exuo", "pipefail", "-c", script],
            cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=CLUSTER_S,
        )  # fmt: skip
    printed = output.read_text()
    assert done.returncode == 0, printed[-6000:]
    return printed


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with prepared.node(tmp_path / "cluster", store=5, clicks=1) as running:
        yield running


@pytest.mark.alone
@pytest.mark.night
def test_a_cluster_trains_a_model_of_ones_own_and_gives_it_back(node: Node, folder: Path) -> None:
    """Follow the page on a real Kubernetes, with the data of another one. What differs is in the values alone: the
    node has no registry to pull Redis' digest from."""
    save("your-data.md", folder)
    (folder / "clicks").mkdir()
    typed("python make_data.py", folder)
    (folder / "charts").symlink_to(ROOT / "charts")
    save(ON_A_CLUSTER, folder)
    values = yaml.safe_load((folder / "values.yaml").read_text())
    values["quickstart"] = {"images": {"redis": STAND_INS["redis"]}}
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    (folder / "bin").mkdir()
    helm.command(folder / "bin")
    places = [str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    printed = follow_in_one_shell(ON_A_CLUSTER, folder, PATH=os.pathsep.join(places), KUBECONFIG=str(node.kubeconfig))
    assert "75,000 applied of 75,000, 0 lost, 0 repeated" in printed
    assert auc(printed) > 0.7
    assert "worker-0 of job clicks joined" in printed, "the log of a pod that is gone"
    assert (folder / "model" / "model.keras").is_file()


def test_every_tutorial_is_listed() -> None:
    assert {*LISTED} == {path.name for path in TUTORIALS.glob("*.md")} - {"README.md"}

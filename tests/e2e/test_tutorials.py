"""The tutorials, typed as they are written: their files are saved, their commands run in order in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.typed import ROOT, TYPED

TUTORIALS = ROOT / "examples/tutorials"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# ([\w/.-]+\.(?:py|yaml))\n")
COMMAND_S = 300.0

pytestmark = pytest.mark.slow


def follow(name: str, folder: Path) -> str:
    """Save the files of a tutorial and run its commands; return what they printed."""
    printed = ""
    for language, text in FENCE.findall((TUTORIALS / name).read_text()):
        named = NAMED.match(text)
        if language in ("python", "yaml") and named:
            (folder / named[1]).write_text(text)
        elif language == "sh":
            for command in text.splitlines():
                printed += typed(command, folder)
        else:
            pytest.fail(f"{name}: a {language} fence that is neither a file nor a command:\n{text}")
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


def test_a_model_of_ones_own_is_trained_and_served(folder: Path) -> None:
    printed = follow("your-keras-model.md", folder)
    assert "100,000 applied of 100,000, 0 lost, 0 repeated" in printed
    served = follow("serve-the-result.md", folder)
    german, american = (float(each) for each in re.findall(r"^(?:de|us): ([01]\.\d{4})$", served, re.MULTILINE))
    assert german != american, served


def test_data_of_ones_own_are_read_checked_and_trained(folder: Path) -> None:
    printed = follow("your-data.md", folder)
    assert "100000 samples in 4 files" in printed
    assert "75,000 applied of 75,000, 0 lost, 0 repeated" in printed
    assert auc(printed) > 0.7


def test_every_tutorial_is_listed_and_followed() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (TUTORIALS / "README.md").read_text()))
    assert listed == {path.name for path in TUTORIALS.glob("*.md")} - {"README.md"}
    followed = set(re.findall(r'follow\("([\w-]+\.md)"', Path(__file__).read_text()))
    assert followed == listed

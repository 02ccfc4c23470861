"""The commands of how-to pages, typed in an installation with a job of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.site import OWN
from tests.e2e.tutorials import fences
from tests.e2e.typed import TYPED

HERE = "tests/docs/test_how_to.py::test_the_commands_of_a_page_do_what_they_say"
COMMAND_S = 200.0

pytestmark = [pytest.mark.slow, pytest.mark.night]


def typed(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**TYPED, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, shell=True, text=True, env=environment, timeout=COMMAND_S, capture_output=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An installation in which the job `clicks` of `stretto init` has been trained."""
    folder = tmp_path_factory.mktemp("how-to")
    for command in (
        "stretto init first",
        "sed -i 's/^  samples: 200000/  samples: 20000/' first/job.yaml",
        "stretto up --detach",
        "stretto submit first/job.yaml --follow",
    ):
        done = typed(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    yield folder
    typed("stretto down", folder)


@pytest.mark.parametrize("page", ["debug-a-job", "sign-in", "traces"])
def test_the_commands_of_a_page_do_what_they_say(page: str, folder: Path) -> None:
    [text] = [fence.text for fence in fences(OWN / "how-to" / f"{page}.md") if fence.tested == HERE]
    for command in text.splitlines():
        done = typed(command, folder)
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
        assert done.stdout.strip(), command

"""Pages that are read from top to bottom: their commands are typed in one shell, their output is compared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.site import OWN
from tests.e2e.tutorials import fences, missing
from tests.e2e.typed import TYPED

PAGE_S = 900.0
MARK = "\x1e"
FAILED = "\x1ffailed"
SHELL = f'trap \'printf "{FAILED} %s\\n" "$BASH_COMMAND"\' ERR\n'
"""Names each command that fails, and goes on, as a person does."""

CLICKS = """\
stretto up --detach
stretto init first
cat >> first/job.yaml <<END
resources:
  fixed: true
  initial: {workers: 1, worker_cpu_cores: 0.5, worker_memory_bytes: 1Gi, ps: 1, ps_cpu_cores: 0.5, ps_memory_bytes: 1Gi}
END
sed -i 's/^  samples: 200000/  samples: 40000000/' first/job.yaml
stretto submit first/job.yaml
until stretto jobs | grep -q 'clicks .*training'; do sleep 1; done
"""
"""A job whose plan leaves room for data workers on two cores."""

pytestmark = [pytest.mark.slow, pytest.mark.night]


class Step(NamedTuple):
    """Commands of a page, and the text behind them that they have to print."""

    commands: str
    printed: str


def steps(page: str, test: str) -> list[Step]:
    """Return the steps of a page that name this test."""
    found = fences(OWN / f"{page}.md")
    after = [*found[1:], found[0]]
    here = f"tests/docs/test_walks.py::{test}"
    return [
        Step(one.text, then.text if then.language == "text" else "")
        for one, then in zip(found, after, strict=True)
        if one.tested == here
    ]


def walk(page: str, test: str, folder: Path, before: str = "") -> None:
    """Type ``before`` and all steps in one shell. A command may fail only where the page shows its error."""
    taken = steps(page, test)
    assert taken
    script = SHELL + before + f"printf '{MARK}\\n'\n".join(each.commands for each in taken)
    environment = {**TYPED, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, text=True, timeout=PAGE_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    for step, printed in zip(taken, done.stdout.split(f"{MARK}\n"), strict=True):
        assert missing(step.printed, printed) == [], f"{step.commands}\n{printed[-6000:]}"
        assert (FAILED in printed) == ("error: " in step.printed), f"{step.commands}\n{printed[-6000:]}"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    subprocess.run([Path(sys.executable).with_name("stretto"), "down"], cwd=tmp_path, env=TYPED, check=False)


def test_two_teams_share_a_cluster(folder: Path) -> None:
    walk("how-to/teams-and-quotas", "test_two_teams_share_a_cluster", folder)


def test_what_if_is_asked_of_a_job_a_cluster_and_files(folder: Path) -> None:
    walk("how-to/what-if", "test_what_if_is_asked_of_a_job_a_cluster_and_files", folder)


def test_a_number_of_data_workers_is_forced_and_explained(folder: Path) -> None:
    walk("explanation/data-workers", "test_a_number_of_data_workers_is_forced_and_explained", folder, CLICKS)

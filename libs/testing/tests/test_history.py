"""Histories: the same seed tells the same, some seeds hold, and defects are found by some seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from planted_defects import PLANTS
from stretto_testing.checks import Check

HERE = Path(__file__).parent
QUICK = "what a dead worker held is not put back"
"""A defect that most seeds find."""
SEEDS = 500


def printed(*arguments: str) -> str:
    """Run Python in a process of its own, in which the order of sets of texts is the same as in all others."""
    command, environment = [sys.executable, *arguments], os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_same_seed_gives_the_same_trace_byte_for_byte_and_every_promise_holds() -> None:
    """Its history is one of the whole installation."""
    first, second = (printed("-m", "stretto_testing", "--seed", "30", "--trace") for _ in range(2))
    assert first.count("\n") > 300
    assert first == second


def test_promises_and_readme_name_the_checks_that_there_are() -> None:
    ids = {str(check) for check in Check}
    promised = (HERE.parents[1] / "runtime/PROMISES.md").read_text()
    told = (HERE.parent / "README.md").read_text()
    assert set(re.findall(r"`sim:(\w*)`", promised)) == ids
    assert set(re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE)) == ids


@pytest.mark.night
def test_what_was_promised_holds() -> None:
    assert "0 of 100 histories broke a promise" in printed("-m", "stretto_testing", "--seeds", "0:100")


def test_a_planted_defect_is_found() -> None:
    number = next(number for number, plant in enumerate(PLANTS) if plant.name == QUICK)
    assert printed(str(HERE / "planted_defects.py"), str(number), str(SEEDS)) != "None\n"


@pytest.mark.night
@pytest.mark.parametrize("number", range(len(PLANTS)), ids=lambda number: PLANTS[number].name)
def test_every_planted_defect_is_found(number: int) -> None:
    assert printed(str(HERE / "planted_defects.py"), str(number), str(SEEDS)) != "None\n"

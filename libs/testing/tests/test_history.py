"""Histories: the same seed tells the same, some seeds hold, and defects are found by some seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from planted_defects import PLANTS

HERE = Path(__file__).parent
QUICK = ("what a dead worker held is not put back", "a successor does not look for the outputs of its predecessor")
"""Defects that most seeds find."""
SEEDS = 500


def printed(*arguments: str) -> str:
    """Run Python in a process of its own, in which the order of sets of texts is the same as in all others."""
    command, environment = [sys.executable, *arguments], os.environ | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_same_seed_gives_the_same_trace_byte_for_byte() -> None:
    first, second = (printed("-m", "stretto_testing", "--seed", "7", "--trace") for _ in range(2))
    assert first.count("\n") > 300
    assert first == second


def test_what_was_promised_holds_in_the_first_histories() -> None:
    """One of them has every service that is simulated, and the actuator's pods."""
    assert "0 of 6 histories broke a promise" in printed("-m", "stretto_testing", "--seeds", "1:7")


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_defect_is_found(name: str) -> None:
    number = next(number for number, plant in enumerate(PLANTS) if plant.name == name)
    assert printed(str(HERE / "planted_defects.py"), str(number), str(SEEDS)) != "None\n"


@pytest.mark.night
@pytest.mark.parametrize("number", range(len(PLANTS)), ids=lambda number: PLANTS[number].name)
def test_every_planted_defect_is_found(number: int) -> None:
    assert printed(str(HERE / "planted_defects.py"), str(number), str(SEEDS)) != "None\n"

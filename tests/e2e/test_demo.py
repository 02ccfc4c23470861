"""The README's demonstration, typed: the one long job of the tests."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.e2e.typed import MAKE, shell

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.night]

LIMIT_S = 900
"""It took 8 min beside other tests and a build of images."""


@pytest.mark.skipif(not os.environ.get("TORCH_PYTHON"), reason="TORCH_PYTHON names no Python with torch")
def test_the_demonstration_trains_a_script_of_torch() -> None:
    done = shell(f"{MAKE[0]} TRAINER=torch", LIMIT_S)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    summary = json.loads(Path(done.stdout.splitlines()[-1]).read_text())
    assert [name for name, station in summary["stations"].items() if not station["passed"]] == []
    assert summary["books"]["samples_done"] == summary["books"]["samples_total"] > 0
    assert summary["books"]["exact"]


@pytest.mark.parametrize("reference", [False, True])
def test_the_demonstration_keeps_exact_books(reference: bool) -> None:
    """With and without the reference, a second job that takes as long as the first and shows its quality beside it."""
    assert MAKE == ["make demo", "make test"]
    done = shell(MAKE[0], LIMIT_S, STRETTO_DEMO_REFERENCE=str(reference).lower())
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    summary = json.loads(Path(done.stdout.splitlines()[-1]).read_text())
    books = summary["samples"]
    assert books["samples_applied"] == books["samples_expected"] > 0
    assert (books["samples_lost"], books["samples_repeated"]) == (0, 0)
    assert [name for name, station in summary["stations"].items() if not station["passed"]] == []
    assert summary["quality"]["elastic"]["auc"] > 0.7
    assert len(summary["decisions"]) > 2
    assert all(decision["reasons"] for decision in summary["decisions"])

"""Job files, messages and frames under ten minutes of fuzzing each; the tests of each reader try generated ones."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.night,
    pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="needs atheris of `make setup`"),
]
ROOT = Path(__file__).parents[2]
MINUTES = 10
SEEDS = {
    "job_file": [*ROOT.glob("libs/*/stretto*/examples/*.yaml"), *ROOT.glob("proto/examples/*job-submitted*")],
    "frame": [*ROOT.glob("proto/examples/*.json")],
}


@pytest.mark.parametrize("reader", SEEDS)
def test_whatever_bytes_a_reader_gets_it_reads_or_refuses_them(reader: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(SEEDS[reader]):
        (corpus / str(number)).write_bytes((b"\0" if reader == "frame" else b"") + seed.read_bytes())
    command = [sys.executable, "-m", "tests.fuzz", reader, str(60 * MINUTES), str(corpus)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-6000:]}"

"""Automatic against simple partition, with `stretto run` on Keras programs that know nothing of it (GoldMiner Fig. 10).

- automatic: what ``stretto run`` does; the part of the step that depends on samples alone moves, too.
- simple: maps of tf.data move, as tf.data service would have it, and nothing of the step (simple_partition.py).
- alone: the plain program.

The programs (programs/) read lines of text, decode them in tf.data, and look up, hash and cross texts in layers of the
model. The same bytes run each way; the ways take turns. At first a program waits behind each step, as for an
accelerator, so its CPU is not the limit: then the CPU of a step is measured, that of the program itself by its own
clock, without what data workers spend. Steps per second follow without waits, where program and data worker have two
cores together.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from stretto_programs.run import SWITCH

from tests.bench.claims import Claim, at_least
from tests.bench.places import ROOT
from tests.bench.rows import Row, row

PROGRAMS = {"lookups": "Keras program with lookups in the model", "deepfm": "DeepFM form"}
WAYS = {
    "automatic": ("stretto_programs.run", {}),
    "untried": ("tests.bench.programs.home", {}),
    "simple": ("tests.bench.programs.simple_partition", {}),
    "alone": ("stretto_programs.run", {SWITCH: "off"}),
}
"""Module and environment of each."""
SPLIT = ("automatic", "simple")
DATA_WORKERS, STEPS, WARM_S, ROUNDS = 1, 60, 12.0, 2
LINES, WORDS, SEED = 40_000, 50_000, 3
LIMIT_S = 240.0
SPEED_BAR, CPU_BAR = 1.3, 0.75
WHY = "trainer and data worker share two cores; the paper's models are DeepFM 1.6, WDL 1.4 and a production model 1.43"
CLAIMS = (
    Claim("GoldMiner §5.3, Fig. 10", "DeepFM with automatic partitioning is faster than with simple by", "1.6 ×", WHY,
          at_least(1.6), f"steps/s automatic / simple partition, {PROGRAMS['deepfm']}"),
    Claim("GoldMiner §5.3, Fig. 10", "WDL with automatic partitioning is faster than with simple by", "1.4 ×",
          f"a Keras program with lookups in the model; {WHY}", at_least(1.4),
          f"steps/s automatic / simple partition, {PROGRAMS['lookups']}"),
)  # fmt: skip


class Figures(NamedTuple):
    """Steps per second of one run, CPU of the program's process for one, and the last line of `stretto run`."""

    per_s: float
    cpu_ms: float
    said: str


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder, "lines.csv"))
        return [each for name in PROGRAMS for each in _rows(name, Path(folder, "lines.csv"))]


def write(file: Path) -> None:
    """Write lines in the form of Criteo's: a label, 13 numbers and 26 texts."""
    chance = np.random.default_rng(SEED)
    labels, numbers = chance.integers(0, 2, LINES), chance.integers(0, 1000, (LINES, 13))
    texts = chance.zipf(1.3, (LINES, 26)) % WORDS
    with file.open("w") as opened:
        for label, row_numbers, row_texts in zip(labels, numbers.tolist(), texts.tolist(), strict=True):
            opened.write(f"{label},{','.join(map(str, row_numbers))},{','.join(f'{each:08x}' for each in row_texts)}\n")


def _rows(name: str, data: Path) -> list[Row]:
    alone = measured(name, "alone", data)
    rounds: list[Mapping[str, Figures]] = [{way: measured(name, way, data) for way in SPLIT} for _ in range(ROUNDS)]
    per_s, cpu_ms = (
        {way: statistics.median(getattr(each[way], figure) for each in rounds) for way in SPLIT}
        for figure in ("per_s", "cpu_ms")
    )
    speed = statistics.median(each["automatic"].per_s / each["simple"].per_s for each in rounds)
    cpu = statistics.median(each["automatic"].cpu_ms / each["simple"].cpu_ms for each in rounds)
    ok = speed >= SPEED_BAR or cpu <= CPU_BAR
    note = f"alone {alone.per_s:.1f}/s, {alone.cpu_ms:.1f} ms; load {os.getloadavg()[0]:.1f}"
    bar = f">= {SPEED_BAR:g} ×, or <= {CPU_BAR:g} × of the CPU"
    return [
        row(f"steps/s automatic / simple partition, {PROGRAMS[name]}", per_s["automatic"], "1/s", bar, ok, note,
            per_s["simple"], speed),
        row(f"trainer's CPU of a step, automatic / simple partition, {PROGRAMS[name]}", cpu_ms["automatic"], "ms", "",
            None, rounds[-1]["automatic"].said, cpu_ms["simple"], cpu),
    ]  # fmt: skip


def measured(name: str, way: str, data: Path, *arguments: str) -> Figures:
    """Run a program to its end. Raises RuntimeError where it fails, or where a way moves nothing."""
    module, environment = WAYS[way]
    script = Path(__file__).with_name("measured") / f"{name}.py"
    command = [sys.executable, "-m", module, "--data-workers", str(DATA_WORKERS), str(script), str(data)]
    ended = subprocess.run(
        [*command, str(STEPS), str(WARM_S), *arguments],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
        | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    said = [line.removeprefix("stretto: ") for line in ended.stderr.splitlines() if line.startswith("stretto: ")]
    if ended.returncode or (way != "alone" and "prepared" not in said[-1]):
        raise RuntimeError(f"{name}, {way}: {said} {ended.stderr[-300:]}")
    return Figures(**json.loads(ended.stdout.splitlines()[-1]), said="; ".join(said))


if __name__ == "__main__":
    for each in run():
        print(each)

"""Home's CPU for a step under `stretto run`, beside that of the same program alone, in each way in which work can move.

The CPU is the program's own process, all its threads, while data workers prepare its batches and it waits 100 ms behind
each step; partitioning.py has the programs' data and says how they are measured. In each program preparation is about
half of a step's CPU, or more. Each way must leave home at most :data:`BAR` of its CPU: a way that does not goes out.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path

from stretto_programs import run as program
from stretto_programs.lanes import trial

from tests.bench.programs.partitioning import measured, write
from tests.bench.rows import Row, row

BAR, ROUNDS = 0.7, 2
PROGRAMS = {
    "Keras fit, maps of tf.data": ("loops", "fit"),
    "Keras fit, crosses in the model": ("deepfm",),
    "function of an iterator, maps of tf.data": ("loops", "function"),
    "function of an iterator, hashes in the function": ("loops", "step"),
    "loop over elements": ("loops", "elements"),
}


def run() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        write(data := Path(folder, "lines.csv"))
        return [_row(name, data) for name in PROGRAMS]


def _row(name: str, data: Path) -> Row:
    script, *arguments = PROGRAMS[name]
    rounds = [[measured(script, way, data, *arguments) for way in ("untried", "alone")] for _ in range(ROUNDS)]
    ratio = statistics.median(ours.cpu_ms / alone.cpu_ms for ours, alone in rounds)
    ours, alone = (statistics.median(each.cpu_ms for each in one) for one in zip(*rounds, strict=True))
    note = f"{rounds[-1][0].said}; load {os.getloadavg()[0]:.1f}"
    return row(f"home's CPU of a step, {name}", ours, "ms", f"<= {BAR:g} x", ratio <= BAR, note, alone, ratio)


if __name__ == "__main__":
    if sys.argv[1:]:
        trial.STEPS = 0  # data workers are kept, whether they pay or not
        program.main()
    else:
        for each in run():
            print(each)

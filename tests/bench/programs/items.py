"""Steps per second of a program whose items two data workers compute as well, beside the same program without them.

A worker and two data workers of one core are processes as an installation starts them. One program trains blocks of
steps in turn, with items of ``stretto.agent.prepared`` and with those of its data set alone; a figure is the median
over pairs of blocks. A step waits 10 ms behind its batch of 64, as for an accelerator. Slow items wait 2 ms each, as
for a store; cheap ones are a multiplication, and 5 ms of each step compute, so that a cost beside it would show.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path

from stretto_wire import JobSpec

from tests.bench.places import ROOT
from tests.bench.rows import Row, row

DATA_WORKERS, BATCH, LIMIT_S = 2, 64, 200.0
PAIRS, STEPS = 8, 12
SPEED_BAR, CHEAP_BAR = 2.0, 0.98
PROGRAM = f"""\
import json, os, statistics, sys, time
import stretto.agent

WAITS_S, COMPUTES_S, STEPS, PAIRS = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), {PAIRS}


class Items:
    def __len__(self):
        return 10**9

    def __getitem__(self, number):
        if WAITS_S:
            time.sleep(WAITS_S)
        return number * number


def plain(numbers):
    return [dataset[number] for number in numbers]


dataset = Items()
shared = stretto.agent.prepared(dataset)
batches = stretto.agent.samples()
for _ in range(STEPS):  # data workers join
    shared.__getitems__(next(batches))
per_s = {{way: [] for way in ("shared", "alone")}}
for _ in range(PAIRS):
    for way, read in (("shared", shared.__getitems__), ("alone", plain)):
        began_s = time.monotonic()
        for _ in range(STEPS):
            numbers = next(batches)
            assert [*read(numbers)] == [number * number for number in numbers]
            time.sleep(0.01)
            until_s = time.thread_time() + COMPUTES_S
            while time.thread_time() < until_s:
                pass
        per_s[way].append(STEPS / (time.monotonic() - began_s))
print("figures", json.dumps(per_s), flush=True)
for _ in batches:
    pass
"""


def run() -> list[Row]:
    slow = _row("slow items, two data workers / none", 0.002, 0.0, STEPS, SPEED_BAR)
    return [slow, _row("cheap items, prepared / not", 0.0, 0.005, 5 * STEPS, CHEAP_BAR)]


def _row(name: str, waits_s: float, computes_s: float, steps: int, bar: float) -> Row:
    figures = measured(waits_s, computes_s, steps)
    ratio = statistics.median(ours / alone for ours, alone in zip(figures["shared"], figures["alone"], strict=True))
    ours, alone = (statistics.median(figures[way]) for way in ("shared", "alone"))
    note = f"batch {BATCH}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    return row(f"steps/s of a program, {name}", ours, "1/s", f">= {bar:g} x", ratio >= bar, note, alone, ratio)


def measured(waits_s: float, computes_s: float, steps: int) -> dict[str, list[float]]:
    """Return the steps per second of each block, by way. Raises RuntimeError: the program failed."""
    from trainer_harness import Cluster

    with tempfile.TemporaryDirectory(prefix="stretto-items-") as name:
        (folder := Path(name)).joinpath("train.py").write_text(PROGRAM)
        samples = BATCH * steps * (1 + 2 * PAIRS)
        command = ["python", "train.py", str(waits_s), str(computes_s), str(steps)]
        document = {
            "name": "items",
            "program": {"command": command, "path": name},
            "dataset": {"samples": samples, "batch_size": BATCH, "batches_per_shard": steps, "shuffle": False},
            "resources": {"data": {"mode": "always", "count": DATA_WORKERS, "cpu_cores": 1}},
        }
        cluster = Cluster(folder, JobSpec.parse(document))
        cluster.environment = {"PYTHONPATH": str(ROOT / "libs" / "trainer")}
        cluster.start()
        try:
            pods = [f"data-{number}" for number in range(DATA_WORKERS)]
            for pod in (*pods, "worker-0"):
                if pod == "worker-0":
                    cluster.announce_data_workers(*pods)
                cluster.launch(pod, **cluster.own_folder(pod))
            if cluster.processes["worker-0"].wait(LIMIT_S):
                raise RuntimeError(cluster.log("worker-0")[-1000:])
            told = next(line for line in cluster.log("worker-0").splitlines() if line.startswith("figures "))
            return json.loads(told.removeprefix("figures "))
        finally:
            cluster.stop()


if __name__ == "__main__":
    for each in run():
        print(each)

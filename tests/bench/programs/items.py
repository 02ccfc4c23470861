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
from tests.bench.rows import Row, row, row_at_most

DATA_WORKERS, BATCH, LIMIT_S = 2, 64, 200.0
PAIRS, STEPS = 8, 12
SPEED_BAR, CHEAP_BAR = 2.0, 0.98
HEAD = f"""
import json, os, statistics, sys, time
import stretto.agent

WAITS_S, COMPUTES_S, STEPS, PAIRS = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), {PAIRS}


class Items:
    def __len__(self):
        return 10**9

    def __getitem__(self, number):
        if WAITS_S:
            time.sleep(WAITS_S)
        return made(number)


def plain(numbers):
    return [dataset[number] for number in numbers]


dataset = Items()
shared = stretto.agent.prepared(dataset)
batches = stretto.agent.samples()
per_s = {{way: [] for way in ("shared", "alone")}}
cpu_s = {{way: [] for way in ("shared", "alone")}}


def blocks(take):
    for _ in range(STEPS):  # data workers join
        yield take(shared.__getitems__, next(batches))
    for _ in range(PAIRS):
        for way, read in (("shared", shared.__getitems__), ("alone", plain)):
            began_s, began_cpu_s = time.monotonic(), time.process_time()
            for _ in range(STEPS):
                yield take(read, next(batches))
            per_s[way].append(STEPS / (time.monotonic() - began_s))
            cpu_s[way].append((time.process_time() - began_cpu_s) / STEPS)
    for _ in batches:
        pass
"""
LOOP = f"""
def made(number):
    return number * number


{HEAD}

def take(read, numbers):
    assert [*read(numbers)] == [number * number for number in numbers]


for _ in blocks(take):
    time.sleep(0.01)
    until_s = time.thread_time() + COMPUTES_S
    while time.thread_time() < until_s:
        pass
print("figures", json.dumps([per_s, cpu_s]), flush=True)
"""
FIT = f"""
import keras
import numpy as np
import tensorflow as tf


def made(number):
    return np.full(32, number % 97, np.float32), np.float32([number % 2])


{HEAD}

def take(read, numbers):
    x, y = map(np.stack, zip(*read(numbers)))
    assert (x[:, 0] == [number % 97 for number in numbers]).all()
    assert (y[:, 0] == [number % 2 for number in numbers]).all()
    return x, y


model = keras.Sequential([keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
signature = tf.TensorSpec((None, 32)), tf.TensorSpec((None, 1))
waits = keras.callbacks.LambdaCallback(on_train_batch_end=lambda step, logs: time.sleep(0.01))
options = tf.data.Options()
options.experimental_optimization.inject_prefetch = False
data = tf.data.Dataset.from_generator(lambda: blocks(take), output_signature=signature)
model.fit(data.with_options(options), verbose=0, callbacks=[waits])
print("figures", json.dumps([per_s, cpu_s]), flush=True)
"""
HOME_BAR_MS = 1.0


def run() -> list[Row]:
    slow, _ = _rows("slow items, two data workers / none", LOOP, 0.002, 0.0, STEPS, SPEED_BAR)
    cheap, _ = _rows("cheap items, prepared / not", LOOP, 0.0, 0.005, 5 * STEPS, CHEAP_BAR)
    return [slow, cheap, *_rows("Keras fit, slow items, two data workers / none", FIT, 0.002, 0.0, STEPS, SPEED_BAR)]


def _rows(name: str, program: str, waits_s: float, computes_s: float, steps: int, bar: float) -> list[Row]:
    """Return the rows of a program: its speed, and what sending and receiving costs its own process in a step."""
    per_s, cpu_s = measured(program, waits_s, computes_s, steps)
    ratio = statistics.median(ours / alone for ours, alone in zip(per_s["shared"], per_s["alone"], strict=True))
    ours, alone = (statistics.median(per_s[way]) for way in ("shared", "alone"))
    note = f"batch {BATCH}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    speed = row(f"steps/s of a program, {name}", ours, "1/s", f">= {bar:g} x", ratio >= bar, note, alone, ratio)
    more_ms = 1000 * statistics.median(ours - own for ours, own in zip(cpu_s["shared"], cpu_s["alone"], strict=True))
    return [speed, row_at_most(f"more CPU of home in a step, {name}", more_ms, "ms", HOME_BAR_MS, note)]


def measured(program: str, waits_s: float, computes_s: float, steps: int) -> list[dict[str, list[float]]]:
    """Return the steps per second of each block, and the program's CPU in a step, by way.

    Raises RuntimeError: the program failed.
    """
    from trainer_harness import Cluster

    with tempfile.TemporaryDirectory(prefix="stretto-items-") as name:
        (folder := Path(name)).joinpath("train.py").write_text(program)
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

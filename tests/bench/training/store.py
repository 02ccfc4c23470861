"""The parameter store alone: no socket, one process, one thread. Rows of 16 weights with Adagrad (128 bytes).

Batches are 13,000 unique keys, uniform over all rows: the worst case of a step's pull and push. A row's share of a pull
(find and copy its weights) and of a push (find and update it, judgement and records included) stand beside a NumPy
copy by index of as many bytes, in turns in the same run, which has no key to find. Growing is 0 to 4 million rows by
pushes of keys that are all new. Memory is what the process is larger by (resident), at 5 million rows. All in one
process for each size.

python -m tests.bench.training.store 1000000
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from time import perf_counter
from typing import Any

import numpy as np
import psutil
from stretto_parameters import Layout, Own, Push, Store, Table, checksums
from stretto_parameters.optimizers import Adagrad

from tests.bench.places import ROOT
from tests.bench.rows import Row, row, row_at_most

TABLE = Table(16, Adagrad(0.05))
LAYOUT = Layout((TABLE,), 1200, buckets=64, slices=12)
SIZES = (1_000_000, 5_000_000)
GROWN_ROWS = 4_000_000
BATCH = 13_000
ROUNDS, TURNS = 5, 40
MEMORY_BYTES = 2**35
COPY_BAR = 0.5
WORST_PUSH_BAR_MS = 40.0
ROW_BYTES_BAR = 170.0
"""0.6 of what a row of the TensorFlow engine takes at this size (277 to 292 bytes)."""


def run() -> list[Row]:
    """Return the rows of each size."""
    found = {size: child(str(size)) for size in SIZES}
    return [*(each for size in SIZES for each in speeds(size, found[size])), *growth(child("grow"), found[SIZES[-1]])]


def child(task: str) -> dict[str, Any]:
    """Return the answer of a new process for one task: a number of rows, or `grow`."""
    command = [sys.executable, "-m", "tests.bench.training.store", task]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def speeds(size: int, found: dict[str, Any]) -> list[Row]:
    name = f"{size // 10**6} M rows"
    note = f"{found['kernels']} kernels, {BATCH} uniform keys, medians of {ROUNDS} rounds in turns"
    return [
        row(f"store: a row of a pull, {name}", found["pull_ns"], "ns", "", None, note, found["take_ns"]),
        row(f"store: a row of a push, {name}", found["push_ns"], "ns", "", None, note, found["put_ns"]),
    ]


def growth(grown: dict[str, Any], largest: dict[str, Any]) -> list[Row]:
    told = f"pushes of {BATCH} new rows: median {grown['median_ms']:.1f} ms, p99 {grown['p99_ms']:.1f}"
    bytes_told = f"payload {4 * 32 + 8}; pages touched as the store tells them: {largest['told_bytes']:.1f} a row"
    copy, plain = largest["copy_gb_per_s"], largest["plain_gb_per_s"]
    return [
        row("store: all rows copied with checksums, 5 M rows", copy, "GB/s", f">= {COPY_BAR:g}",
            copy >= COPY_BAR * plain,
            "bucket by bucket; beside it a plain copy of as many bytes into the same memory", plain),
        row_at_most("store: worst push while growing to 4 M rows", grown["worst_ms"], "ms", WORST_PUSH_BAR_MS, told),
        row_at_most("store: memory of a row at 5 M rows", largest["row_bytes"], "B", ROW_BYTES_BAR, bytes_told),
    ]  # fmt: skip


def push_of(shard: int, keys: np.ndarray, gradients: np.ndarray) -> Push:
    slices = np.zeros((LAYOUT.slices, LAYOUT.slice_length), np.float32)
    claim = np.ones(LAYOUT.columns, np.bool_)
    return Push(shard, 0, 0, 512, 0, claim, [keys], [gradients[: len(keys)]], slices, np.zeros(0, np.float32))


def keys_of(size: int) -> np.ndarray:
    """Return different keys that look random: SplitMix64 permutes all 64-bit integers."""
    return checksums.split_mix(np.arange(1, size + 1, dtype=np.uint64) * np.uint64(checksums.MULTIPLIER))


def filled(keys: np.ndarray) -> tuple[Store, list[float]]:
    """Return a store with a row for each key, and the seconds of each push that made them."""
    store = Store(LAYOUT, MEMORY_BYTES)
    store.set_own(range(LAYOUT.columns), Own.MINE)
    gradients = np.ones((BATCH, TABLE.dimension), np.float32)
    seconds: list[float] = []
    for shard, begin in enumerate(range(0, len(keys), BATCH)):
        push = push_of(shard, np.sort(keys[begin : begin + BATCH]), gradients)
        started = perf_counter()
        store.push(push)
        seconds.append(perf_counter() - started)
        store.finish([shard])
    return store, seconds


def measured(size: int) -> dict[str, Any]:
    random = np.random.default_rng(2)
    keys = keys_of(size)
    before = psutil.Process().memory_info().rss
    store, _ = filled(keys)
    row_bytes = (psutil.Process().memory_info().rss - before) / size
    weights, whole = np.zeros((size, 16), np.float32), np.zeros((size, 32), np.float32)
    weights[:], whole[:] = 1.0, 1.0
    gradients = random.normal(0, 1, (BATCH, TABLE.dimension)).astype(np.float32)
    slices = np.arange(LAYOUT.slices)
    times: dict[str, list[float]] = {"pull_ns": [], "push_ns": [], "take_ns": [], "put_ns": []}
    shard = size
    for _ in range(ROUNDS):
        spent = dict.fromkeys(times, 0.0)
        for _ in range(TURNS):
            at = random.choice(size, BATCH, replace=False)
            chosen, shard = np.sort(keys[at]), shard + 1
            push = push_of(shard, chosen, gradients)
            marks = [perf_counter()]
            store.pull([chosen], slices)
            marks.append(perf_counter())
            store.push(push)
            marks.append(perf_counter())
            weights.take(at, axis=0)
            marks.append(perf_counter())
            whole[at] = whole[at]
            marks.append(perf_counter())
            store.finish([shard])
            for name, begin, end in zip(times, marks[:-1], marks[1:], strict=True):
                spent[name] += end - begin
        for name, seconds in spent.items():
            times[name].append(seconds / TURNS / BATCH * 1e9)
    medians = {name: statistics.median(each) for name, each in times.items()}
    told = store.memory_bytes() / size
    rest = {"row_bytes": row_bytes, "told_bytes": told, "kernels": store.kernels.name}
    return {**medians, **rest, **copied(store)}


def copied(store: Store) -> dict[str, float]:
    """Return the speed of copying all rows with their checksums, and of copying as many bytes, in GB/s."""
    keys, rows = (np.ones(size_bytes, np.uint8) for size_bytes in (8 * 2**17, 128 * 2**17))
    source = np.ones(136 * int(store.sizes().sum()), np.uint8)  # as large: nothing of it in a cache
    seconds: dict[str, list[float]] = {"copy": [], "plain": []}
    total_bytes = 0
    for _ in range(ROUNDS):
        spent = dict.fromkeys(seconds, 0.0)
        total_bytes = 0
        for bucket, size in enumerate(store.sizes().tolist()):
            begun = perf_counter()
            store.copy_keys(bucket, 0, keys[: 8 * size])
            store.copy_rows(bucket, 0, rows[: 128 * size])
            ended = perf_counter()
            np.copyto(keys[: 8 * size], source[total_bytes:][: 8 * size])
            np.copyto(rows[: 128 * size], source[total_bytes + 8 * size :][: 128 * size])
            spent["copy"] += ended - begun
            spent["plain"] += perf_counter() - ended
            total_bytes += 136 * size
        for name, each in spent.items():
            seconds[name].append(each)
    return {f"{name}_gb_per_s": total_bytes / 1e9 / statistics.median(each) for name, each in seconds.items()}


def grown() -> dict[str, float]:
    _, seconds = filled(keys_of(GROWN_ROWS))
    ordered = sorted(1e3 * each for each in seconds)
    return {
        "worst_ms": ordered[-1],
        "median_ms": statistics.median(ordered),
        "p99_ms": ordered[len(ordered) * 99 // 100],
    }


if __name__ == "__main__":
    json.dump(grown() if sys.argv[1] == "grow" else measured(int(sys.argv[1])), sys.stdout)

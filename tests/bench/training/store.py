"""The parameter store alone: no socket, one process, one thread. Rows of 16 weights with Adagrad (128 bytes).

Batches are 13,000 unique keys, uniform over all rows: the worst case of a step's pull and push. A row's share of a pull
(find and copy its weights) and of a push (find and update it, judgement and records included) stand beside a NumPy
copy by index of as many bytes, in turns in the same run, which has no key to find. Growing is 0 to 4 million rows by
pushes of keys that are all new. Memory is what the process is larger by (resident), at 5 million rows. All in one
process for each size. The policy of rows is measured twice: what it keeps out of the demonstration's stream, at which
loss; and how long pushes wait while rows expire, which `expire` compares with a store of as many rows in turns.

python -m tests.bench.training.store 1000000
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import psutil
from stretto_parameters import Layout, Own, Push, RowPolicy, Store, Table, checksums
from stretto_parameters.optimizers import Adagrad

from tests.bench.experiments import staleness
from tests.bench.places import ROOT
from tests.bench.rows import Row, row, row_at_most

TABLE = Table(16, Adagrad(0.05))
LAYOUT = Layout((TABLE,), 1200, buckets=64, slices=12)
SIZES = (1_000_000, 5_000_000)
GROWN_ROWS = 4_000_000
BATCH = 13_000
ROUNDS, TURNS = 5, 40
MEMORY_BYTES = 2**35
STREAM = 409_600
"""Samples of the demonstration's stream on which admission is tried."""
SEEDS = (7, 8, 9, 10)
ADMITS = (1, 2, 3)
ADMITTED_AT = 2
LIFE_PUSHES = 100
"""Pushes without a change after which a row expires."""
COPY_BAR = 0.5
WORST_PUSH_BAR_MS = 40.0
ROW_BYTES_BAR = 170.0
"""0.6 of what a row of the TensorFlow engine takes at this size (277 to 292 bytes)."""


def run() -> list[Row]:
    """Return the figures of each size, and of the policy of rows."""
    found = {size: child(str(size)) for size in SIZES}
    of_sizes = (each for size in SIZES for each in speeds(size, found[size]))
    return [*of_sizes, *growth(child("grow"), found[SIZES[-1]]), *admission(), expiry(child("expire"))]


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


def admission() -> list[Row]:
    """Train Wide & Deep on the demonstration's stream with several seeds, in turns with and without admission."""
    turns = [[staleness.measured("delayed", STREAM, 0, seed, admit) for admit in ADMITS] for seed in SEEDS]
    rows = {admit: statistics.mean(turn[i]["rows"] for turn in turns) for i, admit in enumerate(ADMITS)}
    losses = {admit: [turn[i]["loss"] for turn in turns] for i, admit in enumerate(ADMITS)}
    spread = max(losses[1]) - min(losses[1])
    told = f"Wide & Deep, {STREAM:,} samples, seeds {SEEDS}; rows by `admit` {rows}. The bar is out of reach of 2 "
    told += "here: a new category of this stream comes three times in the mean, so that a fifth of all keys come once"
    found: list[Row] = []
    for admit in ADMITS[1:]:
        kept, worse = rows[admit] / rows[1], statistics.mean(losses[admit]) - statistics.mean(losses[1])
        bar = "<= 0.6" if admit == ADMITTED_AT else ""
        found += [
            row(f"rows: {admit}, of the rows that all keys have", rows[admit], "rows", bar,
                kept <= 0.6 if bar else None, told, rows[1], kept),
            row(f"rows: {admit}, held-out loss more than with all rows", worse, "", f"<= {spread:.5f}", worse <= spread,
                f"the bar is the spread of the seeds; losses {losses}"),
        ]  # fmt: skip
    return found


def expiry(found: dict[str, float]) -> Row:
    told = (
        f"{found['expired']:,.0f} rows expired; medians {found['median_ms']:.2f} and {found['plain_median_ms']:.2f} ms"
    )
    p99, plain = found["p99_ms"], found["plain_p99_ms"]
    return row("store: p99 of a push while rows expire", p99, "ms", "<= 2", p99 <= 2 * plain, told, plain)


def push_of(shard: int, keys: np.ndarray, gradients: np.ndarray) -> Push:
    slices = np.zeros((LAYOUT.slices, LAYOUT.slice_length), np.float32)
    claim = np.ones(LAYOUT.columns, np.bool_)
    return Push(shard, 0, 0, 512, 0, claim, [keys], [gradients[: len(keys)]], slices, np.zeros(0, np.float32))


def keys_of(size: int) -> np.ndarray:
    """Return different keys that look random: SplitMix64 permutes all 64-bit integers."""
    return checksums.split_mix(np.arange(1, size + 1, dtype=np.uint64) * np.uint64(checksums.MULTIPLIER))


def filled(keys: np.ndarray, layout: Layout = LAYOUT) -> tuple[Store, list[float]]:
    """Return a store with a row for each key, and the seconds of each push that made them."""
    store = Store(layout, MEMORY_BYTES)
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


def expiring() -> dict[str, float]:
    """Push batches to two stores in turns, one of which drops about as many rows as are made."""
    random = np.random.default_rng(3)
    layouts = LAYOUT, replace(LAYOUT, rows=RowPolicy(expire_samples=512 * LIFE_PUSHES))
    stores = [filled(keys_of(SIZES[0]), layout)[0] for layout in layouts]
    gradients = np.ones((BATCH, TABLE.dimension), np.float32)
    keys, seconds = keys_of(3 * SIZES[0]), ([], [])
    for number in range(3 * LIFE_PUSHES):  # half of a batch is new, half is of the last rows
        newest = SIZES[0] + number * BATCH // 2
        at = np.append(np.arange(newest, newest + BATCH // 2), random.integers(newest - SIZES[0], newest, BATCH // 2))
        push = push_of(10**6 + number, np.unique(keys[at]), gradients)
        for store, spent in zip(stores, seconds, strict=True):
            begun = perf_counter()
            store.push(push)
            spent.append(1e3 * (perf_counter() - begun))
            store.finish([push.shard])
    plain, found = (sorted(each[LIFE_PUSHES:]) for each in seconds)
    return {
        "expired": stores[1].row_account().expired,
        "p99_ms": found[len(found) * 99 // 100],
        "plain_p99_ms": plain[len(plain) * 99 // 100],
        "median_ms": statistics.median(found),
        "plain_median_ms": statistics.median(plain),
    }


if __name__ == "__main__":
    tasks = {"grow": grown, "expire": expiring}
    json.dump(tasks[sys.argv[1]]() if sys.argv[1] in tasks else measured(int(sys.argv[1])), sys.stdout)

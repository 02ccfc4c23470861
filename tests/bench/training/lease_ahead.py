"""A worker that holds one shard ahead, beside one that does not: steps per second with shards of 4, 16 and 64 batches.

One worker process with one parameter server and a dispatcher process on a bus. It runs the product's loop; a reader
waits 5 ms for each batch, as for a store. Both sides take turns in the same process, on the same job. The side without
asks for no shard ahead, as a worker of before: each shard ends with its last push, the request for the next one, its
first read and its first pull, one after the other.

python -m tests.bench.training.lease_ahead [seconds of a round]
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from collections.abc import Callable
from typing import NamedTuple

from tests.bench.log.dispatcher import dispatching, submit
from tests.bench.processes import OURS, Process, Servers
from tests.bench.rows import Row, row

ROUNDS = 12
"""of each side"""
BARS = {4: 1.05, 16: 0.99, 64: 0.99}
"""Least ratio by batches of a shard. It never costs anything; the shorter the shards, the more it brings."""


class Round(NamedTuple):
    """Steps per second of a round, and milliseconds of the worker's CPU per step."""

    rate: float
    cpu_ms: float


def run(seconds: float = 2.0) -> list[Row]:
    return asyncio.run(_measure(seconds))


async def _measure(seconds: float) -> list[Row]:
    worker = Process("-m", "tests.bench.training.lease_ahead_worker")
    try:
        async with dispatching() as dispatcher:
            rows: list[Row] = []
            for batches in BARS:
                await submit(dispatcher.client, f"lease-{batches}", batches)
                rows += await asyncio.to_thread(_rows, worker, dispatcher.url, batches, seconds)
            return rows
    finally:
        worker.kill()


def _rows(worker: Process, url: str, batches: int, seconds: float) -> list[Row]:
    """Measure one job, which has a parameter server of its own: records are by shard."""
    servers = Servers(OURS)
    try:
        servers.start(1)
        servers.place()
        worker.ask(do="connect", servers=servers.addresses, url=url, batches=batches, **servers.access)

        def train(pipeline: bool, is_ahead: bool) -> Round:
            return Round(**worker.ask(do="train", pipeline=pipeline, is_ahead=is_ahead, seconds=seconds))

        return [_row(train, batches, pipeline) for pipeline in (True, False)]
    finally:
        servers.kill()


def _row(train: Callable[[bool, bool], Round], batches: int, pipeline: bool) -> Row:
    train(pipeline, True)  # warm
    rounds: dict[bool, list[Round]] = {True: [], False: []}
    for number in range(ROUNDS):
        for is_ahead in (True, False) if number % 2 else (False, True):
            rounds[is_ahead].append(train(pipeline, is_ahead))
    ahead, without = (_quick([each.rate for each in rounds[side]]) for side in (True, False))
    cpu = [statistics.median(each.cpu_ms for each in rounds[side]) for side in (True, False)]
    medians = [statistics.median(each.rate for each in rounds[side]) for side in (True, False)]
    bar = BARS[batches]
    return row(
        f"one shard ahead, shards of {batches} batches{'' if pipeline else ', model.pipeline: false'}",
        ahead,
        "steps/s",
        f">= {bar:g} x without",
        ahead >= bar * without,
        f"reader of 5 ms; ratio of medians {medians[0] / medians[1]:.2f}; worker's CPU per step {cpu[0]:.1f} ms, "
        f"without {cpu[1]:.1f} ms; load {os.getloadavg()[0]:.1f}",
        without,
    )


def _quick(rates: list[float]) -> float:
    """Return the upper quartile: the machine's other work can only slow a round down."""
    return statistics.quantiles(rates, n=4)[2]


if __name__ == "__main__":
    json.dump({"rows": run(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)}, sys.stdout, indent=2)
    print()

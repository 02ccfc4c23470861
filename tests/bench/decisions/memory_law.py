"""The memory law of a parameter server on a real store: resident memory is a base and what the store tells.

A child process grows a store from nothing to 4 million rows by pushes of new rows, as the trainer's server does. At
every push it reads its resident memory, and what the store tells of its tables and of a row. From what was read up to
a million rows, the law foretells the rest.

python -m tests.bench.decisions.memory_law
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import psutil
from stretto_core.oom.growth import Estimate
from stretto_core.oom.usage import ServerUsage, UsagePoint, bytes_at, row_cost

from tests.bench.places import ROOT
from tests.bench.rows import Row, row_at_most
from tests.bench.training.store import BATCH, GROWN_ROWS, LAYOUT, MEMORY_BYTES, TABLE, keys_of, push_of

SEEN_ROWS = 1_000_000
MIB = 2**20


def run() -> list[Row]:
    """Return the rows of one growth."""
    command = [sys.executable, "-m", "tests.bench.decisions.memory_law"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    points = [UsagePoint(**each) for each in json.loads(done.stdout)]
    server = ServerUsage()
    for point in points:
        if point.rows <= SEEN_ROWS:
            server.add(point, 2**40, LAYOUT.buckets)
    last = points[-1]
    new = float(last.rows - server.rows)
    foreseen = bytes_at(server, Estimate(new, new, new), row_cost([server]))
    bases = [point.base_bytes / MIB for point in points[1:]]
    error = 100 * abs(foreseen.mean / last.used_bytes - 1)
    width = 100 * (foreseen.high / foreseen.mean - 1)
    outside = not foreseen.low <= last.used_bytes <= foreseen.high
    told = f"{last.used_bytes / MIB:.0f} MiB came, {foreseen.mean / MIB:.0f} foretold from {server.rows:,} rows"
    base = f"{bases[-1]:.1f} MiB of this process at the end; its tables grew to {last.table_bytes / MIB:.0f} MiB"
    return [
        row_at_most("memory law: base of a store, from its first batch to 4 M rows", max(bases) - min(bases), "MiB",
                    2, base),
        row_at_most("memory law: resident memory at 4 M rows, error", error, "%", 2, told),
        row_at_most("memory law: half of the interval there", width, "%", 3, "growth known, 90 %"),
        row_at_most("memory law: outside the interval", int(outside), "", 0, ""),
    ]  # fmt: skip


def grow() -> list[dict[str, Any]]:
    """Grow a store in this process; return what it tells, and its resident memory, after each push."""
    from stretto_parameters import Own, Store

    keys, process = keys_of(GROWN_ROWS), psutil.Process()
    store = Store(LAYOUT, MEMORY_BYTES)
    store.set_own(range(LAYOUT.columns), Own.MINE)
    gradients, points = np.ones((BATCH, TABLE.dimension), np.float32), list[dict[str, Any]]()
    for shard, begin in enumerate(range(0, len(keys), BATCH)):
        store.push(push_of(shard, np.sort(keys[begin : begin + BATCH]), gradients))
        store.finish([shard])
        used, told = process.memory_info().rss, store.memory_bytes()
        points.append(
            {"rows": store.categories(), "used_bytes": used, "table_bytes": told, "row_bytes": store.row_bytes()}
        )
    return points


if __name__ == "__main__":
    print(json.dumps(grow()))

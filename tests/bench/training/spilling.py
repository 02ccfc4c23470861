"""A model four times its memory: steps per second of servers that spill, beside servers that have room for all rows.

Two workers and two parameter servers of each side train Wide & Deep on the same samples, in turns of one run. The rows
are made beforehand, saved once, and restored by both sides. The tight servers may keep a quarter of the bytes that the
roomy ones take, entries and indices included. Their records are dropped from the page cache all the time, so that a
cold row costs a read of the disk. The disk's own rate is measured in the same run: random reads of a page, as many at
once as a batch has. The bound is what it allows: min(1, its reads a second / (reads a step x steps a second with room
for all)). The tight side trains with look-ahead, and without: its workers name the rows of the batches to come, or not.

python -m tests.bench.training.spilling [seconds]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from stretto.engine import Access, Key, Layout, Parameters
from stretto.engine.spilling import random_reads_per_s
from stretto.examples.wide_deep import WideDeep
from stretto.readers import Batch
from stretto_parameters import kernels

from tests.bench.claims import Claim, above
from tests.bench.processes import Process, Servers, first_columns, moves_to
from tests.bench.rows import Row, row, row_at_most
from tests.bench.training.trainer import Job

ROUNDS, ROUND_S = 6, 8.0
FILLED, FILLED_BATCH = 300, 16_384
SHARE = 0.25
BAR, LOOK_AHEAD_BAR = 0.8, 0.9


CLAIMS = (
    Claim("HeterPS §3", "parameters that are used often are in memory, the others on SSDs or disks", "no figure",
          "steps a second with a quarter of the bytes in memory, beside all of them", above(0.0),
          "a model 4 x its memory, the demo's stream, without look-ahead"),
    Claim("HeterPS §3", "what workers will need is fetched before it is needed", "no figure",
          "theirs are input data; ours, too, and the cold rows of the batches that come", above(0.0),
          "a model 4 x its memory, the demo's stream"),
)  # fmt: skip


class Demo(WideDeep):
    """The demonstration's stream, with more categories."""

    def __init__(self) -> None:
        sizes = {"categories": 600_000, "new_categories": 1_000_000, "samples": 10_000_000}
        super().__init__(hidden="256,128,64", embedding_dim=16, **sizes)


class Zipf(Demo):
    """Keys by Zipf's law, exponent 1.05, of 60,000 a field."""

    def __init__(self) -> None:
        super().__init__()
        weights = 1 / np.arange(1, 60_001) ** 1.05
        self.shares = np.cumsum(weights / weights.sum())

    def read(self, start: int, length: int) -> Batch:
        batch = super().read(start, length)
        drawn = np.random.default_rng(start).random(batch["categorical"].shape)
        return {**batch, "categorical": np.searchsorted(self.shares, drawn).astype(np.int64)}


TASKS = {"the demo's stream": Demo, "Zipf's law": Zipf}


@dataclass(frozen=True, slots=True)
class Turn:
    """Steps a second of a round, and the cold rows that were read for each step."""

    rate: float
    reads: float


class Side:
    """A job of two servers and two workers that train `task` from a common checkpoint."""

    def __init__(self, task: str, folder: str, budget_bytes: int = 0) -> None:
        self.job = Job()
        self.job.workers = [
            Process("-m", "tests.bench.training.trainer_worker", f"tests.bench.training.spilling:{task}")
            for _ in range(2)
        ]
        [layout, _] = [worker.ask(do="layout")["layout"] for worker in self.job.workers]
        spill = {"folder": folder, "budget_bytes": budget_bytes} if budget_bytes else None
        self.job.servers = Servers(self.job.engine, layout, spill=spill)
        self.job.servers.start(2)
        self.job.stream = True

    def tiers(self, **given: Any) -> list[dict[str, Any]]:
        return [process.ask(do="tiers", **given) for process in self.job.servers.processes]

    def load(self, paths: list[str]) -> None:
        """Restore the common checkpoint."""
        for index, columns in first_columns(self.job.servers.addresses).items():
            self.job.servers.processes[index].ask(do="load", paths=paths, columns=columns)
        self.job.connect()

    def turn(self, hints: bool = True) -> Turn:
        """Train; hints: workers name the rows of the batches to come."""
        self.job.connect(hints=hints)
        before = sum(each.get("rows_read", 0) for each in self.tiers())
        steps = self.job.round(ROUND_S)
        reads = sum(each.get("rows_read", 0) for each in self.tiers()) - before
        return Turn(steps.rate, reads / (steps.rate * ROUND_S))

    def copied(self, folder: str) -> tuple[float, float]:
        """Save images, move columns to a third server while workers train; return (longest pause, longest freeze)."""
        servers, seconds = self.job.servers, 2 * ROUND_S
        for worker in self.job.workers:
            worker.ask(do="train", seconds=seconds)
        paths = [f"{folder}/again-{index}" for index in range(2)]
        saved = [each.ask(do="save", path=path) for path, each in zip(paths, servers.processes, strict=True)]
        servers.start(1)
        for worker in self.job.workers:
            worker.ask(do="meet", servers=servers.addresses)
        moved = servers.processes[2].ask(do="move", sources=moves_to(2, [0, 1]), addresses=servers.addresses)
        for worker in self.job.workers:
            worker.ask(do="collect")
        return max(each["pause_seconds"] for each in saved), max(step[2] for step in moved["steps"])


def fill(task: WideDeep, servers: Servers) -> None:
    """Make the rows of the first samples: pushes without a gradient."""
    layout = Layout.from_dict(servers.layout)
    access = Access(Key.of(servers.access["key"].encode()))
    parameters = Parameters(layout, dict(servers.addresses), worker=9, access=access)
    parameters.seed(np.zeros(layout.dense_size, np.float32))
    dense = np.zeros(layout.dense_size, np.float32)
    for shard in range(FILLED):
        keys = layout.index(task.keys(task.read(shard * FILLED_BATCH, FILLED_BATCH)))
        rows = [np.zeros((len(each), 16), np.float32) for each in keys.tables]
        where = {"shard": 10**8 + shard, "attempt": 1, "start": 0, "stop": FILLED_BATCH}
        parameters.push(keys, rows, dense, **where)
        parameters.forget([where["shard"]])
    parameters.close()


@contextmanager
def sides(name: str, folder: str) -> Iterator[tuple[Side, Side, int]]:
    """Yield the roomy side, the tight side, and the bytes that the rows of a server take in the first."""
    task = TASKS[name]
    with ExitStack() as stack:
        roomy = Side(task.__name__, folder)
        stack.callback(roomy.job.kill)
        roomy.job.servers.place()
        fill(task(), roomy.job.servers)
        paths = [f"{folder}/image-{index}" for index in range(2)]
        for path, process in zip(paths, roomy.job.servers.processes, strict=True):
            process.ask(do="save", path=path)
        full_bytes = max(each["memory_bytes"] for each in roomy.tiers())
        tight = Side(task.__name__, folder, int(SHARE * full_bytes))
        stack.callback(tight.job.kill)
        tight.load(paths)
        roomy.job.connect()
        tight.tiers(uncached=True)
        yield roomy, tight, full_bytes


def measured(name: str) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        reads_per_s = statistics.median(random_reads_per_s(Path(folder), kernels.load()) for _ in range(5))
        with sides(name, folder) as (roomy, tight, full_bytes):
            for side in (roomy, tight):
                side.turn()
            turns = [(roomy.turn(), tight.turn(), tight.turn(hints=False)) for _ in range(ROUNDS)]
            found = tight.tiers()
            pauses, freezes = zip(*(side.copied(folder) for side in (roomy, tight)), strict=True)
            counted = {count for side in (roomy, tight) for each in side.tiers() for count in each["samples"] if count}
    room = statistics.median(each.rate for each, _, _ in turns)
    need = statistics.median(each.reads for _, _, each in turns)
    bound = min(1.0, reads_per_s / max(1.0, need * room))
    cold = sum(each["cold_rows"] for each in found)
    most = max(each["memory_bytes"] for each in found)
    note = (
        f"{SHARE:g} of {full_bytes / 1e6:.0f} MB a server ({most / 1e6:.0f} at the end), {cold} rows cold; "
        f"{need:.0f} reads a step; the disk does {reads_per_s:.0f} a second: bound {bound:.2f}; books "
        f"{'exact' if len(counted) <= 2 else 'NOT EXACT'}"
    )
    rows: list[Row] = []
    for place, bar, told in ((1, LOOK_AHEAD_BAR, ""), (2, BAR, ", without look-ahead")):
        rate = statistics.median(turn[place].rate for turn in turns)
        ratio = statistics.median(turn[place].rate / turn[0].rate for turn in turns)
        what, ok = f"a model 4 x its memory, {name}{told}", ratio >= bar * bound
        rows.append(row(what, rate, "steps/s", f">= {bar:g} x bound", ok, note, room, ratio))
    for what, bar, (of_roomy, of_tight) in (("push waits for an image", 1.0, pauses), ("freeze", 1.2, freezes)):
        told = "1 image, or 1 move of a third of the columns, while both workers train"
        name_of = f"longest {what} of a spilled server, {name}"
        rows.append(row_at_most(name_of, 1e3 * of_tight, "ms", None, told, 1e3 * of_roomy))
        rows[-1]["bar"], rows[-1]["ok"] = f"<= {bar:g} x", of_tight <= bar * of_roomy
    return rows


def run() -> list[Row]:
    """Return the rows of both streams."""
    return [each for name in TASKS for each in measured(name)]


if __name__ == "__main__":
    ROUND_S = float(sys.argv[1]) if len(sys.argv) > 1 else ROUND_S
    for each in run():
        print(each)

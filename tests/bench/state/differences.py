"""Training with a checkpoint every ten seconds beside training without, and the bytes of these checkpoints.

1 GB of rows (5 million of 200 bytes) on two servers, two workers: each step pulls and pushes 13,312 Zipf-distributed
keys, and computes for 8 ms between. Intervals with and without a checkpoint take turns. Each of these has what changed
in ten seconds, in shared memory and then in the store. Its bytes depend on how often the same rows come again in that
time, so there are two exponents; the bar is for the larger.

python -m tests.bench.state.differences
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from stretto.engine import Key, one_table
from stretto_checkpoints.memory import SharedMemory
from stretto_installation.one_machine.leftovers import claim_memory, free_memory, sweep_memory

from tests.bench.processes import Process, ask_all, first_columns
from tests.bench.rows import Row, row

SERVERS = WORKERS = 2
LAYOUT = one_table(24, 100_000)
ROWS = 5_030_000
EVERY_S = 10.0
ROUNDS = 5
EXPONENTS = (1.05, 1.5)


class Job:
    """Servers with a gigabyte of rows, workers that train, and checkpoints of them."""

    def __init__(self, folder: Path, exponent: float) -> None:
        self.folder = folder
        self.memory = SharedMemory(claim_memory(folder), folder)
        self.servers = [Process("-m", "tests.bench.state.checkpoint_ps") for _ in range(SERVERS)]
        self.workers = [Process("-m", "tests.bench.state.differences_worker") for _ in range(WORKERS)]
        key, layout = Key.random().pem.decode(), LAYOUT.to_dict()
        started = [
            server.ask(do="start", index=i, layout=layout, folder=str(folder), key=key)
            for i, server in enumerate(self.servers)
        ]
        columns = first_columns(range(SERVERS))
        for i, server in enumerate(self.servers):
            server.ask(do="fill_ids", columns=columns[i], rows=ROWS)
        addresses = {i: answer["address"] for i, answer in enumerate(started)}
        told = {"layout": layout, "servers": addresses, "key": key, "rows": ROWS, "exponent": exponent}
        for i, worker in enumerate(self.workers):
            worker.ask(number=i, **told)
        self.names: list[str] = []

    def steps(self) -> tuple[int, float]:
        answers = ask_all(self.workers)
        return sum(answer["steps"] for answer in answers), time.monotonic()

    def save(self, base: str) -> dict[str, Any]:
        """Take a checkpoint and wait until it is stored."""
        name = f"c{len(self.names)}"
        self.names.append(name)
        rooms = {f"ps-{i}": answer["room"] for i, answer in enumerate(ask_all(self.servers, do="room", base=base))}
        paths = self.memory.reserve("bench", name, rooms)
        for i, server in enumerate(self.servers):
            store = f"file://{self.folder}/{name}"
            server.send(do="save", name=name, store=store, memory=paths[f"ps-{i}"], base=base)
        answers = [server.receive() for server in self.servers]
        assert all(answer["memory"] for answer in answers), "it has to be in shared memory"
        assert all(bool(answer["part"]["bases"]) == bool(base) for answer in answers)
        pause_s = max(answer["pause_s"] for answer in answers)
        return {"bytes": sum(answer["bytes"] for answer in answers), "pause_s": pause_s}

    def interval(self, base: str | None) -> tuple[float, dict[str, Any] | None]:
        """Return the steps per second of an interval, with a checkpoint in its middle unless base is None."""
        steps, begun = self.steps()
        time.sleep(EVERY_S / 2)
        taken = None if base is None else self.save(base)
        time.sleep(max(0.0, begun + EVERY_S - time.monotonic()))
        now, ended = self.steps()
        return (now - steps) / (ended - begun), taken

    def close(self) -> None:
        for process in (*self.servers, *self.workers):
            process.kill()
        free_memory(self.folder)


def measure(exponent: float) -> Row:
    folder = Path(tempfile.mkdtemp(prefix="stretto-bench-"))
    job = Job(folder, exponent)
    try:
        time.sleep(3)
        full = job.save("")
        ratios: list[float] = []
        rates: list[float] = []
        taken: list[dict[str, Any]] = []
        for _ in range(ROUNDS):
            job.save(job.names[-1])  # what changed in the interval without checkpoints is none of the next one's
            time.sleep(EVERY_S / 2)
            with_them, difference = job.interval(job.names[-1])
            without, _ = job.interval(None)
            assert difference is not None
            taken.append(difference)
            rates.append(with_them)
            ratios.append(with_them / without)
        share = statistics.median(each["bytes"] for each in taken) / full["bytes"]
        ratio, rate = statistics.median(ratios), statistics.median(rates)
        pause_ms, full_pause_ms = 1e3 * max(each["pause_s"] for each in taken), 1e3 * full["pause_s"]
        has_bar = exponent == EXPONENTS[-1]
        return row(
            f"a checkpoint every {EVERY_S:.0f} s of {full['bytes'] / 1e9:.2f} GB, Zipf({exponent}) keys",
            share,
            "of a full image's bytes",
            "<= 0.1, steps/s >= 0.98" if has_bar else "",
            share <= 0.1 and ratio >= 0.98 if has_bar else None,
            f"steps/s with them beside without {ratio:.3f} (" + " ".join(f"{each:.3f}" for each in ratios) + "), "
            f"{rate:.0f} steps/s; a push waits {pause_ms:.0f} ms at most, for a full image {full_pause_ms:.0f} ms",
        )
    finally:
        job.close()
        shutil.rmtree(folder)


def run() -> list[Row]:
    """Measure one job for each exponent."""
    sweep_memory()
    return [measure(exponent) for exponent in EXPONENTS]


if __name__ == "__main__":
    json.dump(run(), sys.stdout, indent=1)

"""Moves of columns between parameter servers while two workers train: the pauses that training has of them.

One change from 2 to 3 servers moves 243 MB; the same change by checkpoint, stop and restart stands beside it. Then
1 GB moves to and fro, every 30 s, and the 99th percentile of all steps stands beside that of the steps between moves.

python -m tests.bench.state.moves [seconds of moving to and fro: 600 for 20 moves]
"""

from __future__ import annotations

import itertools
import json
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import OURS, BaselineMissing, Servers, ask_all, baseline, first_columns, moves_to
from tests.bench.rows import Row, row
from tests.bench.training.trainer import Job
from tests.bench.training.trainer_task import BATCH

ROWS = 5_400_000
"""A third of them moves: 243 MB of keys, rows and slots."""
BLOCK = 60_000
ORDINARY_S = 6.0
PAUSE_BAR, RESTART_BAR, P99_BAR = 2.0, 0.03, 1.1
TO_AND_FRO_ROWS = 7_400_000
"""1 GB"""
PERIOD_S = 30.0
SHORT_S = 60.0
FILLER = 99


class Filler:
    """A client in this process that fills the tables of a job of this tree's engine, and reads its books."""

    def __init__(self, job: Job) -> None:
        from stretto.engine import Access, Key, Layout

        self._job = job
        self._layout = Layout.from_dict(job.layout)
        self._access = Access(Key.of(job.servers.access["key"].encode()))
        self.samples = 0

    def fill(self, rows: int) -> None:
        import numpy as np
        from stretto.engine import Parameters

        parameters = Parameters(self._layout, self._job.servers.addresses, worker=FILLER, access=self._access)
        dense = np.zeros(self._layout.dense_size, np.float32)
        for begin in range(0, rows, BLOCK):
            keys = self._layout.index(np.arange(begin, begin + BLOCK) + (1 << 55))
            values = np.full((len(keys), self._layout.tables[0].dimension), 0.01, np.float32)
            parameters.push(keys, (values,), dense, shard=-1, attempt=1, start=self.samples, stop=self.samples + 1)
            self.samples += 1
        parameters.close()

    def counted(self) -> set[int]:
        """Return the samples that the columns have counted, each at its owner; all are equal if the books are exact."""
        from stretto.engine import Control

        found: set[int] = set()
        for server, address in self._job.servers.addresses.items():
            with Control(self._layout, address, server, access=self._access) as control:
                if columns := control.columns():
                    found |= set(control.applied().samples[columns].tolist())
        return found


def gaps(ends: list[list[float]], begin: float, end: float) -> list[float]:
    """Return the seconds between two steps of one worker that touch [begin, end], in order of length."""
    return sorted(b - a for e in ends for a, b in itertools.pairwise(e) if b >= begin and a <= end)


def measure_growth() -> list[Row]:
    """Change 2 to 3 servers while both workers train; then the same by checkpoint, stop, restart, restore."""
    job = Job()
    job.start()
    with tempfile.TemporaryDirectory() as folder:
        try:
            Filler(job).fill(ROWS)
            found = grown_live(job)
            restart_s = restart_pause(job, Path(folder))
        finally:
            job.kill()
    pause, ordinary = found["pause_s"], found["ordinary_s"]
    note = f"{found['moved_mb']:.0f} MB moved in {found['move_s']:.1f} s while both workers train{beside()}"
    return [
        row(
            "longest pause, 2 -> 3 servers live, beside an ordinary step", pause, "s", f"<= {PAUSE_BAR:g}",
            pause <= PAUSE_BAR * ordinary, f"{note}; baseline: the longest step of {ORDINARY_S:.0f} s before", ordinary,
        ),
        row(
            "longest pause, 2 -> 3 servers live, beside a restart", pause, "s", f"<= {RESTART_BAR:g}",
            pause <= RESTART_BAR * restart_s, "baseline: checkpoint, stop, restart at 3 servers, restore", restart_s,
        ),
    ]  # fmt: skip


def beside() -> str:
    """Return the pause of the baseline's engine, filled as far by a client of its own."""
    from tests.bench.training.servers import CLIENT

    try:
        job = Job(baseline())
    except BaselineMissing as error:
        return f"; no engine beside it: {error}"
    job.start()
    filler = job.engine.process("-P", CLIENT)
    try:
        filler.ask(do="connect", layout=job.layout, servers=job.servers.addresses, worker=FILLER)
        filler.ask(do="fill", first=0, last=ROWS, block=BLOCK)
        found = grown_live(job)
    finally:
        filler.kill()
        job.kill()
    return (
        f"; the engine of the baseline: pause {found['pause_s']:.3f} s, ordinary {found['ordinary_s']:.3f} s, "
        f"{found['moved_mb']:.0f} MB in {found['move_s']:.1f} s"
    )


def grown_live(job: Job) -> dict[str, float]:
    job.connect()
    job.train(2.0)
    servers = job.servers
    ask_all(job.workers, do="train", seconds=600)
    begun = time.monotonic()
    time.sleep(ORDINARY_S)
    quiet_until = time.monotonic()
    plan = moves_to(len(servers.processes), list(servers.addresses))
    servers.start()
    ask_all(job.workers, do="meet", servers=servers.addresses)
    moving = time.monotonic()
    moved_mb, move_s = servers.move(len(servers.processes) - 1, plan)
    ended = time.monotonic()
    time.sleep(1.0)
    ask_all(job.workers, do="stop")
    ends = [answer["ends"] for answer in ask_all(job.workers, do="collect")]
    return {
        "pause_s": gaps(ends, moving, ended)[-1],
        "ordinary_s": gaps(ends, begun, quiet_until)[-1],
        "moved_mb": moved_mb,
        "move_s": move_s,
    }


def restart_pause(job: Job, folder: Path) -> float:
    """Return the seconds from the last step before to the last worker's first step after; all processes start anew."""
    ends = job.train(1.0)
    last = max(each[-1] for each in ends)
    before = job.servers
    paths = [str(folder / f"ps-{i}") for i in before.addresses]
    for server, path in zip(before.processes, paths, strict=True):
        server.send(do="save", path=path)
    for server in before.processes:
        server.receive()
    job.kill()
    job.start_workers()
    job.servers = Servers(OURS, job.layout)
    job.servers.start(len(paths))
    columns = first_columns(job.servers.addresses)
    for index, server in enumerate(job.servers.processes):
        server.send(do="load", paths=paths, columns=columns[index])
    for server in job.servers.processes:
        server.receive()
    job.connect()
    return max(each[0] for each in job.train(2.0)) - last


@dataclass(frozen=True, slots=True)
class Period:
    """PERIOD_S of training with a move in its second half. ends: of each worker's steps; times are monotonic."""

    ends: list[list[float]]
    begun: float
    quiet_until: float
    moved_mb: float
    move_s: float


def measure_to_and_fro(length_s: float) -> Row:
    """Move 1 GB to the other server every PERIOD_S; the first half of each period has no move."""
    from stretto_messages.values import BUCKETS

    job = Job()
    job.start()
    try:
        filler = Filler(job)
        filler.fill(TO_AND_FRO_ROWS)
        buckets = {server: [c for c in columns if c < BUCKETS] for server, columns in first_columns([0, 1]).items()}
        job.servers.move(0, dict.fromkeys(buckets[1], 1))
        job.connect()
        steps = sum(len(each) for each in job.train(2.0))
        periods: list[Period] = []
        for number in range(max(1, round(length_s / PERIOD_S))):
            periods.append(period(job, number % 2, dict.fromkeys(range(BUCKETS), number % 2)))
            steps += sum(len(each) for each in periods[-1].ends)
        counted = filler.counted()
    finally:
        job.kill()
    exact = counted == {filler.samples + BATCH * steps}
    return to_and_fro_row(periods, exact)


def period(job: Job, holder: int, columns: dict[int, int]) -> Period:
    ask_all(job.workers, do="train", seconds=600)
    begun = time.monotonic()
    time.sleep(PERIOD_S / 2)
    quiet_until = time.monotonic()
    moved_mb, move_s = job.servers.move(1 - holder, columns)
    time.sleep(max(0.0, begun + PERIOD_S - time.monotonic()))
    ask_all(job.workers, do="stop")
    ends = [answer["ends"] for answer in ask_all(job.workers, do="collect")]
    return Period(ends, begun, quiet_until, moved_mb, move_s)


def to_and_fro_row(periods: list[Period], exact: bool) -> Row:
    everything = sorted(gap for each in periods for gap in gaps(each.ends, each.begun, math.inf))
    quiet = sorted(gap for each in periods for gap in gaps(each.ends, each.begun, each.quiet_until))
    p99, ordinary = (1e3 * steps[len(steps) * 99 // 100] for steps in (everything, quiet))
    moved, seconds = (sorted(getattr(each, name) for each in periods) for name in ("moved_mb", "move_s"))
    note = (
        f"{len(periods)} moves of {moved[0]:.0f} MB in {seconds[0]:.1f} to {seconds[-1]:.1f} s, "
        f"one every {PERIOD_S:.0f} s; "
        f"longest step {1e3 * everything[-1]:.0f} ms, of those between moves {1e3 * quiet[-1]:.0f} ms; "
        f"books {'exact' if exact else 'NOT EXACT'}; baseline: the steps between moves"
    )
    return row(
        "p99 of a step while 1 GB moves to and fro", p99, "ms", f"<= {P99_BAR:g}, exact",
        exact and p99 <= P99_BAR * ordinary, note, ordinary,
    )  # fmt: skip


def run(seconds: float = SHORT_S) -> list[Row]:
    """Return the rows of growth and of moves to and fro for some `seconds`."""
    return [*measure_growth(), measure_to_and_fro(seconds)]


if __name__ == "__main__":
    json.dump(run(float(sys.argv[1]) if len(sys.argv) > 1 else SHORT_S), sys.stdout, indent=1)
    print()

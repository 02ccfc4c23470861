"""The tuning of data workers, live, beside a grid of numbers that is measured exhaustively (GoldMiner Fig. 13).

The store sets the pace: a reader gets a batch in ``STORE_S`` and takes no processor time for it, so the grid of data
workers and lanes scales on two cores. The trainer rests behind each step, as if it waited for servers elsewhere: that
is its bound. The tuning starts without data workers, and with too many and too few of them (module ``tuned``). It
decides on the number; the lanes of one data worker are the job's own setting.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping

from tests.bench.claims import Claim, at_least
from tests.bench.feeding.feeding import BATCH, WARM, Bench, bench
from tests.bench.feeding.tuned import TunedJob
from tests.bench.rows import Row, row, row_at_most

STORE_S, REST_S = 0.1, 0.035
"""A job that needs three lanes."""
GRID = {1: (0, 1, 2, 3, 4, 6), 2: (1, 2, 3), 3: (1, 2)}
"""data workers by lanes of each"""
MOST = 12
WINDOW_S, WINDOWS, GRID_STEPS, GRID_ROUNDS, FINAL_ROUNDS = 3.0, 14, 60, 2, 3
BEST_BAR, CORES_BAR, INTERVALS_BAR = 0.95, 1.15, 12
FINAL = "steps/s that the tuning ends at / best of the grid"
CLAIMS = (
    Claim(
        "GoldMiner §5.5, Fig. 13",
        "tuning by the queue ends at the job's best speed",
        "1 ×",
        "a store that costs no processor time, no pods; the paper also takes cores from the training worker, whose "
        "number is the plan's here",
        at_least(1.0),
        f"{FINAL}, from none",
    ),
)


def run() -> list[Row]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with bench(MOST, samples_per_s=BATCH / STORE_S) as fed:
        fed.rest_s = REST_S
        fed.steps(WARM)
        rounds = [measured_grid(fed) for _ in range(GRID_ROUNDS)]
        grid = {point: statistics.median(each[point] for each in rounds) for point in rounds[0]}
        best_per_s = max(grid.values())
        cheapest = min(lanes * count for (lanes, count), per_s in grid.items() if per_s >= BEST_BAR * best_per_s)
        told = ", ".join(f"{count}x{lanes} {per_s:.1f}" for (lanes, count), per_s in grid.items())
        starts = {"none": 0, f"{4 * cheapest}, 4 times too many": 4 * cheapest, "1, a third": max(1, cheapest // 4)}
        rows = [row("best steps/s of the grid of data workers and lanes", best_per_s, "1/s", "", None, told)]
        for name, begin in starts.items():
            rows += _tuned(fed, name, min(begin, MOST), best_per_s, cheapest)
        return rows


def measured_grid(fed: Bench) -> Mapping[tuple[int, int], float]:
    """Return the steps per second by the lanes of a data worker, and the number of data workers."""
    found: dict[tuple[int, int], float] = {}
    for lanes, counts in GRID.items():
        for count in counts:
            fed.use(fed.lanes.addresses[: lanes * count])
            found[lanes, count] = fed.per_s(GRID_STEPS)
    return found


def _tuned(fed: Bench, name: str, begin: int, best_per_s: float, cheapest: int) -> list[Row]:
    job = TunedJob(fed, lanes=1, most=MOST, begin=begin)
    job.run(WINDOWS, WINDOW_S)
    final_per_s = statistics.median(fed.per_s(GRID_STEPS) for _ in range(FINAL_ROUNDS))
    ratio = final_per_s / best_per_s
    path = " ".join(f"{each.data_workers}:{each.per_s:.0f}" for each in job.seen)
    note = f"{' > '.join(job.phases)}; data workers and steps/s by window {path}; load {os.getloadavg()[0]:.1f}"
    return [
        row(f"{FINAL}, from {name}", final_per_s, "1/s", f">= {BEST_BAR:g} ×", ratio >= BEST_BAR, note, best_per_s),
        row(f"cores of data workers that the tuning ends with, from {name}", job.given, "", f"<= {CORES_BAR:g} ×",
            job.given <= CORES_BAR * cheapest, "baseline: the cheapest of the grid that reaches 0.95 of its best",
            cheapest),
        row_at_most(f"intervals until the last change, from {name}", job.intervals, "", INTERVALS_BAR,
                    f"{len(job.said)} changes"),
    ]  # fmt: skip


if __name__ == "__main__":
    for each in run():
        print(each)

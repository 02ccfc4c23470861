"""The cost of data workers where nothing is to gain: batches that are read as fast as received (GoldMiner Table 2).

Steps per second with two lanes by force, beside those alone, by the bytes of a batch; they take turns. Then the tuning
decides by itself (module ``tuned``).
"""

from __future__ import annotations

import os
import statistics

from tests.bench.claims import Claim
from tests.bench.feeding.feeding import WARM, Bench, bench
from tests.bench.feeding.tuned import TunedJob
from tests.bench.rows import Row, row

WIDTHS = {"0.3 MB": 128, "4 MB": 2048, "17 MB": 8192}
LANES, ROUNDS, STEPS = 2, 3, 80
WINDOWS, MORE_WINDOWS, WINDOW_S = 6, 20, 4.0
AUTO_BAR, LAST_CHANGE = 0.98, 4
"""Two windows tell that data workers may pay, and two that they do not."""
LITTLE = 2.0
"""percent that count as none"""
NAME = "slowdown with data workers by force, batches of"
WHY = "parameter server, trainer and two data workers on two cores"
CLAIMS = (
    Claim("GoldMiner §5.1, Table 2", "slowdown with data workers where little is transferred (0.15 Gb/s)", "0 %", WHY,
          lambda ours: ours <= LITTLE, f"{NAME} 0.3 MB"),
    Claim("GoldMiner §5.1, Table 2", "slowdown with data workers where much is (12.5 Gb/s)", "12.7 %", WHY,
          lambda ours: ours <= 12.7 + LITTLE, f"{NAME} 17 MB"),
)  # fmt: skip


def run() -> list[Row]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows: list[Row] = []
    for size, width in WIDTHS.items():
        with bench(LANES, entry="tests.bench.feeding.feeding_task:Wide", width=width) as wide:
            wide.steps(WARM)
            rows += [_forced(wide, size), _decided(wide, size)]
    return rows


def _forced(wide: Bench, size: str) -> Row:
    alone, fed, bytes_per_s = [], [], []
    for _ in range(ROUNDS):
        wide.use(())
        alone.append(wide.per_s(STEPS))
        wide.use(wide.lanes.addresses)
        before = wide.feed.counts.lane_bytes
        fed.append(wide.per_s(STEPS))
        bytes_per_s.append((wide.feed.counts.lane_bytes - before) / STEPS * fed[-1])
    slower = 100 * (1 - statistics.median(one / other for one, other in zip(fed, alone, strict=True)))
    rate = statistics.median(bytes_per_s)
    note = (
        f"{rate / 1e6:.0f} MB/s, {8 * rate / 1e9:.2f} Gb/s; {statistics.median(fed):.1f} steps/s, alone "
        f"{statistics.median(alone):.1f}; load {os.getloadavg()[0]:.1f}"
    )
    return row(f"{NAME} {size}", slower, "%", "", None, note)


def _decided(wide: Bench, size: str) -> Row:
    """Return the rate once the tuning has decided, beside that alone."""
    job = TunedJob(wide, lanes=1, most=LANES)
    job.run(WINDOWS, WINDOW_S)
    job.until_told(WINDOW_S, MORE_WINDOWS)
    alone, chosen = [], []
    for _ in range(ROUNDS if job.given else 0):
        wide.use(())
        alone.append(wide.per_s(STEPS))
        wide.use(wide.lanes.addresses[: job.given])
        chosen.append(wide.per_s(STEPS))
    ratio = statistics.median(one / other for one, other in zip(chosen, alone, strict=True)) if job.given else 1.0
    path = " ".join(f"{each.data_workers}:{each.per_s:.0f}" for each in job.seen)
    note = f"{job.given} data workers in the end; by window {path}: the same as alone where there is none"
    is_quick = job.given > 0 or job.intervals <= LAST_CHANGE
    return row(f"steps/s as tuned / alone, batches of {size}", ratio, "", f">= {AUTO_BAR:g} ×",
               ratio >= AUTO_BAR and is_quick, note)  # fmt: skip


if __name__ == "__main__":
    for each in run():
        print(each)

"""Stragglers: delay of detection, false alarms, and the gain from cutting their shards.

Detection: 8 workers, 20 seeds, steps with log-normal noise around the same mean in windows of 5 s; one becomes 2.5, 3
or 4 times slower after 20 of 40 windows. Cutting: 3 workers and a slow one, 200 shards of 16 batches, by the real
ledger; the slow one is reported after 10 peers' steps (libs/core/tests/profiler/test_stragglers.py). The baseline of a
job's time is a split of its data into equal parts, which the ledger replaces.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from stretto_core.dispatcher.source import DataSpec
from stretto_core.profiler.state import ProfilingRules
from stretto_messages.profiler import StragglerDetected

from tests.bench.claims import Claim, at_least, at_most
from tests.bench.rows import Row, row, row_at_most

NOISES = (0.1, 0.2, 0.3, 0.4)
WORKERS, SEEDS, QUIET_WINDOWS, BEGIN, WINDOWS = 8, 20, 100, 20, 40
SLOWDOWNS = (2.5, 3.0, 4.0)
SHARDS, BATCHES, PEERS, SLOW = 200, 16, 3, 4.0
DELAY, SHORTER = "slow worker told after, at 10 % noise", "time of a job with a slow worker, below equal parts"
CLAIMS = (
    Claim("DLRover-RM §6.2", "a straggler is handled within", "1 minute", "two windows of 5 s in a row", at_most(60.0),
          DELAY),
    Claim("DLRover-RM §6.2", "shard rebalancing shortens the job without intervention by", "48.5 %",
          "one worker of four is 4 times slower; beside equal parts: a queue of shards alone gains nearly all of it",
          at_least(48.5), SHORTER),
)  # fmt: skip


def run() -> list[Row]:
    """Return rows of detection by noise, then of a job's time."""
    tests = importlib.import_module("test_stragglers")
    rows = [line for noise in NOISES for line in _told(tests, noise)]
    return rows + _trained(tests)


def _told(tests: Any, noise: float) -> list[Row]:
    delays, missed, false = list[int](), 0, 0
    for seed in range(SEEDS):
        quiet = tests.told(tests.noisy(QUIET_WINDOWS, WORKERS, noise, seed))
        false += sum(isinstance(fact, StragglerDetected) for _, fact in quiet)
        for slowdown in SLOWDOWNS:
            steps = tests.noisy(WINDOWS, WORKERS, noise, SEEDS + seed)
            steps[BEGIN:, 0] *= slowdown
            found = [w for w, fact in tests.told(steps) if isinstance(fact, StragglerDetected) and w >= BEGIN]
            missed += not found
            delays += [found[0] - BEGIN + 1] if found else []
    window_s = ProfilingRules().window_s
    share = false / (SEEDS * QUIET_WINDOWS * WORKERS / 1000)
    worst = f"{np.quantile(delays, 0.95) * window_s:.0f} s in 95 % of cases; {missed} of {len(delays) + missed} missed"
    bar = 60.0 if noise <= 0.3 else None
    return [
        row_at_most(
            f"slow worker told after, at {noise:.0%} noise".replace("%", " %"),
            float(np.mean(delays)) * window_s,
            "s",
            bar,
            worst,
        ),
        row_at_most(
            f"told slow for {noise:.0%} noise".replace("%", " %"), share, "in 1,000 windows", 1.0 if bar else None, ""
        ),
    ]


def _trained(tests: Any) -> list[Row]:
    data = DataSpec(samples=SHARDS * BATCHES * tests.BATCH, batch_size=tests.BATCH, batches_per_shard=BATCHES)
    slowdowns = [SLOW, *[1.0] * PEERS]
    (_, told), (_, never) = (tests.train(data, slowdowns, told_after) for told_after in (10.0, float("inf")))
    ideal, equal = SHARDS * BATCHES / (PEERS + 1 / SLOW), SHARDS * BATCHES / (PEERS + 1) * SLOW
    over = row("time of a job with a slow worker, in steps", told, "", "ratio <= 1.02", told <= 1.02 * ideal,
               f"never told: {never:.0f}", ideal)  # fmt: skip
    less = row_at_most(SHORTER, 100 * (1 - told / equal), "%", None, f"never told: {1 - never / equal:.1%}")
    return [over, less]

"""The price of training with the data workers that the tuning chooses, and alone (GoldMiner Table 3).

Prices are the paper's ratio: the trainer costs ``TRAINER_PRICE`` times as much as a data worker of one core. Both jobs
are tuned live (module ``tuned``); speeds and the price of a million samples are of what was measured.

- read-bound: the store gives a reader a batch in ``STORE_S`` and takes no processor time for it. The trainer rests
  behind each step, as if it waited for servers: that is its bound, so the machine's two cores are not.
- transfer-bound: wide samples that are read as fast as they are received, so data workers bring nothing.
"""

from __future__ import annotations

import os
import statistics
from typing import NamedTuple

from tests.bench.claims import Claim, at_least
from tests.bench.feeding.feeding import BATCH, WARM, Bench, bench
from tests.bench.feeding.tuned import TunedJob
from tests.bench.rows import Row, row

TRAINER_PRICE = 8.9
STORE_S, REST_S, MOST = 0.4, 0.03, 12
WIDTH = 4096
"""Numbers of a sample: 8.4 MB a batch."""
WIDE_MOST, WIDE_REST_S = 2, 0.0
WINDOW_S, WINDOWS, MORE_WINDOWS, ROUNDS, ROUND_STEPS = 4.0, 10, 20, 3, {"alone": 20, "tuned": 100}
SPEED_BAR, LEAST, SAVING_BAR = 4.0, 8, 60.0
READ, TRANSFER = "read-bound job", "transfer-bound job"
CLAIMS = (
    Claim("GoldMiner §5.2, Table 3", "DeepFM with 4 CPU machines for data workers is faster than without by", "12.1 ×",
          "a slow store; the bound of our trainer allows less", at_least(12.1), f"steps/s tuned / alone, {READ}"),
    Claim("GoldMiner §5.2, Table 3", "and costs less by", "88 %", "prices of the paper, one core for a machine",
          at_least(88), f"price of a million samples saved, {READ}"),
    Claim("GoldMiner §5.2, Table 3", "a job with much to transfer (ResNet18) costs less by", "9 %",
          "ours reads as fast as it receives: there is nothing to save, and nothing is spent", at_least(9),
          f"price of a million samples saved, {TRANSFER}"),
)  # fmt: skip


class Tuned(NamedTuple):
    """Steps per second alone and as tuned, and the data workers that were chosen."""

    alone_per_s: float
    tuned_per_s: float
    data_workers: int
    note: str

    @property
    def saving(self) -> float:
        """Part of the price of a sample that is saved."""
        alone, tuned = TRAINER_PRICE / self.alone_per_s, (TRAINER_PRICE + self.data_workers) / self.tuned_per_s
        return 1 - tuned / alone


def run() -> list[Row]:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with bench(MOST, samples_per_s=BATCH / STORE_S) as slow:
        slow.rest_s = REST_S
        read = tuned(slow, MOST)
    with bench(WIDE_MOST, entry="tests.bench.feeding.feeding_task:Wide", width=WIDTH) as wide:
        wide.steps(WARM)
        transfer = tuned(wide, WIDE_MOST)
    ratio = read.tuned_per_s / read.alone_per_s
    is_dear = read.data_workers >= LEAST
    return [
        row(f"steps/s tuned / alone, {READ}", read.tuned_per_s, "1/s", f">= {SPEED_BAR:g} ×, >= {LEAST} data workers",
            ratio >= SPEED_BAR and is_dear, f"{read.data_workers} data workers; {read.note}", read.alone_per_s),
        _saved(READ, read, SAVING_BAR),
        row(f"data workers of a {TRANSFER}", transfer.data_workers, "", "<= 1", transfer.data_workers <= 1,
            transfer.note),
        _saved(TRANSFER, transfer, 0.0),
    ]  # fmt: skip


def tuned(fed: Bench, most: int) -> Tuned:
    """Tune a job from no data workers on. Its rates are measured in turns in the end."""
    job = TunedJob(fed, lanes=1, most=most)
    job.run(WINDOWS, WINDOW_S)
    job.until_told(WINDOW_S, MORE_WINDOWS)
    rates: dict[str, list[float]] = {"alone": [], "tuned": []}
    for _ in range(ROUNDS):
        for name, count in (("alone", 0), ("tuned", job.given)):
            fed.use(fed.lanes.addresses[:count])
            rates[name].append(fed.per_s(ROUND_STEPS[name]))
    alone_per_s, tuned_per_s = (statistics.median(rates[name]) for name in ("alone", "tuned"))
    path = " ".join(f"{each.data_workers}:{each.per_s:.1f}" for each in job.seen)
    note = f"{' > '.join(job.phases)}; data workers and steps/s by window {path}; load {os.getloadavg()[0]:.1f}"
    return Tuned(alone_per_s, tuned_per_s if job.given else alone_per_s, job.given, note)


def _saved(name: str, found: Tuned, bar: float) -> Row:
    dear, cheap = (
        (TRAINER_PRICE + count) / (3600 * per_s * BATCH) * 1e6
        for count, per_s in ((0, found.alone_per_s), (found.data_workers, found.tuned_per_s))
    )
    note = f"{cheap:.2f} core hours of a data worker, {dear:.2f} alone; the trainer counts as {TRAINER_PRICE:g}"
    saved = 100 * found.saving
    return row(f"price of a million samples saved, {name}", saved, "%", f">= {bar:g} %", saved >= bar, note)


if __name__ == "__main__":
    for each in run():
        print(each)

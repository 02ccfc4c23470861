"""The cost of rows on the disks of parameter servers: less memory, reads, and a longer step.

Of R rows of b bytes a share h is in memory, the others in a log on the disk. With c bytes of a cold row in memory, u
rows that a step pulls from the server, w workers, D reads per second of its disk, and T a step's time without reads, of
which T_grad is computing:

    memory(h) = rest + R c + h R (b - c)
    reads(h)  = miss(h) u                                        a step, at one server
    T(h)      = max(T + max(0, reads(h)/D - T_grad), w reads(h)/D)

The pull of a step hides under the computation of the one before, as far as it is no longer. The steps of all workers
share the disk, which in the end is the limit. The interval has READS_ERROR more or fewer reads, and at its upper end
nothing hides: so it is without the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stretto_messages.values import Interval, Remedy

COLD_ROW_BYTES = 24.7
"""Memory of a row on the disk: its entry of 16 bytes, and its share of the index, 6.7 to 10.7 bytes."""
RECORD_BYTES = 12
"""Bytes of a record on the disk beside the row: key and checksum."""
LOG_FACTOR = 2.0
"""Most bytes of the log for a byte of its rows: a segment that is half garbage is written anew."""
HOT_FILL = 0.9
"""Share of its limit that a server fills with rows, entries, index and all else that it has."""
READS_ERROR = 0.2
"""Relative error of the reads that are forecast: by heat a server reads up to 18 % less than by the order of use."""


SLOWDOWN_MAX = 1000.0
"""Largest slow-down that is told: whatever pods report, it stays a number."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of one worker, as far as reads of rows make it longer. ``time_s``: without any; ``compute_s``: T_grad."""

    time_s: float
    compute_s: float
    workers: int
    disk_reads_per_s: float

    def with_reads_s(self, reads: float, hidden: float = 1.0) -> float:
        """Return T with ``reads`` reads a step, of which at most ``hidden`` T_grad hide."""
        disk_s = reads / self.disk_reads_per_s
        return max(self.time_s + max(0.0, disk_s - hidden * self.compute_s), self.workers * disk_s)

    def slowdown(self, reads: float) -> float:
        """Return the share by which a step takes longer."""
        return self._slower(self.with_reads_s(reads))

    def slowdown_interval(self, reads: float) -> Interval:
        """Return the interval of that share."""
        low, high = self.with_reads_s((1 - READS_ERROR) * reads), self.with_reads_s((1 + READS_ERROR) * reads, 0.0)
        return Interval(low=self._slower(low), high=self._slower(high))

    def _slower(self, time_s: float) -> float:
        return min(time_s / self.time_s - 1, SLOWDOWN_MAX)

    @staticmethod
    def measured(time_s: float, compute_s: float, workers: int, disk_reads_per_s: float, reads: float) -> Step:
        """Return the step that takes ``time_s`` with its reads already."""
        compute_s = min(compute_s, time_s)
        without_s = max(time_s - max(0.0, reads / disk_reads_per_s - compute_s), compute_s, time_s / 1000)
        return Step(without_s, compute_s, workers, disk_reads_per_s)


def miss_ratio(curve: Sequence[float], hot_share: float) -> float:
    """Return the share of pulled rows that are read if ``hot_share`` of all rows are in memory: linear between points.

    ``curve``: at 1/n, 2/n, … 1 of the rows, n being its length. With no row in memory all are read.
    """
    at = min(max(hot_share, 0.0), 1.0) * len(curve)
    below = min(int(at), len(curve) - 1)
    before = curve[below - 1] if below else 1.0
    return before + (at - below) * (curve[below] - before)


def hot_rows(rows: float, row_bytes: float, rest_bytes: float, limit_bytes: float) -> float:
    """Return how many rows are in memory under a limit; 0 if it does not even hold what cold rows need."""
    left = HOT_FILL * limit_bytes - rest_bytes - rows * COLD_ROW_BYTES
    return min(max(left / max(row_bytes - COLD_ROW_BYTES, 1.0), 0.0), rows)


def memory_bytes(rows: float, row_bytes: float, rest_bytes: float, hot_share: float) -> int:
    """Return the least limit under which so large a share of the rows is in memory."""
    hot_bytes = hot_share * rows * (row_bytes - COLD_ROW_BYTES)
    return int((rest_bytes + rows * COLD_ROW_BYTES + hot_bytes) / HOT_FILL)


def log_bytes(cold_rows: float, row_bytes: float) -> int:
    """Return the most bytes that these rows take on the disk."""
    return int(LOG_FACTOR * cold_rows * (row_bytes - COLD_ROW_BYTES + RECORD_BYTES))


def in_words_of(remedy: Remedy) -> str:
    """Describe the remedy of spilling for reasons that people read."""
    slow = remedy.slowdown_interval
    return (
        f"{remedy.hot_share:.0%} of the rows in memory, {remedy.reads_per_step:.0f} reads a step,"
        f" {remedy.slowdown:.0%} slower ({slow.low:.0%} to {slow.high:.0%})"
    )


def worth(remedy: Remedy) -> float:
    """Return the price of the samples that an hour of the present throughput trains: a job that is slower costs longer.

    The upper end of the slow-down counts, so that a job is not slowed down for what is uncertain.
    """
    return remedy.cost_per_hour * (1 + remedy.slowdown_interval.high)


def cheapest(remedies: Iterable[Remedy]) -> Remedy | None:
    """Return the remedy of the least price of a sample, of equal ones the first; None if there is none."""
    return min(remedies, key=worth, default=None)

"""The cost of rows on the disks of parameter servers: less memory, reads, and a longer step.

Of R rows of b bytes a share h is in memory, the others in a log on the disk. With c bytes of a cold row in memory, u
rows that a step pulls from the server, w workers, D reads per second of its disk, and T a step's time without reads, of
which T_grad is computing and for which the server's k cores work P seconds:

    memory(h) = (rest + (R c + h R (b - c)) / HOT_FILL) / LIMIT_SHARE
    reads(h)  = BY_HEAT miss(h) u                                a step, at one server
    P(h)      = P + u LOOK_CPU_S + reads(h) READ_CPU_S
    T(h)      = max(T + max(0, reads(h)/D - T_grad), w reads(h)/D, w P(h)/k)

The pull of a step hides under the computation of the one before, as far as it is no longer. The steps of all workers
share disk and cores, one of which in the end is the limit. Once a job's servers read rows, reads(h) is multiplied by
what was read over what the curve told (`Correction`). The interval is as wide as that differs from window to window, or
has READS_ERROR before any, and never goes beyond u. At its lower end a read takes half the processor time; at its
upper end twice, and nothing hides, as without the pipeline.
Steps a second also differ from window to window without any change: one window told T, and another will show the
slow-down. Only the interval of speeds has that, since it is no cost of spilling (`speed_interval`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from stretto_messages.values import Interval, Remedy

COLD_ROW_BYTES = 24.7
"""Memory of a row on the disk: its entry of 16 bytes, and its share of the index, 6.7 to 10.7 bytes."""
RECORD_BYTES = 12
"""Bytes of a record on the disk beside the row: key and checksum."""
LOG_FACTOR = 2.0
"""Most bytes of the log for a byte of its rows: a segment that is half garbage is written anew."""
LIMIT_SHARE = 0.98
"""Share of its limit that a server uses at most."""
HOT_FILL = 0.88
"""Share of what the limit leaves for rows, entries and index that a server fills: from 0.9 on it evicts, down to 0.85
at most. Measured, 0.88 to 0.9: ``python -m tests.bench.training.spilling``."""
AHEAD_BYTES = 2**16
"""Memory of a bucket whose rows come and go that none of them takes: a part is touched so far ahead."""
BY_HEAT = 0.96
"""Reads of a server that evicts by heat and reads ahead, over those by the order of use, of which curves are. Measured,
0.8 to 1.2: what was read ahead may be evicted again before its batch comes."""
READS_ERROR = 0.2
"""Relative error of the reads that are forecast before any were measured."""
READS_OFF = 100.0
"""Largest factor by which measured reads correct the curve: whatever pods report, it stays a number."""
READS_LEAST, READS_LEAST_SHARE = 100.0, 0.01
"""Rows of a window, read or told by the curve, from which on they are compared, and their share of the rows
pulled: below it the line between the curve's last points tells several times what is read. Taste."""
EVICTS_FROM = 0.8
"""Share of its limit that a server which evicts rows fills: it does so from 0.85 on."""
READ_CPU_S = 12e-6
"""Processor time of a read row, with the eviction of another one for it. Measured in the same bench: 10 to 13 us, where
reads pass the system's cache."""
LOOK_CPU_S = 0.6e-6
"""Processor time of a pulled row of a server that has cold ones, since it is named and looked for ahead, too. Measured
in the same bench."""

NOISE_DOF, NOISE_SD = 2.0, 0.04
"""Prior of the noise of log T in a window: degrees of freedom, and deviation. Taste."""
NORMAL_95 = 1.645

SLOWDOWN_MAX = 1000.0
"""Largest slow-down that is told: whatever pods report, it stays a number."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of one worker, as far as reads of rows make it longer. ``time_s``: without any; ``compute_s``: T_grad.

    ``rows``: those that it pulls from the server. ``cpu_s``: P; ``cores``: k, those of the server, infinite where they
    are no limit.
    """

    time_s: float
    compute_s: float
    workers: int
    disk_reads_per_s: float
    rows: float = 0.0
    cpu_s: float = 0.0
    cores: float = math.inf

    def with_reads_s(self, reads: float, hidden: float = 1.0, cpu_factor: float = 1.0) -> float:
        """Return T with ``reads`` a step, of ``cpu_factor`` READ_CPU_S, while ``hidden`` T_grad hide the disk."""
        disk_s = reads / self.disk_reads_per_s
        cpu_s = self.cpu_s + spilling_cpu_s(self.rows, cpu_factor * reads)
        busy_s = max(disk_s, cpu_s / self.cores)
        return max(self.time_s + max(0.0, disk_s - hidden * self.compute_s), self.workers * busy_s)

    def slowdown(self, reads: float) -> float:
        """Return the share by which a step takes longer."""
        return self._slower(self.with_reads_s(reads))

    def slowdown_interval(self, reads: Interval) -> Interval:
        """Return the interval of that share, for an interval of reads a step."""
        low = self.with_reads_s(reads.low, cpu_factor=0.5)
        high = self.with_reads_s(reads.high, 0.0, 2.0)
        return Interval(low=self._slower(low), high=self._slower(high))

    def _slower(self, time_s: float) -> float:
        return min(time_s / self.time_s - 1, SLOWDOWN_MAX)

    def without(self, reads: float) -> Step:
        """Return the step as it is without ``reads``, which its times have now."""
        if not reads:
            return self
        compute_s = min(self.compute_s, self.time_s)
        waits_s = max(0.0, reads / self.disk_reads_per_s - compute_s)
        time_s = max(self.time_s - waits_s, compute_s, self.time_s / 1000)
        return replace(
            self, time_s=time_s, compute_s=compute_s, cpu_s=max(0.0, self.cpu_s - spilling_cpu_s(self.rows, reads))
        )


def noise_of(step_times_s: Sequence[float]) -> float:
    """Return half the 90 % interval of log T of a window given another one, from windows under the same plan."""
    return math.sqrt(2) * _half_interval([math.log(each) for each in step_times_s if each > 0], NOISE_SD)


def _half_interval(values: Sequence[float], prior_sd: float) -> float:
    """Return half the 90 % interval of a value around the mean of its distribution.

    With s the standard error over n values, its prior counting as NOISE_DOF further ones, that is s t(0.95) of
    Student's distribution.
    """
    mean = math.fsum(values) / max(len(values), 1)
    dof = NOISE_DOF + max(len(values) - 1, 0)
    deviation = math.sqrt((NOISE_DOF * prior_sd**2 + math.fsum((each - mean) ** 2 for each in values)) / dof)
    return deviation * _student_95(dof)


def _student_95(dof: float) -> float:
    """Return t(0.95) of Student's distribution by its expansion (Abramowitz and Stegun 26.7.5)."""
    z = NORMAL_95
    return z + (z**3 + z) / (4 * dof) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * dof**2)


READS_SD = math.log1p(READS_ERROR) / (math.sqrt(2) * _student_95(NOISE_DOF))
"""Prior deviation of log(read / told) in a window: the curve, as one window of it, has READS_ERROR."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Rows that were read over those that the curve told. ``spread``: half the 90 % interval of its logarithm in a
    later window."""

    factor: float = 1.0
    spread: float = math.log1p(READS_ERROR)

    @staticmethod
    def of(ratios: Sequence[float]) -> Correction:
        """Return the correction by what the latest windows had (`read_ratio`).

        The factor is their median, whose variance is at most 2 / (n + 1) of one window's. Without any the curve stands,
        as one window of ratio 1: windows that are alike only narrow the interval. Of windows that differ by far more
        than the prior, a few know too little: the interval holds eight of ten.
        """
        logs = [math.log(each) for each in ratios] or [0.0]
        differ = _half_interval(logs, READS_SD)
        return Correction(math.exp(median(logs)), math.sqrt(1 + 2 / (len(logs) + 1)) * differ)

    def reads(self, told: float, pulled: float) -> float:
        """Return the corrected reads of a step that pulls ``pulled`` rows, where the curve tells ``told``."""
        return min(self.factor * told, pulled)

    def interval(self, reads: float, pulled: float) -> Interval:
        """Return the interval of corrected ``reads`` of a step that pulls ``pulled`` rows."""
        return Interval(low=reads * math.exp(-self.spread), high=min(reads * math.exp(self.spread), pulled))


def read_ratio(read: float, told: float, pulled: float) -> float | None:
    """Return the rows that a window's batches had read over those that the curve told; None: too few to compare."""
    if read + told < max(READS_LEAST, READS_LEAST_SHARE * pulled):
        return None
    return min(max((read + 1) / (told + 1), 1 / READS_OFF), READS_OFF)


def speed_interval(speed: float, slow: Interval, noise: float) -> Interval:
    """Return the 90 % interval of a later window's speed, where ``speed`` is one's without the slow-down.

    noise: `noise_of` the step times.
    """
    return Interval(low=speed / (1 + slow.high) * math.exp(-noise), high=speed / (1 + slow.low) * math.exp(noise))


def spilling_cpu_s(rows: float, reads: float) -> float:
    """Return the processor seconds that reads add to a step, beside a step with all rows in memory."""
    return rows * LOOK_CPU_S + reads * READ_CPU_S if reads else 0.0


def miss_ratio(curve: Sequence[float], hot_share: float, batch_share: float) -> float:
    """Return the share of pulled rows that are read if ``hot_share`` of all rows are in memory: linear between points.

    ``curve``: at 1/n, 2/n, … 1 of the rows, n being its length. Below the first point it is linear in the logarithm of
    the share, as by Zipf's law; all are read where no more are in memory than a batch has, ``batch_share`` of all.
    """
    at = min(max(hot_share, 0.0), 1.0) * len(curve)
    below = min(int(at), len(curve) - 1)
    if below:
        return curve[below - 1] + (at - below) * (curve[below] - curve[below - 1])
    least = min(max(batch_share * len(curve), 1e-9), 1 - 1e-9)
    hit = math.log(max(at, least) / least) / -math.log(least)
    return 1.0 - hit * (1.0 - curve[0])


def reads_per_step(curve: Sequence[float], hot_share: float, rows: float, pulled: float) -> float:
    """Return how many of the rows that a step pulls are read, at a server with this number of ``rows``."""
    return BY_HEAT * miss_ratio(curve, hot_share, pulled / max(rows, 1.0)) * pulled


def hot_rows(rows: float, row_bytes: float, rest_bytes: float, limit_bytes: float) -> float:
    """Return how many rows are in memory under a limit; 0 if it does not even hold what cold rows need."""
    left = HOT_FILL * (LIMIT_SHARE * limit_bytes - rest_bytes) - rows * COLD_ROW_BYTES
    return min(max(left / max(row_bytes - COLD_ROW_BYTES, 1.0), 0.0), rows)


def memory_bytes(rows: float, row_bytes: float, rest_bytes: float, hot_share: float) -> int:
    """Return the least limit under which so large a share of the rows is in memory."""
    table_bytes = rows * (COLD_ROW_BYTES + hot_share * (row_bytes - COLD_ROW_BYTES))
    return int((rest_bytes + table_bytes / HOT_FILL) / LIMIT_SHARE)


def log_bytes(cold_rows: float, row_bytes: float) -> int:
    """Return the most bytes that these rows take on the disk."""
    return int(LOG_FACTOR * cold_rows * (row_bytes - COLD_ROW_BYTES + RECORD_BYTES))


def in_words_of(remedy: Remedy) -> str:
    """Describe the remedy of spilling for reasons that people read."""
    slow, reads = remedy.slowdown_interval, remedy.reads_interval
    between = f" ({reads.low:.0f} to {reads.high:.0f})" if reads.high else ""
    now = f", {remedy.reads_measured:.0f} now" if remedy.reads_measured else ""
    return (
        f"{remedy.hot_share:.0%} of the rows in memory, {remedy.reads_per_step:.0f} reads a step{between}{now},"
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

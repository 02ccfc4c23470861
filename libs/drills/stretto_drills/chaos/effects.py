"""Effects of a fault on training, from the workers' own telemetry. Pure; times are seconds since the epoch.

A worker reports about once a second how many steps it finished and the longest time between two of them, but not where
in the window that pause was. A pause that fills most of the window is assumed to be at its beginning, so the end of a
stall is right to a few tenths of a second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from stretto_messages.pods import WorkerReported

STALL_S = 0.5
"""A shorter silence of all workers is one slow step."""
AFTER_S = 3.0
"""A pause that begins later than this after the healing is not an effect of the fault."""
LEAST_S = 0.5
"""Faults closer together than this cannot be distinguished."""
BIN_S = 0.5


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of one fault.

    ``pause_s``: longest time between two steps of any worker. ``stall_s``: time until the job trained again; 0 if it
    never stopped, None if it never trained again.
    """

    pause_s: float | None
    stall_s: float | None


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A stretch of time."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


def active(report: WorkerReported) -> TimeSpan | None:
    """Return the part of a report's window in which the worker made steps, or None."""
    if report.steps == 0:
        return None
    begin_s = report.ended_at_s - report.window_s
    if report.longest_gap_s > 0.5 * report.window_s:
        stepping_s = report.steps * report.step_time_s - report.longest_gap_s
        begin_s = max(begin_s, report.ended_at_s - max(stepping_s, report.step_time_s / report.steps))
    return TimeSpan(begin_s, report.ended_at_s)


def stalls(reports: Iterable[WorkerReported], until_s: float) -> list[TimeSpan]:
    """Return the stretches in which no worker made a step, from the job's first step to ``until_s``."""
    spans = sorted((span.begin_s, span.end_s) for span in map(active, reports) if span is not None)
    found: list[TimeSpan] = []
    if not spans:
        return found
    reached_s = spans[0][1]
    for begin_s, end_s in [*spans[1:], (until_s, until_s)]:
        if begin_s - reached_s > STALL_S:
            found.append(TimeSpan(reached_s, begin_s))
        reached_s = max(reached_s, end_s)
    return found


def effect(at_s: float, until_s: float, reports: Sequence[WorkerReported], silent: Sequence[TimeSpan]) -> Effect:
    """Return the effect of a fault injected at ``at_s``. Later than ``until_s`` nothing counts. ``silent``: stalls."""
    during = [span for span in silent if span.end_s > at_s and span.begin_s < until_s]
    pauses = [span.length_s for span in during]
    for report in reports:
        begin_s = report.ended_at_s - report.window_s - report.longest_gap_s
        if report.steps and report.ended_at_s > at_s and begin_s < until_s:
            pauses.append(report.longest_gap_s)
    longest = max(during, key=lambda span: span.length_s, default=None)
    return Effect(max(pauses, default=None), max(longest.end_s - at_s, 0.0) if longest else 0.0)


def effect_ends(at_s: float, healed_s: float | None, others_s: Iterable[float]) -> float:
    """Return when a fault's effect ends: shortly after healing, or when the next fault (in ``others_s``) strikes."""
    following = [other_s for other_s in others_s if other_s > at_s + LEAST_S]
    return min([(healed_s or at_s) + AFTER_S, *following])


def throughput(reports: Iterable[WorkerReported], begin_s: float, end_s: float) -> list[tuple[float, float]]:
    """Return (middle of a bin, samples per second of all workers) for every ``BIN_S`` of a stretch."""
    count = max(1, int((end_s - begin_s) / BIN_S + 1))
    bins = [0.0] * count
    for span, samples in _trained(reports):
        low, high = (span.begin_s - begin_s) / BIN_S, (span.end_s - begin_s) / BIN_S
        for index in range(max(0, int(low)), min(count, int(high) + 1)):
            share = min(high, index + 1) - max(low, index)
            if share > 0:
                bins[index] += samples * share / max(high - low, 1e-9)
    return [(begin_s + (index + 0.5) * BIN_S, value / BIN_S) for index, value in enumerate(bins)]


def _trained(reports: Iterable[WorkerReported]) -> list[tuple[TimeSpan, int]]:
    """Return for each report when the worker trained, and its samples since the report before."""
    pods: dict[str, list[WorkerReported]] = defaultdict(list)
    for report in reports:
        pods[report.pod].append(report)
    found: list[tuple[TimeSpan, int]] = []
    for rows in pods.values():
        rows.sort(key=lambda report: report.ended_at_s)
        totals = [0, *(report.samples_total for report in rows)]
        for report, (before, after) in zip(rows, pairwise(totals), strict=True):
            span = active(report)
            if span is not None:
                found.append((span, after - before))
    return found

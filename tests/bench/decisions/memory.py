"""The OOM guard on 200 generated jobs: out-of-memory kills, unneeded memory, and forecast errors.

50 seeds of each family of curves, each played by the real machines of watch and arbiter against an actuator that
takes its time (libs/core/tests/oom: curves.py, and play.py with the definition of foreseeable). Six of ten begin with
too little memory, the others with one to three times the need. A job's final memory is forecast at its first third; a
job whose growth follows another law later does not count, since no forecast could know it.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from tests.bench.claims import Claim, at_most
from tests.bench.rows import Row, row_at_most

CLAIMS = (
    Claim("DLRover-RM §6.3, Table 4", "jobs that fail for memory", "0.23 % (without: 4.7 %)",
          "200 generated jobs against the real machines, six of ten with too little memory; not a production fleet",
          at_most(0.0), "out of memory where foreseeable"),
)  # fmt: skip
SEEDS = range(50)


def run() -> list[Row]:
    """Return rows over all jobs, and per family."""
    played = {family: jobs(family, SEEDS) for family in families()}
    everyone = [job for found in played.values() for job in found]
    return [*_all(everyone), *_surges(), *(told for family, found in played.items() for told in _family(family, found))]


def families() -> tuple[str, ...]:
    return importlib.import_module("curves").FAMILIES


def jobs(family: str, seeds: Iterable[int]) -> list[tuple[Any, Any]]:
    """Return (curve, outcome) of every seed."""
    curves, play = importlib.import_module("curves"), importlib.import_module("play")
    number = families().index(family)
    found = [(curves.generate(family, seed), play.Case.draw(4 * seed + number)) for seed in seeds]
    return [(curve, play.play(curve, case)) for curve, case in found]


def _all(played: list[tuple[Any, Any]]) -> list[Row]:
    outcomes = [outcome for _, outcome in played]
    failed = sum(outcome.oom_foreseeable for outcome in outcomes)
    others = sum(outcome.oom_at is not None and not outcome.oom_foreseeable for outcome in outcomes)
    foreseeable = sum(outcome.foreseeable for outcome in outcomes)
    growing = [outcome for outcome in outcomes if outcome.would_oom]
    known = [(curve, outcome) for curve, outcome in played if not curve.changes]
    error = float(np.median([abs(outcome.end_error) for _, outcome in known]))
    uncovered = 1 - float(np.mean([outcome.covered for _, outcome in known]))
    note = f"{foreseeable} of {len(outcomes)} foreseeable throughout; {others} of the others ran out"
    over_time = f"worst job {max(outcome.mean_over for outcome in outcomes):+.0%}"
    stopped = [outcome.end_over for curve, outcome in played if curve.stops]
    roomy = [outcome for outcome in outcomes if outcome.began_over > 0.5]
    began = f"{len(roomy)} jobs that began with {np.mean([o.began_over for o in roomy]):+.0%}"
    decisions = f"{np.mean([outcome.decisions for outcome in outcomes]):.1f} decisions a job"
    unforeseen = 1 - float(np.mean([outcome.foreseen for outcome in growing]))
    return [
        row_at_most("out of memory where foreseeable", failed, "jobs", 0, note),
        row_at_most("memory above need, at the end", _mean(o.end_over for o in outcomes), "%", 15, decisions),
        row_at_most("memory above need, over time", _mean(o.mean_over for o in outcomes), "%", 15, over_time),
        row_at_most("given back: above need at the end", _mean(o.end_over for o in roomy), "%", 15, began),
        row_at_most("the same where growth stopped", _mean(stopped), "%", 15, f"{len(stopped)} jobs"),
        row_at_most(
            "out of memory not foretold", 100 * unforeseen, "% of jobs", 1, f"{len(growing)} jobs that would run out"
        ),
        row_at_most("memory at the end, median error", 100 * error, "%", 5, f"from the first third; {len(known)} jobs"),
        row_at_most("outside the 90 % interval", 100 * uncovered, "% of jobs", 15, "the same jobs"),
    ]


def _surges() -> list[Row]:
    """The same jobs with a window that brings ten times as many rows, with and without a disk to spill to."""
    curves, play = importlib.import_module("curves"), importlib.import_module("play")

    def played(spills: bool) -> list[Any]:
        return [
            play.play(
                curves.with_surge(curves.generate(family, seed), seed),
                replace(play.Case.draw(4 * seed + number), spills=spills),
            )
            for number, family in enumerate(families())
            for seed in SEEDS
        ]

    killed, kept = played(False), played(True)
    return [
        row_at_most(
            "killed, a surge x10 within one report", _killed(kept), "jobs", 0, f"{_killed(killed)} without a disk"
        ),
        row_at_most("slowest step of these", max(job.slowest for job in kept), "x", 3, "over a step without reads"),
        row_at_most("longest time of slow steps", max(job.slow_s for job in kept), "s", 60, "slower by a twentieth"),
    ]


def _killed(played: list[Any]) -> int:
    return sum(job.oom_at is not None for job in played)


def _family(family: str, played: list[tuple[Any, Any]]) -> list[Row]:
    outcomes = [outcome for _, outcome in played]
    end, over = _mean(o.end_over for o in outcomes), _mean(o.mean_over for o in outcomes)
    ran_out = sum(outcome.oom_at is not None for outcome in outcomes)
    note = f"{over:.0f} % over time; {ran_out} of {len(outcomes)} ran out"
    return [row_at_most(f"memory above need at the end, {family}", end, "%", None, note)]


def _mean(shares: Iterable[float]) -> float:
    return 100 * float(np.mean(list(shares)))

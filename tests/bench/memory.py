"""Memory forecasts on generated growth: error, coverage, what was foreseen, what was asked for.

Each family has 20 jobs that begin with too little memory; requests take effect two windows later. The forecast at the
end is judged at the first third of the job. Of a late surge nothing can be known then: its row has no bar there.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

CURVES = Path(__file__).parents[2] / "libs" / "core" / "tests" / "memory"
JOBS = 20


def run() -> list[dict[str, Any]]:
    """Rows per family of curves."""
    sys.path.insert(0, str(CURVES))
    curves, play = importlib.import_module("curves"), importlib.import_module("play")
    return [row for family in curves.FAMILIES for row in _family(family, curves, play)]


def _family(family: str, curves: Any, play: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    played = []
    for seed in range(JOBS):
        curve = curves.generate(family, seed, moments=90)
        first = curve.used_bytes[3].max() / curve.need_bytes
        played.append(play.play(curve, first + (1 - first) * rng.uniform(0.15, 0.9)))
    error = float(np.median([abs(outcome.end_error) for outcome in played]))
    covered = float(np.mean([outcome.covered for outcome in played]))
    asked = float(np.mean([outcome.worst_request for outcome in played])) - 1
    ooms = sum(outcome.oom for outcome in played)
    foreseen = float(np.mean([outcome.foreseen for outcome in played]))
    knowable = family != "late-surge"
    spread = f"worst {max(outcome.worst_request for outcome in played) - 1:+.0%}; {ooms} of {JOBS} ran out"
    interval = f"90 % interval covered {covered:.0%}"
    return [
        _row(f"memory at the end, {family}", 100 * error, "% median error", 5.0 if knowable else None, interval),
        _row(f"largest request, {family}", 100 * asked, "% above need", 15.0, spread),
        _row(f"out of memory not foreseen, {family}", 100 * (1 - foreseen), "% of jobs", 1.0, ""),
    ]


def _row(name: str, value: float, unit: str, bar: float | None, note: str) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "baseline": None,
        "ratio": None,
        "bar": f"<= {bar:g} %" if bar is not None else "",
        "ok": value <= bar if bar is not None else None,
        "note": note,
    }

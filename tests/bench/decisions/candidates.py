"""The planner's search: the exact Pareto front of a million plans, compared with NSGA-II."""

from __future__ import annotations

import statistics
import time

from stretto_core.algorithms import PARETO
from stretto_core.fitter.regression import fit
from stretto_core.model.pareto import CandidateProblem, Grid, PricedPlan, exact_front
from stretto_core.model.throughput import Configuration, Measurement
from stretto_core.model.types import Prices
from stretto_messages.base import GIB

from tests.bench.claims import Claim, at_least
from tests.bench.rows import Row, row

ROUNDS = 15
BAR_MS = 100.0
CLAIMS = (
    Claim("DLRover-RM §4.3", "NSGA-II finds the Pareto front of candidates", "-",
          "share of its points that no plan of the grid beats; enumerating the grid is exact and faster",
          at_least(100.0), "points of NSGA-II that are on the front"),
)  # fmt: skip


def run() -> list[Row]:
    """Return the exact front's time, and NSGA-II's time and points on the same grid."""
    counts = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 3), (5, 4)]
    rows = [Configuration(workers, ps, 1.0, 1.0, 512) for workers, ps in counts]
    model = fit([Measurement(row, 0.02 + 0.1 * row.workers / row.ps**0.3 / 5) for row in rows])
    axis = tuple(float(cores) for cores in range(1, 33))
    grid = Grid(tuple(range(1, 65)), tuple(range(1, 17)), axis, axis, GIB, (GIB,) * 16)
    problem = CandidateProblem(model, 512, grid, Prices(0.04, 0.0))
    front, took_ms = exact_front(problem), []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        front = exact_front(problem)
        took_ms.append((time.perf_counter() - begin) * 1e3)
    value = statistics.median(took_ms)
    plans = len(grid.workers) * len(grid.ps) * len(axis) ** 2
    note = f"{plans:,} plans, {len(front)} on the front; median of {ROUNDS} ({min(took_ms):.0f}-{max(took_ms):.0f})"
    bar = f"<= {BAR_MS:.0f} ms"
    return [
        row("exact Pareto front of a million plans", value, "ms", bar, value <= BAR_MS, note),
        *_evolved(problem, front, value),
    ]


def _evolved(problem: CandidateProblem, front: list[PricedPlan], exact_ms: float) -> list[Row]:
    """Time the first run, without a warm-up, since a what-if runs once."""
    nsga2 = PARETO.named("nsga2")
    begin = time.perf_counter()
    found = nsga2(problem)
    took_ms = (time.perf_counter() - begin) * 1e3
    true = {(priced.cost_per_hour, priced.throughput) for priced in front}
    hits = sum((priced.cost_per_hour, priced.throughput) in true for priced in found)
    share = 100 * hits / len(found)
    note = f"{hits} of its {len(found)} points, of {len(front)} on the front"
    return [
        row("Pareto front by NSGA-II", took_ms, "ms", "", None, "100 plans, 60 generations", baseline=exact_ms),
        row("points of NSGA-II that are on the front", share, "%", "", None, note),
    ]

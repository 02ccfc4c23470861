"""The planner's search: the exact Pareto front of a million plans, compared with NSGA-II, and of mixes of devices."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from stretto_core.algorithms import PARETO
from stretto_core.fitter.regression import fit
from stretto_core.model.pareto import CandidateProblem, Grid, PricedPlan, exact_front, grid_within
from stretto_core.model.throughput import Configuration, FittedModel, Measurement
from stretto_core.model.types import DeviceType, JobLimits, JobProfile, Prices
from stretto_core.planner.mixing import fronts
from stretto_messages.base import GIB
from stretto_messages.values import ANY_DEVICE, Plan, Resources, extended_of

from tests.bench.claims import Claim, at_least
from tests.bench.rows import Row, row

ROUNDS = 15
BAR_MS, MIXED_BAR_MS = 100.0, 200.0
TYPES, UNITS = 4, 16
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
        _mixed(),
    ]


def _mixed() -> Row:
    """Time the front over all mixes of cores and four types of devices, beside that of the cores alone."""
    devices = tuple(
        DeviceType(f"type-{n}", 0.06 * n, UNITS, 4.0, 16 * GIB, interruptions_per_hour=0.1 * n)
        for n in range(1, TYPES + 1)
    )
    coefficients = {"a1": 4e-5, "a2": 0.003, "a3": 0.004, "a4": 4e-4}
    coefficients |= {f"a1@{device.name}": 2e-5 / n for n, device in enumerate(devices, 1)}
    size = len(coefficients)
    covariance = tuple(tuple(1e-9 * (i == j) for j in range(size)) for i in range(size))
    measured = tuple(Configuration(2, 1, 1.0, 1.0, 512, device=name) for name in ("", *(each.name for each in devices)))
    model = FittedModel("default", coefficients, covariance, 0.05, 8.0, 0.02, (), measured)
    limits = JobLimits(Plan(1, 1, 1.0, 1.0, GIB, GIB), Plan(64, 16, 8.0, 8.0, 8 * GIB, 64 * GIB))
    job = JobProfile(512, 10**9, limits, devices_asked=(ANY_DEVICE,)).among(devices)
    room = Resources(400.0, 2000 * GIB, extended_of({each.resource: each.count for each in devices}))
    current = Plan(4, 2, 2.0, 2.0, GIB, 4 * GIB)
    grid = grid_within(limits, room, current)
    problem = CandidateProblem(model, 512, grid, job.prices, room=room, devices=devices, back_s=30.0)
    turns = [(_ms(problem, current, devices), _ms(problem, current, ())) for _ in range(ROUNDS // 3)]
    value, alone = (statistics.median(each[at] for each in turns) for at in (0, 1))
    front, considered = fronts(problem, exact_front, current, limits.high.workers)
    on_devices = sum(bool(priced.plan.groups) for priced in front)
    note = (
        f"{considered:,} plans, {len(front)} on the front, {on_devices} of them with devices; {TYPES} types of {UNITS}"
        f" units; the baseline is cores alone; processor time, median of {len(turns)}"
    )
    bar = f"<= {MIXED_BAR_MS:.0f} ms"
    ok = value <= MIXED_BAR_MS
    return row("exact Pareto front over groups of workers", value, "ms", bar, ok, note, baseline=alone)


def _ms(problem: CandidateProblem, current: Plan, devices: tuple[DeviceType, ...]) -> float:
    begin = time.process_time()
    fronts(replace(problem, devices=devices), exact_front, current, 64)
    return 1e3 * (time.process_time() - begin)


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

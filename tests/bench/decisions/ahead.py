"""Selections of the live arbiter in crowded clusters: mean completion beside the default's (ModelArts section 5).

Arrivals, durations and sizes come from four public logs; ``stretto_sim.cluster.arrivals`` draws the rest. Each of
``SEEDS`` draws another part of the log, other needs and other noise. Jobs of minutes end before anything is decided
about them, and jobs of days would be all that counts in a mean: both are left out. Submissions follow one another in
the log's proportions, so fast that the logged jobs would fill ``LOAD`` of the nodes. All policies play the same, by the
machines of the services. A figure is the share by which mean completion is below the default's, over the jobs that
complete under both: its mean over the seeds, with the 90 % interval. Further rows compare what a million samples cost,
in a roomier cluster under the objective ``cost``, with the plans that users stated.
"""

from __future__ import annotations

import csv
import gzip
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import get_args

from stretto_core.algorithms import SELECT
from stretto_core.arbiter.ahead.horizon import horizon
from stretto_core.arbiter.selection import Contender, Objective, SelectionAlgorithm, SelectionProblem
from stretto_core.arbiter.selection.doubling import doubling
from stretto_core.arbiter.selection.hull import hull
from stretto_core.model.types import Prices
from stretto_sim.cluster import Arrival, ClusterOutcome, ClusterTraceSettings, jobs_of, simulate
from stretto_sim.cluster.policies import STATIC
from stretto_sim.cluster.stretto import Knobs, with_knobs
from stretto_sim.costs import CostComparison, compared

from tests.bench.claims import Claim, at_least
from tests.bench.decisions.cluster import less
from tests.bench.decisions.selection import BAR_MS, Kind, problem
from tests.bench.places import DATA
from tests.bench.rows import Row, row

SEEDS, JOBS, LOAD, NODES, NODE_CORES = 10, 24, 1.2, 8, 32
LEAST_S, MOST_S = 1800.0, 4 * 3600.0
ROOMY_LOAD, ROOMY_NODES = 0.8, 20
"""The cluster of the comparison of costs, as in ``tests.bench.decisions.cluster``."""
T90 = 1.833
"""Student's t of nine degrees of freedom: half of a 90 % interval, in standard errors of the mean."""
GAP_BAR = 0.01
BAR, TRACES_MIN = 0.10, 2
COST_BAR, COST_TRACES_MIN, COST_SEEDS = 0.35, 3, 3
ON_DEMAND, PREEMPTIBLE = Prices(0.031611, 0.004237), Prices(0.006655, 0.000892)
"""A core and a GiB of n1 machines for an hour in us-central1 (shared/data/prices)."""
PREEMPTIONS_PER_DAY = 1.0
"""A preemptible machine runs for a day at most (its terms of use)."""
CHOICES: dict[str, tuple[str, Objective]] = {
    "default": (SELECT.default, "completion"),
    "efficiency": (SELECT.default, "efficiency"),
    "gain": (SELECT.default, "gain"),
    "doubling": ("doubling", "completion"),
    "horizon": ("horizon", "completion"),
    "greedy": ("weighted-greedy", "completion"),
}
"""The algorithm and the objective of each; `default` is what the others are compared with."""


def _philly() -> Iterator[tuple[float, float, int]]:
    for each in _read(DATA / "philly" / "philly_vcs_a.csv.gz"):
        yield datetime.fromisoformat(each["timestamp"]).timestamp(), float(each["duration"]), int(each["num_gpus"])


def _itp(cluster: str) -> Iterator[tuple[float, float, int]]:
    for each in _read(DATA / "microsoft-itp" / "raw" / f"{cluster}.csv.gz"):
        yield float(each["submission_time"]), float(each["duration"]), int(each["num_gpu"])


def _openb() -> Iterator[tuple[float, float, int]]:
    for each in _read(DATA / "openb" / "pod_list_first_half.csv.gz"):
        if each["deletion_time"] and each["scheduled_time"]:
            took_s = float(each["deletion_time"]) - float(each["scheduled_time"])
            yield float(each["creation_time"]), took_s, int(each["num_gpu"])


LOGS: dict[str, Callable[[], Iterator[tuple[float, float, int]]]] = {
    "philly": _philly,
    "itp cluster03": partial(_itp, "cluster03"),
    "itp cluster07": partial(_itp, "cluster07"),
    "openb": _openb,
}


def _read(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as opened:
        yield from csv.DictReader(opened)


@cache
def log(name: str) -> list[tuple[float, float, int]]:
    """Return submission (s), duration (s) and GPUs of a log's jobs of a usual duration, by submission."""
    return sorted(each for each in LOGS[name]() if LEAST_S <= each[1] <= MOST_S and each[2] >= 1)


def arrivals(name: str, seed: int, nodes: int = NODES, load: float = LOAD) -> list[Arrival]:
    """Return consecutive jobs of a log, another part for each seed, submitted so fast that they would fill the nodes to
    the load; the first is submitted at 0."""
    found = log(name)
    skipped = round((seed + 0.5) / SEEDS * (len(found) - JOBS))
    kept = found[skipped : skipped + JOBS]
    core_s = sum(8.0 * min(gpus, 16) * took_s for _, took_s, gpus in kept)
    faster = core_s / load / (nodes * NODE_CORES) / max(kept[-1][0] - kept[0][0], 1.0)
    return [Arrival((when_s - kept[0][0]) * faster, took_s, gpus) for when_s, took_s, gpus in kept]


CLAIMS = (
    Claim("ModelArts §5, Fig. 11", "looking ahead, live, trains more jobs than greedy, by up to", "17.4 %",
          "mean completion, beside a choice with a bound, by machines that shrink no job for another one's growth",
          at_least(17.4), "mean completion below the default's, horizon"),
)  # fmt: skip


@cache
def played(name: str, seed: int, choice: str) -> ClusterOutcome:
    """Return the outcome of a part of a log under one of the choices."""
    algorithm, objective = CHOICES[choice]
    coming = arrivals(name, seed)
    policy = with_knobs(replace(Knobs(), select=algorithm, objective=objective))
    return simulate(jobs_of(coming, seed), policy, ClusterTraceSettings(NODES, seed=seed))


def run() -> list[Row]:
    """Return the rows; one without figures where the data are absent."""
    if not DATA.exists():
        note = "public data not found: not measured"
        return [*_thousand(), row("selections in crowded clusters", float("nan"), "", "", None, note)]
    return [*_thousand(), *_completion(), *_costs()]


def _thousand() -> list[Row]:
    """Time the selections of 1,000 jobs that end in minutes to days, each beside the hull's in turns."""
    problems = [_live(kind, seed) for kind in get_args(Kind) for seed in (1, 2)]
    rows = list[Row]()
    for name, select in (("horizon", horizon), ("doubling", doubling)):
        turns = [(_timed(select, each), _timed(hull, each)) for _ in range(3) for each in problems]
        value, base = (statistics.median(each[at][0] for each in turns) for at in (0, 1))
        gap = max(each[0][1] for each in turns)
        ok = value <= BAR_MS and gap <= GAP_BAR
        note = f"largest proven gap {gap:.3%}; the baseline is hull; processor time, median of {len(turns)}"
        bar = f"<= {BAR_MS:g} ms, gap <= {GAP_BAR:.0%}"
        rows.append(row(f"select 1,000 jobs, {name}", value, "ms", bar, ok, note, baseline=base))
    return rows


def _live(kind: Kind, seed: int) -> SelectionProblem:
    """Return the problem of ``tests.bench.decisions.selection`` with present speeds, and with what the jobs hold."""
    made, draw = problem(kind, "completion", seed), random.Random(seed)
    contenders = list[Contender]()
    for each in made.contenders:
        first = each.options[0]
        now = max(first.throughput - first.gain, first.throughput / 2)
        held = {name: max(amount, 0.0) / 2 for name, amount in first.amounts.items()}
        left = now * draw.lognormvariate(8.0, 1.5)
        contenders.append(replace(each, remaining_samples=left, throughput=now, held=held))
    return replace(made, contenders=tuple(contenders))


def _timed(select: SelectionAlgorithm, asked: SelectionProblem) -> tuple[float, float]:
    """Return the processor time (ms) and the proven gap."""
    begin = time.process_time()
    found = select(asked)
    return 1000 * (time.process_time() - begin), (found.bound - found.value) / found.bound


def _completion() -> list[Row]:
    """Compare mean completion with the default's; the bar is for the best of the others."""
    others = [choice for choice in CHOICES if choice != "default"]
    found = {choice: {name: _gain(name, choice) for name in LOGS} for choice in others}
    passed = {choice: sum(mean >= BAR for mean, _ in gains.values()) for choice, gains in found.items()}
    means = {choice: statistics.fmean(mean for mean, _ in gains.values()) for choice, gains in found.items()}
    best = max(others, key=lambda choice: (passed[choice], means[choice]))
    rows = list[Row]()
    for choice, gains in found.items():
        note = "; ".join(f"{name} {mean:+.1%} ± {half:.1%}" for name, (mean, half) in gains.items())
        bar, ok = "", None
        if choice == best:
            bar, ok = f"{TRACES_MIN} of {len(LOGS)} logs >= {BAR:.0%}", passed[choice] >= TRACES_MIN
        note = f"{note}; 90 % intervals of {SEEDS} seeds of {JOBS} jobs"
        rows.append(row(f"mean completion below the default's, {choice}", 100 * means[choice], "%", bar, ok, note))
    return rows


def _gain(name: str, choice: str) -> tuple[float, float]:
    """Return the mean share by which mean completion is below the default's, and half of its interval."""
    gains = [less(played(name, seed, choice), played(name, seed, "default")) for seed in range(SEEDS)]
    return statistics.fmean(gains), T90 * statistics.stdev(gains) / math.sqrt(SEEDS)


def _costs() -> list[Row]:
    """Compare what a million samples cost with what users stated, on demand and on preemptible machines."""
    rows = list[Row]()
    for kind, prices, deaths in (("on demand", ON_DEMAND, 0.0), ("preemptible", PREEMPTIBLE, PREEMPTIONS_PER_DAY)):
        found = {name: [_cost(name, seed, prices, deaths) for seed in range(COST_SEEDS)] for name in LOGS}
        saved = {name: statistics.fmean(each.saved for each in costs) for name, costs in found.items()}
        slower = {
            name: statistics.fmean(each.policy.p95_completion_s / each.stated.p95_completion_s - 1 for each in costs)
            for name, costs in found.items()
        }
        good = sum(saved[name] >= COST_BAR and slower[name] <= 0 for name in LOGS)
        gap = statistics.fmean(each.gap for costs in found.values() for each in costs)
        note = "; ".join(f"{name} {saved[name]:.0%}, p95 {slower[name]:+.0%}" for name in LOGS)
        bar = f"{COST_TRACES_MIN} of {len(LOGS)} logs >= {COST_BAR:.0%}, p95 no worse"
        note = f"{note}; {gap:.0%} above a proven lower bound; {COST_SEEDS} seeds of {JOBS} jobs"
        name, value = f"cost of a million samples below what users stated, {kind}", statistics.fmean(saved.values())
        rows.append(row(name, 100 * value, "%", bar, good >= COST_TRACES_MIN, note))
    return rows


def _cost(name: str, seed: int, prices: Prices, deaths_per_day: float) -> CostComparison:
    coming = arrivals(name, seed, ROOMY_NODES, ROOMY_LOAD)
    settings = ClusterTraceSettings(ROOMY_NODES, pod_failures_per_day=deaths_per_day, seed=seed)
    # users of machines that are taken away keep checkpoints
    static = replace(STATIC, when_pods_die="the job restarts") if deaths_per_day else STATIC
    jobs = jobs_of(coming, seed)
    policy = with_knobs(replace(Knobs(), objective="cost"))
    return compared(jobs, simulate(jobs, policy, settings), simulate(jobs, static, settings), prices)

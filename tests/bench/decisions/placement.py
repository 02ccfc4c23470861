"""Layers on types of devices: the proven optimum's time, compared with every method of HeterPS."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from stretto_core.algorithms import PLACE
from stretto_core.planner.placement import Placement, PlacementProblem, exact

from tests.bench.claims import Claim, above, at_most, never
from tests.bench.decisions.layers import invented, limited, public
from tests.bench.rows import Row, row

SEEDS, TIMES = range(4), 5
SOLVES = (  # layers, types, with limits, milliseconds
    (16, 4, False, 20.0),
    (20, 64, False, 300.0),
    (16, 4, True, 200.0),
    (20, 64, True, 2_000.0),
)
LEARNING = "rl-lstm"
METHODS = (LEARNING, "rl-rnn", "bayesian", "genetic", "greedy", "cpu-only", "gpu-only", "heuristic")
SAME = 1e-8
"""relative tolerance between two costs that are proven to 1e-9"""

CORES_A_CARD = 6
RATIO = f"cost at {CORES_A_CARD} cores to each card, times the exact one"

CLAIMS = (
    Claim("HeterPS §4.2", "placing layers is NP-hard", "-",
          "not without limits: for one throughput it is a shortest path over (layer, type), and branch and bound over "
          "throughputs proves the optimum", never, "place 20 layers × 64 types"),
    Claim("HeterPS §6.2, Table 2", "reinforcement learning finds the optimum of brute force (8 to 20 layers)", "0 %",
          "mean above the proven optimum, on our problems and with a budget of seconds", at_most(0.1),
          "cost by rl-lstm"),
    Claim("HeterPS §6.2, Tables 2-3", "reinforcement learning decides in", "16-89 s",
          "processor time; fewer plans are tried, each provisioned at its best throughput", at_most(89.0),
          "time of rl-lstm, 16 layers × 4 types"),
    Claim("HeterPS §6.2", "an LSTM finds cheaper plans than an Elman network", "by up to 321.1 %",
          "published as the largest difference, ours as the mean ratio of costs", above(1.0 + SAME),
          "cost by rl-rnn, times rl-lstm's"),
    Claim("HeterPS §6.2", "it finds cheaper plans than Bayesian optimisation", "by up to 27.9 %",
          "as above; a Gaussian process over assignments with 120 trials", above(1.0 + SAME),
          "cost by bayesian, times rl-lstm's"),
    Claim("HeterPS §6.2", "it finds cheaper plans than a genetic algorithm", "by up to 289.3 %",
          "as above; 60 generations of 50", above(1.0 + SAME), "cost by genetic, times rl-lstm's"),
    Claim("HeterPS §6.2", "it finds cheaper plans than the greedy method", "by up to 291.4 %",
          "as above; greedy settles each layer by the exact cost of those up to it", above(1.0 + SAME),
          "cost by greedy, times rl-lstm's"),
    Claim("HeterPS §6.2", "it finds cheaper plans than CPUs only", "by up to 4137.3 %", "as above",
          above(1.0 + SAME), "cost by cpu-only, times rl-lstm's"),
    Claim("HeterPS §6.2", "it finds cheaper plans than GPUs only", "by up to 304.2 %", "as above",
          above(1.0 + SAME), "cost by gpu-only, times rl-lstm's"),
    Claim("HeterPS §6.2", "it finds cheaper plans than the heuristic that splits after the first layer",
          "by up to 312.3 %", "as above", above(1.0 + SAME), "cost by heuristic, times rl-lstm's"),
    Claim("HeterPS Fig. 4", "P1: provisioning is cheaper than 6 CPU cores to each card (StaRatio)", "by up to 57.9 %",
          "mean ratio of computed costs at the optimum's throughput; StaPSRatio adds 6 cores for servers, which the "
          "cost model has not", above(1.0 + SAME), RATIO),
)  # fmt: skip


def run() -> list[Row]:
    """Return the solver's rows, then those of every method on every problem."""
    tried = [_Tried(name, problem) for name, problem in _problems()]
    return [*(_solved(*case) for case in SOLVES), _nothing_cheaper(tried), _at_ratio(tried), *_compared(tried)]


def _problems() -> Iterator[tuple[str, PlacementProblem]]:
    yield "16 × 4", invented(16, 4, 11)
    yield "16 × 4 limited", limited(invented(16, 4, 12))
    yield "20 × 64", invented(20, 64, 13)
    yield from public()


@dataclass
class _Tried:
    """Return each method's placement of a problem, and its processor seconds."""

    name: str
    problem: PlacementProblem
    best: Placement = field(init=False)
    found: dict[str, Placement | None] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        best = exact(self.problem)
        assert best is not None
        self.best = best
        for method in METHODS:
            solve, begin = PLACE.named(method), time.process_time()
            self.found[method] = solve(self.problem)
            self.took_s[method] = time.process_time() - begin

    def cost(self, method: str) -> float:
        """Return the cost; infinite if the method found no placement."""
        found = self.found[method]
        return found.cost if found else math.inf


def _solved(layers: int, types: int, with_limits: bool, bar_ms: float) -> Row:
    """Return the row of the slowest problem.

    The least of ``TIMES`` solves counts: a solve is deterministic, and other load can only add to it."""
    problems = [invented(layers, types, seed) for seed in SEEDS]
    problems = [limited(problem) for problem in problems] if with_limits else problems
    took_ms, gaps, proven = list[float](), list[float](), 0
    for problem in problems:
        found, tries_ms = None, list[float]()
        for _ in range(TIMES):
            begin = time.process_time()
            found = exact(problem)
            tries_ms.append((time.process_time() - begin) * 1e3)
        took_ms.append(min(tries_ms))
        assert found is not None
        assert found.bound is not None
        gaps.append((found.cost - found.bound) / found.bound)
        proven += found.optimal
    value = max(took_ms)
    wanted = "proven or with its gap" if (layers, with_limits) == (20, True) else "proven"
    ok = value <= bar_ms and (proven == len(problems) or wanted != "proven")
    note = (
        f"processor time, the slowest of {len(problems)}, each the least of {TIMES} (median "
        f"{statistics.median(took_ms):.1f}); {proven} proven, largest gap {max(gaps):.2%}"
    )
    name = f"place {layers} layers × {types} types" + (", with limits" if with_limits else "")
    return row(name, value, "ms", f"<= {bar_ms:g} ms, {wanted}", ok, note)


def _nothing_cheaper(tried: list[_Tried]) -> Row:
    """Return the row of the least cost of any method as a multiple of the exact one's, over all problems."""
    ratios = [each.cost(method) / each.best.cost for each in tried for method in METHODS]
    value = min(ratios)
    names = ", ".join(each.name for each in tried)
    note = f"{len(METHODS)} methods on {names}" + ("" if len(tried) > 3 else "; no public data here")
    return row("the cheapest other plan, times the exact one", value, "×", ">= 1", value >= 1 - SAME, note)


def _at_ratio(tried: list[_Tried]) -> Row:
    """Return the row of HeterPS' StaRatio: the optimum's stages with as many cards and cores as both need at 1 : 6."""
    ratios = list[float]()
    for each in tried:
        types, units = each.problem.types, Counter[bool]()
        price = dict.fromkeys((True, False), 0.0)
        for stage in each.best.stages:
            units[types[stage.type].is_cpu] += stage.units
            price[types[stage.type].is_cpu] += stage.units * types[stage.type].price_per_hour
        if units[True] and units[False]:
            cards = max(units[False], math.ceil(units[True] / CORES_A_CARD))
            fixed = cards * (price[False] / units[False] + CORES_A_CARD * price[True] / units[True])
            ratios.append(fixed / (price[False] + price[True]))
    most = max(ratios, default=math.nan)
    note = f"mean over the {len(ratios)} of {len(tried)} problems whose optimum has both, at most {most:.2f}"
    return row(RATIO, statistics.fmean(ratios) if ratios else math.nan, "×", "", None, note)


def _compared(tried: list[_Tried]) -> Iterator[Row]:
    for method in METHODS:
        above = [each.cost(method) / each.best.cost - 1 for each in tried if math.isfinite(each.cost(method))]
        took_s = [each.took_s[method] for each in tried]
        nothing, reached = len(tried) - len(above), sum(share < 1e-6 for share in above)
        note = (
            f"mean above the optimum, at most {max(above, default=math.nan):.1%}; reached in {reached} of {len(tried)}"
            + (f", found nothing {nothing} times" if nothing else "")
            + f"; {statistics.fmean(took_s):.2g} s each, at most {max(took_s):.2g}"
        )
        yield row(f"cost by {method}", statistics.fmean(above) * 100 if above else math.nan, "%", "", None, note)
    first = tried[0]
    yield row(f"time of {LEARNING}, 16 layers × 4 types", first.took_s[LEARNING], "s", "", None,
               f"processor time; published 16-89 s; exact {1e3 * _exact_s(first.problem):.1f} ms")  # fmt: skip
    for method in METHODS[1:]:
        both = [each for each in tried if math.isfinite(each.cost(method) + each.cost(LEARNING))]
        ratios = [each.cost(method) / each.cost(LEARNING) for each in both] or [math.nan]
        note = f"mean ratio over {len(both)} problems ({min(ratios):.3g}-{max(ratios):.3g})"
        yield row(f"cost by {method}, times {LEARNING}'s", statistics.fmean(ratios), "×", "", None, note)


def _exact_s(problem: PlacementProblem) -> float:
    begin = time.process_time()
    exact(problem)
    return time.process_time() - begin

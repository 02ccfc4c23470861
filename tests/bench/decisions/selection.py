"""One choice over 1,000 jobs: time of each algorithm, distance to the optimum, and proved bound.

The generated jobs have ten candidates each, gains that diminish with the cores, and 10^5 to 10^8 samples left; a fifth
of the resources that all jobs together could use is free. Three kinds: whole cores; cores and memory; fractions of
cores. Further rows time whole rounds of the arbiter: the choice and the decisions with their reasons.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import replace
from typing import Literal, get_args

from stretto_core.arbiter.machine import ArbiterMachine
from stretto_core.arbiter.selection import (
    Contender,
    Objective,
    Option,
    Selection,
    SelectionAlgorithm,
    SelectionProblem,
    weighted_greedy,
)
from stretto_core.arbiter.selection.exact import exact
from stretto_core.arbiter.selection.hull import hull
from stretto_core.arbiter.state import ArbiterSettings
from stretto_core.machine import Tick
from stretto_core.model.types import DeviceType, JobLimits, JobOpened, JobProfile
from stretto_messages.actuator import PlanApplied
from stretto_messages.arbiter import PlanDecided
from stretto_messages.base import GIB
from stretto_messages.planner import PlanProposed
from stretto_messages.values import ANY_DEVICE, Candidate, Plan, Resources, extended_of

from tests.bench.claims import Claim, at_least
from tests.bench.rows import Row, row
from tests.live_bus import candidate, computed

JOBS, CANDIDATES, ROUNDS = 1_000, 10, 5
BAR_MS, BAR_SHARE = 150.0, 0.999
LIVE, LIVE_BAR_MS = "a round of the arbiter, 1,000 live jobs", 250.0
GAP_BAR = 0.01
TYPES = tuple(DeviceType(f"type-{n}", 0.2 * n, JOBS // 2, 4.0, 16 * GIB) for n in range(1, 5))
Kind = Literal["whole cores", "cores and memory", "fractions of cores"]
OF_OPTIMUM, EXACT, PAPERS = (
    "select 1,000 jobs",
    "select 1,000 jobs, proven optimum",
    "of the optimum by weighted greedy",
)
ATTAINABLE = "throughput gain of Eq. 12's optimum, of the attainable"
CLAIMS = (
    Claim("DLRover-RM §4.3", "weighted greedy is sufficiently efficient", "no figure, no bound",
          "near the optimum of its own objective, and now with a proof; of the others it misses a tenth or a fiftieth",
          at_least(99.0), f"efficiency {PAPERS}"),
    Claim("DLRover-RM §4.3", "Eq. 12 allocates the cluster efficiently", "-",
          "a sum of ratios prefers every job's smallest change: `gain` and `completion` can be chosen instead",
          at_least(100.0), ATTAINABLE),
)  # fmt: skip


def problem(kind: Kind, objective: Objective, seed: int = 1) -> SelectionProblem:
    """Generate 1,000 jobs of one kind."""
    draw = random.Random(seed)
    contenders, wanted = list[Contender](), 0.0
    for j in range(JOBS):
        base, now, options = draw.uniform(50, 500), draw.uniform(500, 5000), list[Option]()
        for i in range(CANDIDATES):
            cores = draw.uniform(0.5, 32) if kind == "fractions of cores" else float(draw.randint(1, 32))
            amounts = {"cpu_cores": cores}
            if kind == "cores and memory":
                amounts["memory_bytes"] = draw.randint(1, 64) * 2.0**30
            gain = base * cores ** draw.uniform(0.3, 0.9) * draw.uniform(0.8, 1.2)
            options.append(Option(f"c{i}", amounts, 0.05 * cores, gain, now + gain))
        wanted += max(option.amounts["cpu_cores"] for option in options)
        contenders.append(Contender(f"j{j}", 10 ** draw.uniform(5, 8), tuple(options), throughput=now))
    free = float(wanted // 5)
    return SelectionProblem(tuple(contenders), {"cpu_cores": free, "memory_bytes": free * 2.0**31}, objective)


def run() -> list[Row]:
    """Return rows of every objective, each the worst of the three kinds."""
    rows = list[Row]()
    optima = dict[str, Selection]()
    for objective in get_args(Objective):
        problems = {kind: problem(kind, objective) for kind in get_args(Kind)}
        best = {kind: _timed(exact, each) for kind, each in problems.items()}
        near = {kind: _timed(hull, each) for kind, each in problems.items()}
        paper = {kind: _timed(weighted_greedy, each) for kind, each in problems.items()}
        share = {kind: near[kind][0].value / best[kind][0].value for kind in problems}
        value = max(ms for _, ms in near.values())
        ok = value <= BAR_MS and min(share.values()) >= BAR_SHARE
        note = f"hull; {_ms(near)}; {min(share.values()):.4%} of the optimum, proven gap {_gap(near)}"
        rows.append(row(f"{OF_OPTIMUM}, {objective}", value, "ms", f"<= {BAR_MS:g} ms, >= {BAR_SHARE:.1%}", ok, note))
        rows.append(row(f"{EXACT}, {objective}", max(ms for _, ms in best.values()), "ms", "", None,
                         f"exact; {_ms(best)}; proven gap {_gap(best)}"))  # fmt: skip
        least = min(paper[kind][0].value / best[kind][0].value for kind in problems)
        rows.append(row(f"{objective} {PAPERS}", least * 100, "%", "", None, f"the worst of: {_ms(paper)}"))
        optima[objective] = best["cores and memory"][0]
    gained = problem("cores and memory", "gain")
    reached = sum(
        gained.value(contender, option)
        for contender in gained.contenders
        for option in contender.options
        if optima["efficiency"].chosen[contender.job] == option.id
    )
    note = "rho 2.5; cores and memory; both optima are proven"
    rows.append(row(ATTAINABLE, reached / optima["gain"].value * 100, "%", "", None, note))
    live = {objective: _live(objective) for objective in get_args(Objective)}
    slowest = max(max(took_ms) for took_ms in live.values())
    note = "processor time; three rounds of 50 candidates per job: " + ", ".join(
        f"{objective} {min(took_ms):.0f}-{max(took_ms):.0f}" for objective, took_ms in live.items()
    )
    return [*rows, row(LIVE, slowest, "ms", f"<= {LIVE_BAR_MS:g} ms", slowest <= LIVE_BAR_MS, note), _on_types()]


def _on_types() -> Row:
    """Time rounds over jobs whose workers may have devices of four types, beside the same jobs on cores."""
    took_ms, gap = _rounds("efficiency", CANDIDATES, TYPES)
    alone_ms, _ = _rounds("efficiency", CANDIDATES)
    many_ms, many_gap = _rounds("efficiency", devices=TYPES)
    value, bar = max(took_ms), f"<= {BAR_MS:g} ms, gap <= {GAP_BAR:.0%}"
    note = (
        f"processor time, the slowest of three rounds of {CANDIDATES} candidates a job ({min(took_ms):.0f}-{value:.0f})"
        f"; largest proven gap {gap:.3%}; the baseline is the same without devices; of 50 candidates"
        f" {min(many_ms):.0f}-{max(many_ms):.0f}, gap {many_gap:.3%}"
    )
    name = f"a round of the arbiter, 1,000 live jobs on {len(TYPES)} types of devices"
    return row(name, value, "ms", bar, value <= BAR_MS and gap <= GAP_BAR, note, baseline=max(alone_ms))


def _live(objective: Objective) -> list[float]:
    """Return the milliseconds of processor time of rounds of the arbiter: 1,000 live jobs, all of which could gain."""
    return _rounds(objective)[0]


def _rounds(
    objective: Objective, candidates: int = 50, devices: tuple[DeviceType, ...] = ()
) -> tuple[list[float], float]:
    """Return the milliseconds of processor time of rounds of the arbiter, and the largest gap of their decisions.

    Two thirds of the candidates have a group of workers on one of the ``devices``, if there are any.
    """
    draw, least = random.Random(3), Plan(1, 1, 1.0, 1.0, GIB, GIB)
    limits = JobLimits(least, Plan(64, 16, 8.0, 8.0, 16 * GIB, 16 * GIB))
    room = Resources(JOBS * 4.0, JOBS * 60 * GIB, extended_of({each.resource: each.count for each in devices}))
    machine = ArbiterMachine(None, ArbiterSettings(room, objective, devices=devices))
    for n in range(JOBS):
        job = f"job-{n:04d}"
        asked = (ANY_DEVICE,) if devices else ()
        profile = JobProfile(512, 10**7 * draw.randint(1, 50), limits, devices_asked=asked)
        machine.handle(JobOpened(job, profile), 0.0)
        first = PlanProposed(job=job, kind="warm-start", plan=least, cost_per_hour=0.1, reasons=("the first",))
        machine.handle(first, 0.0)
        machine.handle(PlanApplied(job=job, version=1, plan=least, took_s=2.0), 0.0)
    machine.state.last_round_s = 100.0  # the first round begins once all jobs have their candidates
    for n in range(JOBS):
        rows = list[Candidate]()
        for _ in range(candidates):
            plan = replace(least, workers=draw.randint(2, 40), ps=draw.randint(1, 6))
            rate = 1000 * plan.workers ** draw.uniform(0.5, 0.9) * plan.ps**0.1
            cost = 0.05 * (plan.workers + plan.ps)
            if devices and draw.random() < 2 / 3:
                device = draw.choice(devices)
                group = device.group(draw.randint(1, 4))
                plan = plan.with_workers(max(plan.workers - group.workers, 0), [group])
                rate, cost = rate * (1 + group.workers / 4), cost + device.price_per_hour * group.workers
            rows.append(candidate(f"c{len(rows)}", plan, rate, cost))
        machine.handle(computed(f"job-{n:04d}", least, *rows), 100.0)
    took_ms, gaps = list[float](), [0.0]
    for now in (102.0, 104.0, 106.0):
        begin = time.process_time()
        decided = machine.handle(Tick(), now)
        took_ms.append((time.process_time() - begin) * 1e3)
        if not decided and now == 102.0:
            raise RuntimeError("the round decided nothing: there is nothing to measure")
        gaps += [action.fact.round.gap for action in decided if isinstance(action.fact, PlanDecided)]
    return took_ms, max(gaps)


def _timed(algorithm: SelectionAlgorithm, given: SelectionProblem) -> tuple[Selection, float]:
    """Return the choice, and the median of its processor time in milliseconds."""
    found, took_ms = algorithm(given), list[float]()
    for _ in range(ROUNDS):
        begin = time.process_time()
        found = algorithm(given)
        took_ms.append((time.process_time() - begin) * 1e3)
    return found, statistics.median(took_ms)


def _ms(found: dict[Kind, tuple[Selection, float]]) -> str:
    return ", ".join(f"{kind} {ms:.0f} ms" for kind, (_, ms) in found.items()) + " of processor time"


def _gap(found: dict[Kind, tuple[Selection, float]]) -> str:
    return f"{max((each.bound - each.value) / each.bound for each, _ in found.values()):.1e}"

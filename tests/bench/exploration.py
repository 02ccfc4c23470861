"""How few measurements tell which plan is the fastest: invented jobs, each reading 5 % off, some of them hung.

The truth of a third of the jobs is the paper's form, of another the default one, of the last one whose computing and
communicating overlap; the share of every term in the step is drawn at random. A plan is a number of workers and of
PSes that a budget of pods allows; a point is one reading.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

import numpy as np
from stretto_core.experiments import OPTIMISTIC_GAIN_MIN, fastest, to_verify, worth_measuring
from stretto_core.fitting import fit
from stretto_core.throughput import (
    DEFAULT,
    PAPER,
    Configuration,
    FittedModel,
    Inputs,
    Measurement,
    design_of,
    log_sensitivity,
    terms_of,
)

PODS = 16
PLANS = [Configuration(w, p, 1.0, 1.0, 512) for w in range(1, PODS) for p in range(1, 9) if w + p <= PODS]
START = PLANS.index(Configuration(2, 1, 1.0, 1.0, 512))
KINDS = ((DEFAULT, 1.0), (PAPER, 1.0), (DEFAULT, 4.0))
"""form and overlap of the truths"""
AXES = ("workers", "ps")
JOBS, NOISE, HUNG = 100, 0.05, 0.1
VERIFIED = 3
POINTS, MOST = (5, 8), 8
FEW, UNLIKE = (2, 3, 4), 0.3


def truth(seed: int, unlike: float = 0.0) -> np.ndarray:
    """Step times of all plans, seconds. ``unlike``: by how much, in logs, each term is another in a similar job."""
    form, overlap = KINDS[seed % len(KINDS)]
    draw, x = np.random.default_rng(seed), Inputs.of(PLANS)
    terms = terms_of(form, x, overlap=overlap)
    design = design_of(terms, x)
    theta = draw.dirichlet(np.ones(len(terms))) / np.maximum(design.mean(axis=0), 1e-300) * 0.1
    theta *= np.exp(unlike * draw.standard_normal(len(terms)))
    return log_sensitivity(terms, design, theta, overlap)[0]


class Job:
    """One to be explored."""

    def __init__(self, seed: int, hung: float, unlike: float = 0.0) -> None:
        self.times, self.hung = truth(seed, unlike), hung
        self.draw = np.random.default_rng(seed + 10**6 * (1 + (unlike > 0)))
        self.readings = [self.read(PLANS[START])]

    def read(self, plan: Configuration) -> Measurement:
        """5 % off, or hung: two to six times as long."""
        measured = self.times[PLANS.index(plan)] * math.exp(NOISE * self.draw.standard_normal())
        hung = self.draw.uniform(2, 6) if self.draw.random() < self.hung else 1.0
        return Measurement(plan, float(measured * hung))

    @property
    def measured(self) -> list[Configuration]:
        return [row.configuration for row in self.readings]

    def explore(self, gain_min: float = OPTIMISTIC_GAIN_MIN) -> bool:
        """Measure one more; False where it is not worth it."""
        found = worth_measuring(fit(self.readings), self.measured, AXES, 1, PLANS, gain_min)
        self.readings += [self.read(plan) for plan in found]
        return bool(found)

    def error(self, model: FittedModel) -> float:
        return float(np.abs(model.step_time_s(Inputs.of(PLANS)) / self.times - 1).mean())

    def regret(self, chosen: Configuration) -> float:
        rate = np.array([plan.workers for plan in PLANS]) / self.times
        return 1 - float(rate[PLANS.index(chosen)] / rate.max())


def errors(seed: int, hung: float = 0.0) -> dict[int, float]:
    """Mean error of all plans' step times, by points measured; stopping is not allowed."""
    job, found = Job(seed, hung), dict[int, float]()
    while len(job.readings) < max(POINTS):
        job.explore(gain_min=-1.0)
        if len(job.readings) in POINTS:
            found[len(job.readings)] = job.error(fit(job.readings))
    return found


def helped(seed: int) -> dict[tuple[int, bool], float]:
    """Errors after few points, without and with the model of a similar job that was explored before."""
    before, job = Job(seed, 0.0, UNLIKE), Job(seed, 0.0)
    while len(before.readings) < MOST:
        before.explore(gain_min=-1.0)
    similar, found = fit(before.readings), dict[tuple[int, bool], float]()
    while len(job.readings) < max(FEW):
        job.explore(gain_min=-1.0)
        if len(job.readings) in FEW:
            found[len(job.readings), False] = job.error(fit(job.readings))
            found[len(job.readings), True] = job.error(fit(job.readings, similar=similar))
    return found


def choice(seed: int) -> tuple[float, float, int]:
    """How much slower the chosen plan is than the best one, with and without measuring the best few before; points."""
    job = Job(seed, 0.0)
    while len(job.readings) < MOST and job.explore():
        pass
    unverified = job.regret(fastest(fit(job.readings), PLANS))
    for _ in range(VERIFIED):
        plan = to_verify(fit(job.readings), job.measured, PLANS)
        if plan is None:
            break
        job.readings.append(job.read(plan))
    return job.regret(fastest(fit(job.readings), PLANS)), unverified, len(job.readings)


def run() -> list[dict[str, Any]]:
    """The bars of readings that are only noisy, then of some that hung."""
    calm, hung = [errors(seed) for seed in range(JOBS)], [errors(seed, HUNG) for seed in range(JOBS)]
    began = time.process_time()
    regrets, unverified, points = zip(*(choice(seed) for seed in range(JOBS)), strict=True)
    job_ms = (time.process_time() - began) / JOBS * 1e3
    mean, p90 = statistics.fmean(regrets), float(np.quantile(regrets, 0.9))
    note = (
        f"{statistics.fmean(points):.1f} points in all; without verification {statistics.fmean(unverified):.2%}; "
        f"{job_ms:.0f} ms of processor a job"
    )
    return [
        _error(calm, 5, 6.0, ""),
        _error(calm, 8, 4.5, ""),
        _error(hung, 8, 8.0, f", {HUNG:.0%} hung"),
        *_helped(),
        _row("regret of the chosen plan, mean", mean * 100, "%", "<= 2 %", mean <= 0.02, note),
        _row("regret of the chosen plan, 90th percentile", p90 * 100, "%", "<= 4 %", p90 <= 0.04, f"{JOBS} jobs"),
    ]


def _helped() -> list[dict[str, Any]]:
    jobs = [helped(seed) for seed in range(JOBS)]
    rows = list[dict[str, Any]]()
    for points in FEW:
        without, value = (statistics.fmean(one[points, with_it] * 100 for one in jobs) for with_it in (False, True))
        note = f"each term of it is {UNLIKE:.0%} off; baseline: without"
        row = _row(
            f"error of the model after {points} points, with a similar job's",
            value,
            "%",
            "below without",
            value < without,
            note,
        )
        rows.append({**row, "baseline": without, "ratio": value / without})
    return rows


def _error(jobs: list[dict[int, float]], points: int, bar: float, which: str) -> dict[str, Any]:
    percent = [found[points] * 100 for found in jobs]
    value = statistics.fmean(percent)
    note = f"mean over {len(PLANS)} plans and {JOBS} jobs; 90th percentile {np.quantile(percent, 0.9):.1f}"
    return _row(f"error of the model after {points} points{which}", value, "%", f"<= {bar:g} %", value <= bar, note)


def _row(name: str, value: float, unit: str, bar: str, ok: bool, note: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "baseline": None, "ratio": None, "bar": bar, "ok": ok,
            "note": note}  # fmt: skip

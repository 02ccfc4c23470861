"""Number of measurements until the fastest plan is found: generated jobs, readings with 5 % noise, some of them hung.

A third of the jobs follows the paper's form, another the default one, and the last one whose computation and
communication overlap. The share of every term in the step is drawn at random. A plan is a number of workers and of PSes
that a budget of pods allows; a point is one reading. Further rows replay published jobs that were measured at every
size.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict

import numpy as np
from stretto_core.fitter.regression import fit
from stretto_core.model.throughput import (
    DEFAULT,
    PAPER,
    Configuration,
    FittedModel,
    Inputs,
    Measurement,
    design_of,
    predicted_at_least,
    terms_of,
)
from stretto_core.planner.experiments import OPTIMISTIC_GAIN_MIN, fastest, to_verify, worth_measuring

from tests.bench.claims import Claim, at_most
from tests.bench.decisions.fits import elasticflow
from tests.bench.places import DATA
from tests.bench.rows import Row, row

PODS = 16
PLANS = [Configuration(w, p, 1.0, 1.0, 512) for w in range(1, PODS) for p in range(1, 9) if w + p <= PODS]
START = PLANS.index(Configuration(2, 1, 1.0, 1.0, 512))
KINDS = ((DEFAULT, 1.0), (PAPER, 1.0), (DEFAULT, 4.0))
"""form and overlap of the true step times"""
AXES = ("workers", "ps")
JOBS, NOISE, HUNG = 100, 0.05, 0.1
VERIFIED = 3
CLAIMS = (
    Claim("DLRover-RM §6.1", "near the well-tuned configuration: completion later by", "1.4 %",
          "invented jobs, throughput of the chosen plan; the paper's jobs start from its warm start", at_most(1.4),
          "regret of the chosen plan, mean"),
    Claim("DLRover-RM §6.1", "less trial and error than by hand: runs", "more than 10 by hand",
          "a model after four points, then optimism and verification", at_most(10.0),
          "points measured until a plan is chosen"),
)  # fmt: skip
POINTS, MOST = (5, 8), 8
FEW, UNLIKE = (2, 3, 4), 0.3


def truth(seed: int, unlike: float = 0.0) -> np.ndarray:
    """Return the step times of all plans, in seconds. ``unlike``: log ratio of each term in a similar job."""
    form, overlap = KINDS[seed % len(KINDS)]
    draw, x = np.random.default_rng(seed), Inputs.of(PLANS)
    terms = terms_of(form, x, overlap=overlap)
    design = design_of(terms, x)
    theta = draw.dirichlet(np.ones(len(terms))) / np.maximum(design.mean(axis=0), 1e-300) * 0.1
    theta *= np.exp(unlike * draw.standard_normal(len(terms)))
    return predicted_at_least(terms, design, theta, overlap)


class Job:
    """A job to explore: its plans and their true step times, in seconds; readings are off by ``noise``."""

    def __init__(
        self,
        plans: list[Configuration],
        times: np.ndarray,
        start: int,
        seed: int = 0,
        noise: float = 0.0,
        hung: float = 0.0,
    ) -> None:
        self.plans, self.times, self.noise, self.hung = plans, times, noise, hung
        self.axes = [axis for axis in AXES if len({getattr(plan, axis) for plan in plans}) > 1]
        self.draw = np.random.default_rng(seed)
        self.readings = [self.read(plans[start])]

    def read(self, plan: Configuration) -> Measurement:
        """Return a reading that is off by the noise, or hung: two to six times as long."""
        measured = self.times[self.plans.index(plan)] * math.exp(self.noise * self.draw.standard_normal())
        hung = self.draw.uniform(2, 6) if self.draw.random() < self.hung else 1.0
        return Measurement(plan, float(measured * hung))

    @property
    def measured(self) -> list[Configuration]:
        return [row.configuration for row in self.readings]

    def explore(self, gain_min: float = OPTIMISTIC_GAIN_MIN) -> bool:
        """Measure one more plan; return False if none is worth it."""
        found = worth_measuring(fit(self.readings), self.measured, self.axes, 1, self.plans, gain_min)
        self.readings += [self.read(plan) for plan in found]
        return bool(found)

    def error(self, model: FittedModel) -> float:
        return float(np.abs(model.step_time_s(Inputs.of(self.plans)) / self.times - 1).mean())

    def regret(self, chosen: Configuration) -> float:
        rate = np.array([plan.workers * plan.batch_size for plan in self.plans]) / self.times
        return 1 - float(rate[self.plans.index(chosen)] / rate.max())


def invented(seed: int, hung: float = 0.0, unlike: float = 0.0) -> Job:
    """Return the job of a seed, or one that is similar to it."""
    return Job(PLANS, truth(seed, unlike), START, seed + 10**6 * (1 + (unlike > 0)), NOISE, hung)


def published() -> list[Job]:
    """Choose the number of GPUs for each model and global batch that ElasticFlow measured, from one on."""
    found: dict[tuple[int, int], list[Measurement]] = defaultdict(list)
    for number, rows in enumerate(elasticflow()):
        for point in rows:
            found[number, point.configuration.workers * point.configuration.batch_size].append(point)
    return [
        Job([point.configuration for point in rows], np.array([point.step_time_s for point in rows]), 0)
        for rows in found.values()
    ]


def errors(seed: int, hung: float = 0.0) -> dict[int, float]:
    """Return the mean error of all plans' step times by measured points; stopping is not allowed."""
    job, found = invented(seed, hung), dict[int, float]()
    while len(job.readings) < max(POINTS):
        job.explore(gain_min=-1.0)
        if len(job.readings) in POINTS:
            found[len(job.readings)] = job.error(fit(job.readings))
    return found


def helped(seed: int) -> dict[tuple[int, bool], float]:
    """Return rows of errors after few points, without and with the model of a similar job that was explored before."""
    before, job = invented(seed, unlike=UNLIKE), invented(seed)
    while len(before.readings) < MOST:
        before.explore(gain_min=-1.0)
    similar, found = fit(before.readings), dict[tuple[int, bool], float]()
    while len(job.readings) < max(FEW):
        job.explore(gain_min=-1.0)
        if len(job.readings) in FEW:
            found[len(job.readings), False] = job.error(fit(job.readings))
            found[len(job.readings), True] = job.error(fit(job.readings, similar=similar.known))
    return found


def choice(job: Job) -> tuple[float, float, int]:
    """Return the slowness of the chosen plan by measured points, with and without measuring the best few."""
    while len(job.readings) < MOST and job.explore():
        pass
    unverified = job.regret(fastest(fit(job.readings), job.plans, job.readings))
    for _ in range(VERIFIED):
        plan = to_verify(fit(job.readings), job.readings, job.plans)
        if plan is None:
            break
        job.readings.append(job.read(plan))
    return job.regret(fastest(fit(job.readings), job.plans, job.readings)), unverified, len(job.readings)


def run() -> list[Row]:
    """Return the rows with bars: readings that are only noisy, then some that hung."""
    calm, hung = [errors(seed) for seed in range(JOBS)], [errors(seed, HUNG) for seed in range(JOBS)]
    began = time.process_time()
    regrets, unverified, points = zip(*(choice(invented(seed)) for seed in range(JOBS)), strict=True)
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
        row("regret of the chosen plan, mean", mean * 100, "%", "<= 2 %", mean <= 0.02, note),
        row("points measured until a plan is chosen", statistics.fmean(points), "", "", None, f"at most {max(points)}"),
        row("regret of the chosen plan, 90th percentile", p90 * 100, "%", "<= 4 %", p90 <= 0.04, f"{JOBS} jobs"),
        *_published(),
    ]


def _published() -> list[Row]:
    name = "regret of the number of GPUs, ElasticFlow's jobs"
    if not DATA.exists():
        return [row(name, float("nan"), "%", "", None, "skipped: no public data")]
    regrets, unverified, points = zip(*(choice(job) for job in published()), strict=True)
    value = statistics.fmean(regrets)
    note = (
        f"mean of {len(regrets)}, the most {max(regrets):.1%}; {statistics.fmean(points):.1f} points of up to 7;"
        f" without verification {statistics.fmean(unverified):.2%}; what a reading counts was chosen on these"
    )
    return [row(name, value * 100, "%", "<= 2 %", value <= 0.02, note)]


def _helped() -> list[Row]:
    jobs = [helped(seed) for seed in range(JOBS)]
    rows = list[Row]()
    for points in FEW:
        without, value = (statistics.fmean(one[points, with_it] * 100 for one in jobs) for with_it in (False, True))
        note = f"each term of it is {UNLIKE:.0%} off; baseline: without"
        name = f"error of the model after {points} points, with a similar job's"
        rows.append(row(name, value, "%", "below without", value < without, note, baseline=without))
    return rows


def _error(jobs: list[dict[int, float]], points: int, bar: float, which: str) -> Row:
    percent = [found[points] * 100 for found in jobs]
    value = statistics.fmean(percent)
    note = f"mean over {len(PLANS)} plans and {JOBS} jobs; 90th percentile {np.quantile(percent, 0.9):.1f}"
    return row(f"error of the model after {points} points{which}", value, "%", f"<= {bar:g} %", value <= bar, note)

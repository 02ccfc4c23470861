"""The throughput model on published measurements (../shared/data): each point left out once, with its configuration.

The default form is compared with those of DLRover-RM (Eq. 1-6) and Optimus, each by the better of two fits, and with
the nearest neighbour. Sources that are not PS jobs have one PS; a process that trains alone is one worker and one PS.

The terms for nodes were chosen among seven sets on Pollux, the overlap on Pollux and Synergy. A point was left out in
that choice, not the source.

Each job decides the pull of its terms to 0: three strengths of the ridge on the largest share of a term are weighed by
their marginal likelihood. Both were chosen among some hundred variants on the four PS sources, with one point left out.
Other grids with steps of 1.4 to 4 keep VGG16 at 3.3 to 3.4, and Inception3 at 1.1 if they end at 8. The errors in
percent of VGG16, Inception3, ResNet50 and MXNet:

    three strengths, largest share (the default)    3.4, 1.1, 3.7, 1.5
    one strength, mean share (before)               3.5, 1.7, 5.2, 0.7
    one strength, largest share                     3.5, 1.3, 4.0, 0.9
    three strengths, mean share                     3.5, 1.3, 4.4, 1.5
    the likeliest strength alone                    3.5, 1.2, 2.9, 2.2
    one strength by MacKay's rule                   3.4, 1.1, 3.9, 1.2 (VGG16 is still above Optimus' form)
    the posterior's mean instead of its mode        6.5, 3.4, 5.7, 2.7
    the form of the least inner error               3.5, 1.7, 8.3, -

No single strength for all jobs, of 16, improves both VGG16 and Inception3.
"""

from __future__ import annotations

import csv
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares as direct
from stretto_core.fitter.regression import fit, least_squares
from stretto_core.model.throughput import OPTIMUS, PAPER, Configuration, FittedModel, Inputs, Measurement, design_of

from tests.bench.claims import Claim, at_most
from tests.bench.places import DATA
from tests.bench.rows import Row, row

COVERED = 0.85
SAMPLED = 200
"""points taken from each Pollux job, which has 952 to 2,119"""
GPUS_PER_NODE = 8
PS_SOURCES = 4
"""number of sources, the first ones, that are jobs with parameter servers"""
SEEDS, NOISE, SAMPLES, HELD_OUT = 200, 0.05, 20, 100
CLAIMS = (
    Claim("DLRover-RM §6.2", "Eq. 1 closely describes throughput over resources", "Fig. 11, no figure",
          "the paper's measurements are not public; on others' it lacks a cost that grows with w and not with 1/p, and "
          "what overlaps; closely is taken for 5 %", at_most(5.0), "the paper's form, points left out"),
    Claim("DLRover-RM §6.2", "that it has the lookup (Eq. 5) makes it better than Optimus' function", "-",
          "no public PS job has a lookup that is felt: its term is 0", lambda ours: ours < 1,
          "… on PS jobs, against Optimus' form"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Source:
    """A source of measurements. ``jobs``: those of each job; ``bar``: in percent; ``has``: the inputs of the terms."""

    name: str
    bar: float
    jobs: list[list[Measurement]]
    has: str


@dataclass(frozen=True, slots=True)
class Errors:
    """Return |predicted / measured - 1| of every left-out point, and whether the 90 % interval covered it."""

    errors: list[float]
    covered: list[bool]

    @property
    def percent(self) -> float:
        return 100 * statistics.fmean(self.errors)


def sources() -> list[Source]:
    """Return the sources of the public data."""
    tables = ps_tables()
    return [
        Source("VGG16", 5.0, [tables["vgg16", name] for name in ("paddle-fluid", "paddle-v2", "tensorflow")],
               "w, p, m; fluid, v2, TensorFlow"),
        Source("TF Inception3", 3.0, [tables["inception3", "tensorflow-1.x"]], "w, p"),
        Source("TF ResNet50", 6.0, [tables["resnet50", "tensorflow-1.x"]], "w, p"),
        Source("MXNet Inception-v3", 2.0, [tables["inception-v3", "mxnet"]], "w"),
        Source("ElasticFlow", 4.5, elasticflow(), "w, m = M/w, nodes; 4 models"),
        Source("Synergy", 4.0, synergy(), "cores, memory; 6 models, half of them insensitive"),
        Source("Pollux", 13.0, pollux(), f"w, m, nodes; {SAMPLED} points of each of 3 models"),
    ]  # fmt: skip


def _lines(name: str) -> Iterator[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def ps_tables() -> dict[tuple[str, str], list[Measurement]]:
    """Read rates of all workers together, and batches of one worker, by model and framework."""
    found: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for line in _lines("ps-throughput-tables/ps_throughput.csv"):
        workers, batch = int(line["num_workers"]), int(line["batch"])
        at = Configuration(workers, max(int(line["num_ps"] or 1), 1), 1.0, 1.0, batch)
        found[line["model"], line["framework"]].append(Measurement(at, workers * batch / float(line["throughput"])))
    return found


def elasticflow() -> list[list[Measurement]]:
    """Read iterations per second; the global batch is split over the GPUs. 0 stands for a job that does not run."""
    jobs = list[list[Measurement]]()
    for path in sorted((DATA / "elasticflow-a100").glob("*.csv")):
        jobs.append([])
        for line in _lines(f"elasticflow-a100/{path.name}"):
            batch = int(line.pop("global_batch_size"))
            for gpus, rate in ((int(gpus), float(rate or 0)) for gpus, rate in line.items()):
                if rate > 0:
                    nodes = math.ceil(gpus / GPUS_PER_NODE)
                    at = Configuration(gpus, 1, 1.0, 1.0, batch // gpus, nodes=nodes)
                    jobs[-1].append(Measurement(at, 1 / rate))
    return jobs


def synergy() -> list[list[Measurement]]:
    """Read the relative throughput of one GPU. Rows with 0.1, which had too little memory, are left out."""
    jobs: dict[str, list[Measurement]] = defaultdict(list)
    for line in _lines("synergy/cpu_mem_throughput.csv"):
        if (rate := float(line["rel_throughput"])) > 0.1:
            at = Configuration(1, 1, float(line["cpus"]), 1.0, int(line["batch_size"]),
                               worker_memory_gib=float(line["mem_gb"]))  # fmt: skip
            jobs[line["model"]].append(Measurement(at, float(line["iter_time_s"]) / rate))
    return list(jobs.values())


def pollux() -> list[list[Measurement]]:
    """Read placements and scaling together, a seeded sample of each model."""
    jobs = list[list[Measurement]]()
    for model in ("ncf", "cifar10", "deepspeech2"):
        every = list[Measurement]()
        for line in _lines(f"pollux/profiles/{model}/placements.csv"):
            gpus = sum(map(int, line["placement"]))
            every.append(_all_reduce(gpus, len(line["placement"]), line))
        for line in _lines(f"pollux/profiles/{model}/scalability.csv"):
            every.append(_all_reduce(int(line["num_replicas"]), int(line["num_nodes"]), line))
        picked = np.random.default_rng(0).choice(len(every), SAMPLED, replace=False)
        jobs.append([every[i] for i in sorted(picked)])
    return jobs


def _all_reduce(gpus: int, nodes: int, line: dict[str, str]) -> Measurement:
    return Measurement(Configuration(gpus, 1, 1.0, 1.0, int(line["local_bsz"]), nodes=nodes), float(line["step_time"]))


Fit = Callable[[Sequence[Measurement]], FittedModel]


def left_out(jobs: list[list[Measurement]], fitted: Fit) -> Errors:
    found = Errors([], [])
    for job in jobs:
        for one in job:
            others = [other for other in job if other.configuration != one.configuration]
            model, x = fitted(others), Inputs.of([one.configuration])
            low, high = model.interval_s(x, 0.9, of_measurement=True)
            found.errors.append(abs(float(model.step_time_s(x)[0]) / one.step_time_s - 1))
            found.covered.append(bool(low[0] <= one.step_time_s <= high[0]))
    return found


def nearest(jobs: list[list[Measurement]]) -> float:
    """Return the error in percent of the step time of the nearest other configuration, in logs."""
    errors = list[float]()
    for rows in jobs:
        times, at = np.array([row.step_time_s for row in rows]), _logs(rows)
        distance = np.sqrt(((at[:, None] - at[None]) ** 2).sum(axis=2))
        distance[distance == 0] = np.inf
        errors += np.abs(times[distance.argmin(axis=1)] / times - 1).tolist()
    return 100 * statistics.fmean(errors)


def _logs(rows: list[Measurement]) -> np.ndarray:
    fields = ("workers", "ps", "worker_cpu_cores", "batch_size", "nodes", "worker_memory_gib")
    return np.log([[getattr(row.configuration, name) for name in fields] for row in rows])


def extrapolated(jobs: list[list[Measurement]], fitted: Fit) -> float:
    """Return the error in percent on the larger half, by workers (or a single worker's cores), of a fit to the rest."""
    errors = list[float]()
    for rows in jobs:
        axis = "workers" if len({row.configuration.workers for row in rows}) > 1 else "worker_cpu_cores"
        size = [getattr(row.configuration, axis) for row in rows]
        small = [row for row, value in zip(rows, size, strict=True) if value <= statistics.median(size)]
        large = [row for row, value in zip(rows, size, strict=True) if value > statistics.median(size)]
        if large:
            predicted = fitted(small).step_time_s(Inputs.of([row.configuration for row in large]))
            errors += np.abs(predicted / [row.step_time_s for row in large] - 1).tolist()
    return 100 * statistics.fmean(errors)


def run() -> list[Row]:
    """Return one row for each source, then the paper's form on data that obey it."""
    if not DATA.exists():
        return [row("fits of published measurements", float("nan"), "", "", None, "skipped: no public data"),
                *_obeying()]  # fmt: skip
    rows, papers, optimus = list[Row](), list[float](), list[float]()
    for source in sources():
        figure, paper, other = _measured(source)
        rows.append(figure)
        papers.append(paper)
        optimus.append(other)
    each = ", ".join(f"{value:.1f}" for value in papers)
    ps, theirs = statistics.fmean(papers[:PS_SOURCES]), statistics.fmean(optimus[:PS_SOURCES])
    return [
        *rows,
        row("the paper's form, points left out", statistics.fmean(papers), "%", "", None,
            f"mean of the sources; each: {each}"),
        row("… on PS jobs, against Optimus' form", ps, "%", "", None,
            f"mean of the first {PS_SOURCES} sources; baseline: Optimus' form", theirs),
        *_obeying(),
    ]  # fmt: skip


def _measured(source: Source) -> tuple[Row, float, float]:
    """Return the row, and the errors of the paper's form and of Optimus'."""
    began = time.process_time()
    ours = left_out(source.jobs, fit)
    points = len(ours.errors)
    each_ms = (time.process_time() - began) / points * 1e3
    others = {
        form.name: min(left_out(source.jobs, fitting).percent for fitting in _both(form.name))
        for form in (PAPER, OPTIMUS)
    }
    near, covered = nearest(source.jobs), statistics.fmean(ours.covered)
    least = min(others.values())
    ok = ours.percent <= source.bar and covered >= COVERED and ours.percent <= least
    beyond = {form: min(extrapolated(source.jobs, fitting) for fitting in _both(form)) for form in others}
    note = (
        f"{points} points ({source.has}); paper's form {others['paper']:.1f}, Optimus' {others['optimus']:.1f}, "
        f"nearest {near:.1f}; 90 % intervals cover {covered:.0%}; smaller half to larger: "
        f"{extrapolated(source.jobs, fit):.1f}, paper's {beyond['paper']:.1f}, Optimus' {beyond['optimus']:.1f}; "
        f"{each_ms:.1f} ms a fit"
    )
    bar = f"<= {source.bar:g} %, cover {COVERED:.0%}, <= baseline"
    return row(f"fit, {source.name} left out", ours.percent, "%", bar, ok, note, least), *others.values()


def _both(form: str) -> tuple[Fit, Fit]:
    return (lambda rows: fit(rows, form)), (lambda rows: least_squares(rows, form))


def _obeying() -> list[Row]:
    """Return the held-out RMSLE of the paper's form on data that obey it, and that of a direct search for the least."""
    ours, best, took_ms = list[float](), list[float](), list[float]()
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        every = [_drawn(random) for _ in range(SAMPLES + HELD_OUT)]
        x = Inputs.of(every)
        design = design_of(PAPER.terms, x)
        design = np.concatenate([design, np.ones((len(every), 1))], axis=1)
        times = design @ (random.dirichlet(np.ones(5)) / design.mean(axis=0)) * 0.1
        noisy = times[:SAMPLES] * np.exp(NOISE * random.standard_normal(SAMPLES))
        rows = [Measurement(at, float(t)) for at, t in zip(every[:SAMPLES], noisy, strict=True)]
        began = time.process_time()
        model = fit(rows, PAPER.name)
        took_ms.append((time.process_time() - began) * 1e3)
        ours.append(_rmsle(model.step_time_s(x)[SAMPLES:], times[SAMPLES:]))
        best.append(_rmsle(design[SAMPLES:] @ _least_rmsle(design[:SAMPLES], noisy), times[SAMPLES:]))
    value, optimum = statistics.fmean(ours), statistics.fmean(best)
    ok = value <= 0.035 and value <= 1.01 * optimum
    note = f"mean of {SEEDS} seeds, {SAMPLES} samples at {NOISE:.0%} noise; baseline: direct search from many starts"
    middle = statistics.median(took_ms)
    return [
        row("held-out RMSLE, the paper's form its own truth", value, "", "<= 0.035, <= 1.01 ×", ok, note, optimum),
        row("time of that fit", middle, "ms", "<= 2 ms", middle <= 2.0,
            f"processor time, median ({min(took_ms):.2f}-{max(took_ms):.2f})"),
    ]  # fmt: skip


def _drawn(random: np.random.Generator) -> Configuration:
    workers, ps, worker_cpu, ps_cpu = (int(random.integers(1, most)) for most in (17, 9, 17, 9))
    return Configuration(workers, ps, float(worker_cpu), float(ps_cpu), 512)


def _rmsle(predicted: np.ndarray, true: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.log(predicted / true) ** 2)))


def _least_rmsle(design: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the coefficients of the least squared log error, by trust-region search from shares of every kind."""
    scale = design.mean(axis=0) / times.mean()
    starts = [np.full(design.shape[1], 1 / design.shape[1]), *(0.8 * np.eye(design.shape[1]) + 0.04)]
    found = [
        direct(lambda share: np.log(np.maximum(design / scale @ share, 1e-12) / times), start, bounds=(0, np.inf))
        for start in starts
    ]
    return min(found, key=lambda one: one.cost).x / scale

"""Convergence with elasticity (DLRover-RM Fig. 8): loss and AUC on held-out data along the samples trained.

python -m tests.bench.experiments.convergence [--samples N] [--seeds N] [--models NAME ...]

A run takes minutes, so it is not part of `make bench`.

Each model trains the same seeded data with the same initial values three ways: `fixed` (2 workers, 2 parameter
servers), `restart` (one worker and one server, then two workers, then two servers, then one worker again; at each
change everything stops, is saved, and starts anew) and `live` (the same changes while shards are being trained: the
worker joins and leaves, the buckets move). The processes are real and concurrent, so no two runs are the same. Runs
with several seeds of the initial values measure the scatter of undisturbed runs. Every run proves its books: each
column of the parameters has counted each sample once.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import selectors
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from tests.bench.experiments.staleness import BATCH, LEARNING_RATE, child, measured
from tests.bench.processes import OURS, Servers, first_columns, moves_to

MODELS = {
    "wide_deep": ("stretto.examples.wide_deep", "WideDeep"),
    "xdeepfm": ("stretto.examples.xdeepfm", "XDeepFM"),
    "dcn": ("stretto.examples.dcn", "DCN"),
}
MODULE = "tests.bench.experiments.convergence"
MODES = ("fixed", "restart", "live")
FIXED = [(2, 2)] * 4
CHANGING = [(1, 1), (2, 1), (2, 2), (1, 2)]
"""(workers, parameter servers) in each quarter of the samples"""

SHARD = 8 * BATCH
POINTS = 8
HELD_OUT = 20_480


def program(model: str, samples: int, seed: int) -> Any:
    """Build the model. The data have a separate seed, so that every run trains the same."""
    from stretto.build import make_program
    from stretto.model.entry_point import instantiate
    from stretto.model.program import Options

    module, name = MODELS[model]
    task = getattr(importlib.import_module(module), name)
    dataset = {"samples": samples, "categories": 60_000, "new_categories": samples * 22 // 54, "seed": 7}
    return make_program(instantiate(task, dataset, 16), Options(learning_rate=LEARNING_RATE, seed=seed))


def work(model: str, samples: int, seed: int, index: int) -> None:
    """Run a worker: it reads the job's key and the servers from two lines, and trains the shards that follow."""
    import tensorflow as tf
    from stretto.engine import Access, Key, Parameters
    from stretto.worker.step import Trainer, Work
    from stretto.worker.step_timer import StepTimer

    tf.config.threading.set_intra_op_parallelism_threads(1)
    trained = program(model, samples, seed)
    access = Access(Key.of(json.loads(sys.stdin.readline()).encode()))
    servers = addresses(sys.stdin.readline())
    parameters = Parameters(trained.layout, servers, worker=index, access=access, refresh_servers=lambda: dict(servers))
    parameters.seed(trained.initial_dense(), trained.initial_state())
    trained.warm()
    trainer = Trainer(trained, parameters, BATCH, StepTimer())
    print("ready", flush=True)
    for line in sys.stdin:
        if line.startswith("{"):
            servers.update(addresses(line))
            threading.Thread(target=parameters.connect, args=(dict(servers),)).start()
            continue
        shard = int(line)
        if trainer.train(Work(shard, 1, shard * SHARD, SHARD)) is not None:
            raise RuntimeError(f"shard {shard} was not trained to its end")
        print(shard, flush=True)


def addresses(line: str) -> dict[int, str]:
    return {int(server): address for server, address in json.loads(line).items()}


@dataclass
class Job:
    """The workers and parameter servers of one run."""

    model: str
    samples: int
    seed: int
    folder: Path
    program: Any = None
    servers: Servers = field(default_factory=lambda: Servers(OURS))
    workers: dict[int, Any] = field(default_factory=dict[int, Any])
    finished: list[Any] = field(default_factory=list[Any])
    stopped_s: float = 0.0

    def __post_init__(self) -> None:
        self.program = program(self.model, self.samples, self.seed)

    @property
    def layout(self) -> Any:
        return self.program.layout

    @property
    def access(self) -> Any:
        from stretto.engine import Access, Key

        return Access(Key.of(self.servers.access["key"].encode()))

    def add_workers(self, count: int) -> None:
        """Start the missing workers, all at the same time."""
        new = [index for index in range(count) if index not in self.workers]
        for index in new:
            self.workers[index] = child("work", self.model, self.samples, self.seed, index, module=MODULE)
            self.tell(self.workers[index], json.dumps(self.servers.access["key"]))
            self.tell(self.workers[index], json.dumps(self.servers.addresses))
        for index in new:
            if self.workers[index].stdout.readline().strip() != "ready":
                raise RuntimeError(f"worker {index} ended with status {self.workers[index].wait()}")

    @staticmethod
    def tell(worker: Any, line: object) -> None:
        worker.stdin.write(f"{line}\n")
        worker.stdin.flush()

    def place(self, servers: int) -> None:
        self.servers.start(servers)
        self.servers.place()

    def ask(self, server: int, do: str, **arguments: Any) -> Any:
        answer = self.servers.processes[server].ask(do=do, **arguments)
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"ps-{server}, {do}: {answer['text']}")
        return answer

    def move(self) -> threading.Thread:
        """Add a server, which takes over its share while workers go on."""
        new = len(self.servers.processes)
        sources = moves_to(new, list(self.servers.addresses))
        self.servers.start()
        for worker in self.workers.values():
            self.tell(worker, json.dumps(self.servers.addresses))
        thread = threading.Thread(target=self.servers.move, args=(new, sources))
        thread.start()
        return thread

    def restart(self, workers: int, servers: int) -> None:
        """Stop everything after saving it, and restore it into other processes."""
        begun = time.monotonic()
        paths = [str(self.folder / f"image-{server}") for server in self.servers.addresses]
        for server, path in enumerate(paths):
            self.ask(server, "save", path=path)
        self.close()
        self.servers = Servers(OURS)
        self.servers.start(servers)
        for server, columns in first_columns(self.servers.addresses).items():
            self.ask(server, "load", paths=paths, columns=columns)
        self.add_workers(workers)
        self.stopped_s += time.monotonic() - begun

    def train(self, shards: Iterator[int], workers: int) -> Iterator[int]:
        """Train the shards on the first ``workers``; yields how many are done, each time one is."""
        done = training = 0
        with selectors.DefaultSelector() as selector:
            for index in range(workers):
                selector.register(self.workers[index].stdout, selectors.EVENT_READ, self.workers[index])
                training += self._give(self.workers[index], shards)
            while training:
                for key, _ in selector.select():
                    if not key.data.stdout.readline():
                        raise RuntimeError(f"a worker ended with status {key.data.wait()}")
                    done += 1
                    yield done
                    training += self._give(key.data, shards) - 1

    def _give(self, worker: Any, shards: Iterator[int]) -> int:
        shard = next(shards, None)
        if shard is not None:
            self.tell(worker, shard)
        return int(shard is not None)

    def quality(self) -> dict[str, float]:
        from stretto.engine import Parameters
        from stretto.model.evaluate import evaluate

        parameters = Parameters(self.layout, dict(self.servers.addresses), worker=99, access=self.access)

        def pull(keys: Any) -> Any:
            pulled = parameters.pull(keys)
            return pulled.rows, pulled.dense, pulled.state

        found = evaluate(self.program, pull, self.samples, HELD_OUT, 4096)
        parameters.close()
        return {"loss": found.loss, "auc": found.auc}

    def counted(self) -> tuple[int, int]:
        """Return the fewest and the most samples that a column counted."""
        from stretto.engine import Control

        counts = []
        for server, address in self.servers.addresses.items():
            with Control(self.layout, address, server, access=self.access) as control:
                counts += control.applied().samples[control.columns()].tolist()
        return min(counts), max(counts)

    def close(self) -> None:
        for process in self.workers.values():
            process.kill()
        self.workers.clear()
        self.servers.kill()


def run(model: str, mode: str, samples: int, seed: int) -> dict[str, Any]:
    """Run once; return the quality at each of POINTS, and the cost."""
    plans = FIXED if mode == "fixed" else CHANGING
    per_point = samples // SHARD // POINTS
    points: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        job = Job(model, samples, seed, Path(folder))
        try:
            job.place(plans[0][1])
            job.add_workers(2 if mode == "live" else plans[0][0])  # the second waits until it is wanted
            begun, busy = time.monotonic(), 0.0
            for point in range(POINTS):
                workers, servers = plans[point * len(plans) // POINTS]
                if mode == "restart" and (len(job.workers), len(job.servers.processes)) != (workers, servers):
                    job.restart(workers, servers)
                begun = time.monotonic()
                moving: threading.Thread | None = None
                for done in job.train(iter(range(point * per_point, (point + 1) * per_point)), workers):
                    if mode == "live" and done >= per_point // 4 and servers > len(job.servers.processes):
                        moving = job.move()
                busy += time.monotonic() - begun
                if moving is not None:
                    moving.join()
                points.append({"samples": (point + 1) * per_point * SHARD, **job.quality()})
            books = job.counted()
        finally:
            job.close()
    if books != (POINTS * per_point * SHARD,) * 2:
        raise RuntimeError(f"columns counted {books[0]} to {books[1]} of {POINTS * per_point * SHARD} samples")
    return {"model": model, "mode": mode, "seed": seed, "points": points, "busy_s": busy, "stopped_s": job.stopped_s}


def compared(fixed: list[float], others: list[float]) -> tuple[float, float, float, bool]:
    """Return the mean difference with its 95 % half-width (Welch), the half-width of the 95 % prediction interval of
    another undisturbed run, and whether all other runs lie within it."""
    a, b = np.array(fixed), np.array(others)
    spread = a.std(ddof=1)
    band = float(stats.t.ppf(0.975, len(a) - 1) * spread * math.sqrt(1 + 1 / len(a)))
    both = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    free = sum(both) ** 2 / max(both[0] ** 2 / (len(a) - 1) + both[1] ** 2 / (len(b) - 1), 1e-30)
    half = float(stats.t.ppf(0.975, max(free, 1.0)) * math.sqrt(sum(both)))
    return float(b.mean() - a.mean()), half, band, bool((abs(b - a.mean()) <= band).all())


def report(runs: list[dict[str, Any]], console: Console) -> None:
    shown = Table(title="held-out quality, mean ± standard deviation over seeds", title_justify="left")
    columns = (
        "model",
        "plan",
        "loss",
        "AUC",
        "loss - fixed",
        "AUC - fixed",
        "within undisturbed",
        "samples/s",
        "stopped",
    )
    for column in columns:
        shown.add_column(column)
    for model in MODELS:
        of = {mode: [r for r in runs if (r["model"], r["mode"]) == (model, mode)] for mode in MODES}
        for mode, found in of.items():
            if len(found) < 2 or len(of["fixed"]) < 2:
                continue
            cells = []
            for metric in ("loss", "auc"):
                ends = [r["points"][-1][metric] for r in found]
                cells.append(f"{np.mean(ends):.5f} ± {np.std(ends, ddof=1):.5f}")
            apart, inside = ["", ""], ""
            if mode != "fixed":
                both = [
                    compared([r["points"][-1][m] for r in of["fixed"]], [r["points"][-1][m] for r in found])
                    for m in ("loss", "auc")
                ]
                apart = [f"{mean:+.5f} ± {half:.5f} (band {band:.5f})" for mean, half, band, _ in both]
                inside = ", ".join("yes" if within else "no" for *_, within in both)
            rate = np.mean([r["points"][-1]["samples"] / r["busy_s"] for r in found])
            stopped = np.mean([r["stopped_s"] for r in found])
            shown.add_row(model, f"{mode} x {len(found)}", *cells, *apart, inside, f"{rate:,.0f}", f"{stopped:.0f} s")
        shown.add_section()
    console.print(shown)
    for model in MODELS:
        for mode in MODES:
            found = [r for r in runs if (r["model"], r["mode"]) == (model, mode)]
            if found:
                losses = np.mean([[p["loss"] for p in r["points"]] for r in found], axis=0)
                console.print(f"{model:10} {mode:8} loss along the samples: " + " ".join(f"{x:.4f}" for x in losses))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.experiments.convergence", description=__doc__)
    parser.add_argument("--samples", type=int, default=524_288)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--results", type=Path, help="a file of runs, one JSON document a line: continued")
    chosen = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 180)
    runs: list[dict[str, Any]] = []
    if chosen.results and chosen.results.exists():
        runs = [json.loads(line) for line in chosen.results.read_text().splitlines()]
    for model in chosen.models:
        for seed in range(chosen.seeds):
            for mode in MODES:
                if any((r["model"], r["mode"], r["seed"]) == (model, mode, seed) for r in runs):
                    continue
                runs.append(measured("run", model, mode, chosen.samples, seed, module=MODULE))
                console.print(f"{model} {mode} seed {seed}: {runs[-1]['points'][-1]}", style="dim")
                if chosen.results:
                    with chosen.results.open("a") as file:
                        file.write(json.dumps(runs[-1]) + "\n")
    report(runs, console)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["work", model, samples, seed, index]:
            work(model, int(samples), int(seed), int(index))
        case ["run", model, mode, samples, seed]:
            print(json.dumps(run(model, mode, int(samples), int(seed))), flush=True)
        case _:
            main()

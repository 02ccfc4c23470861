"""The trainer: steps per second beside its baseline engine, ParameterServerStrategy and PyTorch; joining.

All sides train the same model on the same batches, in turns of one run, each warm while the others rest. Moves of
columns while training are measured by ``moves.py``. ``TORCH_PYTHON`` names the Python of an environment with ``torch``.

python -m tests.bench.training.trainer [seconds]
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.readers.synthetic import Synthetic

from tests.bench.places import ROOT
from tests.bench.processes import OURS, BaselineMissing, Engine, Process, Servers, ask_all, baseline, first_columns
from tests.bench.rows import Row, row
from tests.bench.training.trainer_joining import measure_joining

__all__ = ["Process", "ask_all", "first_columns", "run"]

PYTHON = "TORCH_PYTHON"
WORKERS = 2
SERVERS = 2
ROUNDS = 8
ENGINE_BAR, STRATEGY_BAR, TORCH_BAR = 1.45, 2.0, 1.0


@dataclass
class Job:
    """The parameter servers and workers of an engine, without a bus."""

    engine: Engine = OURS
    count: int = WORKERS
    """Number of workers, and of parameter servers at the start."""
    workers: list[Process] = field(default_factory=list[Process])
    first_shard: int = 0
    stream: bool = False
    """True: no shard has samples of another."""
    updates_s: list[float] = field(default_factory=list[float])
    """How long each push of the last training was inside a server, with the wait for its turn."""

    def start(self) -> None:
        """Start everything; the workers are not connected yet, and the first servers own all columns."""
        self.start_workers()
        self.servers = Servers(self.engine, self.layout)
        self.servers.start(self.count)
        self.servers.place()

    def start_workers(self) -> None:
        self.workers = [self.engine.process("-m", self.engine.trainer) for _ in range(self.count)]
        self.layout: dict[str, Any] = ask_all(self.workers, do="layout")[0]["layout"]

    def connect(self, pipeline: bool = True, **more: Any) -> None:
        """Connect the workers, anew where they were connected before; they go on with other shards. more: `wire`."""
        shared = {"servers": self.servers.addresses, "pipeline": pipeline, **more, **self.servers.access}
        if self.stream:  # the baseline's workers have no such argument
            shared["stream"] = True
        for number, worker in enumerate(self.workers):
            worker.send(do="connect", worker=number, first_shard=self.first_shard, **shared)
        for worker in self.workers:
            worker.receive()
        self.first_shard += 10_000

    def train(self, seconds: float) -> list[list[float]]:
        """Train; return the ends of each worker's steps, on the machine's monotonic clock."""
        ask_all(self.workers, do="train", seconds=seconds)
        answers = ask_all(self.workers, do="collect")
        self.updates_s = [each for answer in answers for each in answer.get("updates_s", ())]  # the baseline tells none
        return [answer["ends"] for answer in answers]

    def round(self, seconds: float) -> Round:
        """Train; return the steps per second from the command to the last step, like the other side's."""
        server_s, worker_s = self.servers.cpu_s(), self.worker_cpu_s()
        begun = time.monotonic()
        ends = [end for worker in self.train(seconds) for end in worker]
        server_s, worker_s = self.servers.cpu_s() - server_s, self.worker_cpu_s() - worker_s
        rate = len(ends) / (max(ends) - begun)
        return Round(rate, 1e3 * worker_s / len(ends), 1e3 * server_s / len(ends), len(ends))

    def worker_cpu_s(self) -> float:
        return sum(worker.cpu_s() for worker in self.workers)

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()
        self.servers.kill()


@dataclass(frozen=True, slots=True)
class Round:
    """Steps per second of a round, and milliseconds of CPU per step of all workers and all servers."""

    rate: float
    worker_ms: float = 0.0
    server_ms: float = 0.0
    steps: int = 0


class Strategy:
    """TensorFlow's own ParameterServerStrategy."""

    def __init__(self) -> None:
        # all ports are held until all are known, so that they differ
        holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(1 + WORKERS + SERVERS)]
        ports = [f"127.0.0.1:{holder.getsockname()[1]}" for holder in holders]
        for holder in holders:
            holder.close()
        cluster = {"chief": ports[:1], "worker": ports[1 : 1 + WORKERS], "ps": ports[1 + WORKERS :]}
        module = ("-m", "tests.bench.training.trainer_strategy")
        self.processes = [
            Process(*module, role, str(i), json.dumps(cluster)) for role in ("ps", "worker") for i in range(WORKERS)
        ]
        for process in self.processes:
            process.receive()
        self.chief = Process(*module, "chief", "0", json.dumps(cluster))
        self.processes.append(self.chief)

    def round(self, steps: int) -> Round:
        cpu_s = sum(process.cpu_s() for process in self.processes)
        rate = steps / self.chief.ask(steps=steps)["seconds"]
        return Round(rate, 1e3 * (sum(process.cpu_s() for process in self.processes) - cpu_s) / steps)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


class DataParallel:
    """PyTorch alone: each process has the whole model, and gloo averages gradients; gradients of rows are sparse."""

    def __init__(self, python: str, folder: str, count: int) -> None:
        self.count = count
        pool, store = f"{folder}/pool.npz", f"{folder}/store-{count}"
        if not Path(pool).exists():
            subprocess.run([sys.executable, "-m", "tests.bench.training.trainer_task", pool], cwd=ROOT, check=True)
        script = str(Path(__file__).with_name("trainer_torch.py"))
        self.processes = [Process(script, str(i), str(count), store, pool, python=python) for i in range(count)]
        for process in self.processes:
            process.receive()

    def round(self, steps: int) -> Round:
        """Train `steps` steps, counted over all processes: a step is one batch of one process."""
        cpu_s = sum(process.cpu_s() for process in self.processes)
        rate = steps / max(answer["seconds"] for answer in ask_all(self.processes, steps=steps // self.count))
        return Round(rate, 1e3 * (sum(process.cpu_s() for process in self.processes) - cpu_s) / steps)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


def measure_beside_torch(seconds: float) -> list[Row]:
    """Measure two workers beside two processes of PyTorch, and one beside one, in alternating rounds."""
    names = {
        WORKERS: "training steps, 2 workers, beside PyTorch over gloo",
        1: "training steps, 1 worker, beside PyTorch",
    }
    python = os.environ.get(PYTHON, "")
    if not python:
        note = f"skipped: {PYTHON} is not set (an environment with torch and numpy)"
        return [row(name, float("nan"), "steps/s", f">= {TORCH_BAR:g}", None, note) for name in names.values()]
    each_s = max(1.5, seconds / (4 * ROUNDS))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for count, name in names.items():
            job, theirs = Job(count=count), DataParallel(python, folder, count)
            rounds: list[dict[str, Round]] = []
            try:
                job.start()
                job.connect()
                job.train(2.0)
                last = theirs.round(100)
                for _ in range(ROUNDS):
                    last = theirs.round(max(20, int(last.rate * each_s)))
                    rounds.append({job.engine.name: job.round(each_s), "PyTorch": last})
            finally:
                job.kill()
                theirs.kill()
            rows.append(steps_row(name, job.engine.name, "PyTorch", rounds, TORCH_BAR))
    return rows


def measure_steps(seconds: float) -> list[Row]:
    """Measure all sides in alternating rounds, warm, while the others are at rest."""
    each_s = max(1.5, seconds / (2 * ROUNDS))
    jobs, missing = [Job()], ""
    try:
        jobs.append(Job(baseline()))
    except BaselineMissing as error:
        missing = str(error)
    theirs = Strategy()
    rounds: list[dict[str, Round]] = []
    try:
        for job in jobs:
            job.start()
            job.connect()
            job.train(2.0)
        last = theirs.round(100)
        for _ in range(ROUNDS):
            turn = {job.engine.name: job.round(each_s) for job in jobs}
            turn["strategy"] = last = theirs.round(max(20, int(last.rate * each_s)))
            jobs[0].connect(pipeline=False)
            turn["no pipeline"] = jobs[0].round(each_s)
            jobs[0].connect()
            rounds.append(turn)
    finally:
        for job in jobs:
            job.kill()
        theirs.kill()
    engine = jobs[-1].engine.name if len(jobs) > 1 else ""
    name = "training steps, 2 workers, 2 parameter servers"
    return [
        steps_row(name, OURS.name, engine, rounds, ENGINE_BAR, missing),
        steps_row(f"{name} beside ParameterServerStrategy", OURS.name, "strategy", rounds, STRATEGY_BAR),
        steps_row(f"{name}, model.pipeline: false", "no pipeline", "strategy", rounds, None),
    ]


def steps_row(
    name: str, side: str, other: str, rounds: list[dict[str, Round]], bar: float | None, missing: str = ""
) -> Row:
    value = statistics.median(turn[side].rate for turn in rounds)
    cpu = f"CPU per step {cpu_of(rounds, side)}"
    if not other:
        return row(name, value, "steps/s", "", None, f"{cpu}; no baseline: {missing}")
    ratios = [turn[side].rate / turn[other].rate for turn in rounds]
    ratio = statistics.median(ratios)
    told, ok = ("", None) if bar is None else (f">= {bar:g}", ratio >= bar)
    note = f"{cpu}; {other} {cpu_of(rounds, other)}; rounds {[round(each, 2) for each in ratios]}"
    return row(name, value, "steps/s", told, ok, note, statistics.median(turn[other].rate for turn in rounds), ratio)


def cpu_of(rounds: list[dict[str, Round]], side: str) -> str:
    worker, server = (
        statistics.median(getattr(turn[side], name) for turn in rounds) for name in ("worker_ms", "server_ms")
    )
    return f"{worker:.1f} + {server:.1f} ms" if server else f"{worker:.1f} ms in all"


def measure_generator() -> Row:
    """Return the samples per second of the examples' generator, which must not slow the training."""
    source = Synthetic(3, new_categories=100_000)
    source.read(0, 512)
    best = 0.0
    for attempt in range(5):
        began = time.perf_counter()
        for batch in range(20):
            source.read((attempt * 20 + batch) * 512, 512)
        best = max(best, 20 * 512 / (time.perf_counter() - began))
    return row("generated samples", best, "1/s", ">= 200,000 1/s", best >= 200_000, "best of five, one process")


def run(seconds: float = 40.0) -> list[Row]:
    """Return rows of steps and joining, after about `seconds` of measuring and some 80 s of starting."""
    return [*measure_steps(seconds), *measure_beside_torch(seconds), measure_joining(), measure_generator()]


if __name__ == "__main__":
    json.dump({"rows": run(float(sys.argv[1]) if len(sys.argv) > 1 else 40.0)}, sys.stdout, indent=2)
    print()

"""Steps per second of a program that Stretto runs, at levels 0 and 2, beside the same program alone.

The worker's process and its program share one core, as under a limit of one, so that whatever the agent does is taken
from the steps. The same script runs alone on that core, and both make blocks of steps in turn, while the other one
waits and the worker's process is stopped; a figure is the median over pairs of blocks. A step computes for 10 ms. At
level 0 the program prints each tenth step, which its job file reads; at level 2 it asks for each batch, and saves once
in a block of ten seconds, as it does alone. Level 1 is level 2 without saving.

Level 3 has no row here: a model that Stretto trains has no program, and so none that could run alone. Level 3 is
measured by ``trainer``, beside TensorFlow's ParameterServerStrategy and PyTorch, and by ``adapted``, where a user's own
Keras model trains beside the same one written for Stretto.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stretto.program.consistent import STORE_VARIABLE
from stretto_messages.dispatcher import MarkLedger, MarkLedgerReply
from stretto_wire import JobSpec

from tests.bench.places import ROOT
from tests.bench.rows import Row, row

BAR = 0.98
PAIRS, STEPS, FIRST_STEPS, BATCH, SHARD_BATCHES = 4, 1000, 100, 64, 100
LIMIT_S = 120.0
PROGRAM = """\
import hashlib, itertools, os, socket, sys, tempfile, time

PATH, LEVEL, IS_ALONE = sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3
STATE, WORK = bytes(3_000_000), bytes(15_000_000)
if IS_ALONE:
    batches = (range(first, first + 64) for first in itertools.count(0, 64))
elif LEVEL:
    import stretto.agent
    stretto.agent.restored(print)
    batches = stretto.agent.samples()


def save(folder):
    with open(f"{folder}/state", "wb") as file:
        file.write(STATE)


link = socket.socket(socket.AF_UNIX)
link.connect(PATH)
steps = 0
for wanted in link.makefile():
    began_s = time.monotonic()
    for _ in range(int(wanted)):
        if LEVEL:
            next(batches)
        hashlib.sha256(WORK).digest()
        steps += 1
        if not LEVEL and steps % 10 == 0:
            print("step", steps, flush=True)
    if LEVEL and IS_ALONE:
        with tempfile.TemporaryDirectory() as folder:
            save(folder)
    elif LEVEL:
        stretto.agent.checkpoint(save)
    link.sendall(f"{time.monotonic() - began_s}\\n".encode())
os._exit(0)
"""


class Program:
    """A program that makes a block of steps whenever it is asked."""

    def __init__(self, listener: socket.socket) -> None:
        self._link, _ = listener.accept()
        self._link.settimeout(LIMIT_S)
        self._lines = self._link.makefile("r")

    def block_s(self, steps: int) -> float:
        self._link.sendall(f"{steps}\n".encode())
        return float(self._lines.readline())


def run() -> list[Row]:
    return [_row(level) for level in (0, 2)]


def _row(level: int) -> Row:
    pairs = measured(level)
    ours, alone = (STEPS / statistics.median(way) for way in zip(*pairs, strict=True))
    ratio = statistics.median(alone_s / ours_s for ours_s, alone_s in pairs)
    note = f"one core, a step of {1000 / alone:.1f} ms, load {os.getloadavg()[0]:.1f}"
    name = f"steps/s of a program of level {level} under the agent / alone"
    return row(name, ours, "1/s", f">= {BAR:g} x", ratio >= BAR, note, alone, ratio)


def measured(level: int) -> list[tuple[float, float]]:
    """Return the seconds of each pair of blocks: under the agent, and alone."""
    with tempfile.TemporaryDirectory(prefix="stretto-agent-") as name, contextlib.ExitStack() as stack:
        (folder := Path(name)).joinpath("train.py").write_text(PROGRAM)
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path := f"{name}/asked.sock")
        listener.listen()
        listener.settimeout(LIMIT_S)
        arguments = ["train.py", path, str(level)]
        cluster = _cluster(folder, _job(level, name, arguments))
        cluster.environment = {"PYTHONPATH": str(ROOT / "libs" / "trainer"), STORE_VARIABLE: f"file://{name}"}
        cluster.start()
        stack.callback(cluster.stop)
        with _one_core():
            worker = cluster.launch("worker-0", **cluster.own_folder("worker-0"))
            ours = Program(listener)
            program = subprocess.Popen([sys.executable, *arguments, "alone"], cwd=name, stdout=subprocess.DEVNULL)
            stack.callback(program.kill)
            alone = Program(listener)
        _pair(ours, alone, worker, FIRST_STEPS)
        return [_pair(ours, alone, worker, STEPS) for _ in range(PAIRS)]


def _pair(ours: Program, alone: Program, worker: Any, steps: int) -> tuple[float, float]:
    ours_s = ours.block_s(steps)
    worker.send_signal(signal.SIGSTOP)
    alone_s = alone.block_s(steps)
    worker.send_signal(signal.SIGCONT)
    return ours_s, alone_s


def _cluster(folder: Path, spec: JobSpec) -> Any:
    """Return a job whose dispatcher marks its ledger, to which nothing ever returns."""
    from trainer_harness import Cluster

    class Marking(Cluster):
        def _handle(self, request: Any) -> Any:
            if isinstance(request, MarkLedger):
                return MarkLedgerReply(job=self.job, answer="ok", ledger="marked")
            return super()._handle(request)

    return Marking(folder, spec)


def _job(level: int, folder: str, arguments: list[str]) -> JobSpec:
    program = {"command": ["python", *arguments], "path": folder, "level": level}
    document: dict[str, Any] = {"name": "agent", "program": program}
    if level:
        samples = BATCH * (FIRST_STEPS + STEPS * (1 + PAIRS))
        document["dataset"] = {"samples": samples, "batch_size": BATCH, "batches_per_shard": SHARD_BATCHES}
    else:
        program["progress"] = r"step (\d+)"
    return JobSpec.parse(document)


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Have what is started meanwhile share one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


if __name__ == "__main__":
    for each in run():
        print(each)

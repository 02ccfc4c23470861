"""Training speed by the way in which a step's 141 tensors come, with the trainer limited to a part of a core.

The trainer (fused_training_worker.py) is a process in a control group of its own. Its step is in the form of DeepFM, on
the tensors of the module ``crossings``; two batches are asked for ahead, whatever the way. The server of batches is
that of ``crossings``, without a limit. All ways take turns under each limit. It needs a CPU control group that may be
written.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

from stretto_actuator.local.control_groups import Cgroups, Group
from stretto_plane import Key

from tests.bench.claims import Claim, at_least
from tests.bench.feeding.crossings import SHAPES
from tests.bench.places import ROOT
from tests.bench.processes import Process
from tests.bench.rows import Row, row

CORES = (0.25, 0.5, 1.0)
WAYS = {"requests": "a request a tensor", "grpc": "gRPC a tensor"}
"""Ways beside the fused one."""
ROUNDS, ROUND_S, WARM_S = 3, 4.0, 3.0
SCARCE_BAR, BAR = 1.25, 1.0
CLAIMS = (
    Claim(
        "GoldMiner §5.4, Fig. 12",
        "training of DeepFM with fused transfer, with the fewest CPUs of the training worker, is faster by up to",
        "1.3 ×",
        "a quarter of a core here; the paper's baseline is a call of gRPC for each tensor",
        at_least(1.3),
        f"steps/s fused / gRPC a tensor, {CORES[0]:g} of a core",
    ),
)


def run() -> list[Row]:
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(limited())
        if group is None:
            return [row("steps/s fused / a request a tensor", float("nan"), "", "", None,
                        "not measured: there is no CPU control group that may be written")]  # fmt: skip
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        Path(folder, "plane.pem").write_bytes(Key.random().pem)
        addresses = {way: stack.enter_context(_served(way, folder)) for way in ("fused", *WAYS)}
        trainer = Process("-m", "tests.bench.feeding.fused_training_worker", environment={"OMP_NUM_THREADS": "1"})
        stack.callback(trainer.kill)
        trainer.ask(addresses=addresses, key=str(Path(folder, "plane.pem")))
        for entry in group.entries:
            Path(entry).write_text(str(trainer.child.pid))
        return [each for cores in CORES for each in _rows(trainer, group, cores)]


@contextlib.contextmanager
def limited() -> Generator[Group | None]:
    """Yield a control group of CPU alone, which is removed in the end; None if none can be made."""
    cgroups = Cgroups.find(f"stretto-bench-{os.getpid()}")
    if not cgroups.has("cpu"):
        yield None
        return
    group = Group({"cpu": cgroups.group("limited").folders["cpu"]})
    group.make()
    try:
        yield group
    finally:
        group.remove()


@contextlib.contextmanager
def _served(way: str, folder: str) -> Generator[str]:
    command = [sys.executable, "-m", "tests.bench.feeding.crossings", "serve", way, folder]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def _rows(trainer: Process, group: Group, cores: float) -> list[Row]:
    group.set(cores, 0)
    rounds: list[dict[str, dict[str, float]]] = []
    for way in ("fused", *WAYS):
        trainer.ask(way=way, seconds=WARM_S)
    for _ in range(ROUNDS):
        rounds.append({way: trainer.ask(way=way, seconds=ROUND_S) for way in ("fused", *WAYS)})
    bar = SCARCE_BAR if cores == min(CORES) else BAR
    return [_row(rounds, way, cores, bar) for way in WAYS]


def _row(rounds: list[dict[str, dict[str, float]]], way: str, cores: float, bar: float) -> Row:
    ratio = statistics.median(each["fused"]["per_s"] / each[way]["per_s"] for each in rounds)
    ours, theirs = (statistics.median(each[name]["per_s"] for each in rounds) for name in ("fused", way))
    cpu = ", ".join(f"{statistics.median(each[name]['cpu_ms'] for each in rounds):.1f}" for name in ("fused", way))
    note = f"{len(SHAPES)} tensors; the trainer's CPU of a step {cpu} ms; load {os.getloadavg()[0]:.1f}"
    of_core = f"{cores:g} of a core" if cores < 1 else "1 core"
    name = f"steps/s fused / {WAYS[way]}, {of_core}"
    return row(name, ours, "1/s", f">= {bar:g} x", ratio >= bar, note, theirs, ratio)


if __name__ == "__main__":
    for each in run():
        print(each)

"""`model.wire`: the bytes of a step, its speed on a slow network, and the held-out loss.

The network is a process between worker and server, which counts what passes in both directions and lets 25 MB/s of each
through: a declared throttle, no kernel's. The loss is of one worker without the pipeline, on the demonstration's
stream, with the same seeds for every choice.

python -m tests.bench.training.wire [seconds]
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.bench.claims import Claim, above, at_most
from tests.bench.processes import OURS, Process, Servers, answer
from tests.bench.rows import Row, row
from tests.bench.training.trainer import Job

MBIT_S = 200
CHOICES: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"pull": "bfloat16", "push": "bfloat16"},
    "int8": {"pull": "bfloat16", "push": "int8"},
    "int8, dense_every 4": {"pull": "bfloat16", "push": "int8", "dense_every": 4},
    "push_every 4": {"push_every": 4},
    "int8, push_every 4": {"pull": "bfloat16", "push": "int8", "push_every": 4},
    "int8, both every 4": {"pull": "bfloat16", "push": "int8", "dense_every": 4, "push_every": 4},
}
CLAIMS = (
    Claim("HeterPS §3", "data that are to be sent are aggregated, which costs less communication", "no figure",
          "the gradients of four batches in one push, each key once, beside each in its own", above(1.0),
          f"training steps at {MBIT_S} Mbit/s, push_every 4"),
    Claim("HeterPS §3", "data are compressed while they travel", "no figure",
          "bfloat16 to workers, int8 with error feedback back, beside float32", at_most(0.4), "bytes a step, int8"),
)  # fmt: skip
BYTES_BARS = {"bfloat16": 0.55, "int8": 0.4}
SPEED_BAR = 1.6
ROUNDS = 3
SETTLED_S = 6.0
"""Seconds in which a worker on a slow network learns that a pull is better not sent with a push: some 110 steps."""
SEEDS = 5
SAMPLES, HELD_OUT, BATCH = 102_400, 40_960, 512
_PIECE = 2**16


@dataclass
class Direction:
    """One direction of the network. rate: bytes a second; 0: as many as come."""

    rate: float
    passed: int = 0
    free_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                time.sleep(self._wait_s(len(piece)))
                target.sendall(piece)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _wait_s(self, count: int) -> float:
        with self.lock:
            self.passed += count
            if not self.rate:
                return 0.0
            now = time.monotonic()
            self.free_s = max(now, self.free_s) + count / self.rate
            return self.free_s - now


def join(state: dict[str, Any], servers: Mapping[str, str], mbit_s: float) -> dict[str, str]:
    """Stand between a worker and servers; return the addresses for the worker."""
    state["ways"] = ways = (Direction(mbit_s * 125_000), Direction(mbit_s * 125_000))

    def accept(listener: socket.socket, address: str) -> None:
        while True:
            near, _ = listener.accept()
            host, port = address.rsplit(":", 1)
            far = socket.create_connection((host, int(port)))
            for way, ends in zip(ways, ((near, far), (far, near)), strict=True):
                ends[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=way.carry, args=ends, daemon=True).start()

    found: dict[str, str] = {}
    for server, address in servers.items():
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=accept, args=(listener, address), daemon=True).start()
        found[server] = f"127.0.0.1:{listener.getsockname()[1]}"
    return found


def passed(state: dict[str, Any]) -> int:
    return sum(way.passed for way in state["ways"])


class Networked:
    """One worker and one server, with a network between them."""

    def __init__(self, mbit_s: float) -> None:
        self.settled_s = SETTLED_S if mbit_s else 0.5
        self.job, self.network = Job(count=1), Process("-m", "tests.bench.training.wire", "network")
        self.job.start_workers()
        self.job.servers = Servers(OURS, self.job.layout, transport="tcp")
        self.job.servers.start(1)
        self.job.servers.place()
        real = self.job.servers.addresses
        found = self.network.ask(do="join", servers=real, mbit_s=mbit_s)
        self.job.servers.addresses = {int(server): address for server, address in found.items()}

    def round(self, wire: Mapping[str, Any], seconds: float) -> tuple[float, float]:
        """Return (bytes a step, steps a second)."""
        self.job.connect(wire=wire)
        self.job.train(self.settled_s)
        before = self.network.ask(do="passed")
        found = self.job.round(seconds)
        return (self.network.ask(do="passed") - before) / max(1.0, found.steps), found.rate

    def kill(self) -> None:
        self.job.kill()
        self.network.kill()


def rounds_of(mbit_s: float, seconds: Mapping[str, float], count: int) -> dict[str, list[tuple[float, float]]]:
    """Measure all choices in turns, each for its seconds; return (bytes a step, steps a second) of each round."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CHOICES}
    networked = Networked(mbit_s)
    try:
        for _ in range(count):
            for name, wire in CHOICES.items():
                found[name].append(networked.round(wire, seconds[name]))
    finally:
        networked.kill()
    return found


def measure_bytes(seconds: float) -> list[Row]:
    """Count bytes where the network is no limit. The last push of a round pays what rounding owes, in float32: it is
    one of some thousand where there is a bar, as in a job, which pays when training stops.
    """
    lengths_s = {name: seconds if name in BYTES_BARS else seconds / len(CHOICES) for name in CHOICES}
    sizes = {name: rounds[0][0] for name, rounds in rounds_of(0, lengths_s, 1).items()}
    rows: list[Row] = []
    for name in [name for name in CHOICES if name != "float32"]:
        ratio, bar = sizes[name] / sizes["float32"], BYTES_BARS.get(name)
        told, ok = (f"<= {bar}", ratio <= bar) if bar else ("", None)
        note = "1 worker, 1 server, both directions, keys and heads included"
        rows.append(row(f"bytes a step, {name}", sizes[name] / 1e6, "MB", told, ok, note, sizes["float32"] / 1e6))
    return rows


def measure_speed(seconds: float) -> list[Row]:
    """Measure steps per second on a network of 200 Mbit/s."""
    length_s = max(1.5, seconds / (ROUNDS * len(CHOICES)))
    found = rounds_of(MBIT_S, dict.fromkeys(CHOICES, length_s), ROUNDS)
    rates = {name: [rate for _, rate in rounds] for name, rounds in found.items()}
    before, rows = rates.pop("float32"), list[Row]()
    for name, mine in rates.items():
        ratios = [one / other for one, other in zip(mine, before, strict=True)]
        gain = statistics.median(ratios)
        told, ok = (f">= {SPEED_BAR}", gain >= SPEED_BAR) if name == "int8" else ("", None)
        note = f"declared throttle, each direction; rounds {[round(each, 2) for each in ratios]}"
        what = f"training steps at {MBIT_S} Mbit/s, {name}"
        rows.append(row(what, statistics.median(mine), "steps/s", told, ok, note, statistics.median(before), gain))
    return rows


def loss_of(wire: Mapping[str, Any], seed: int) -> float:
    """Train the demonstration's model on its stream; return the held-out loss."""
    from stretto.build import make_program
    from stretto.engine.transfer import Wire
    from stretto.examples.wide_deep import WideDeep
    from stretto.model.entry_point import instantiate
    from stretto.model.evaluate import evaluate
    from stretto.model.program import Options
    from stretto.trial.local import Here

    given = {"samples": 6_000_000, "categories": 60_000, "new_categories": 2_400_000, "seed": 7}
    program = make_program(instantiate(WideDeep, given, 16), Options(learning_rate=0.02, seed=seed))
    travels = Wire.of("float32", wire)
    with Here(program, BATCH, wire=travels, pipeline=False, pipeline_from_step=0) as here:
        here.train(0, SAMPLES)
        return evaluate(program, here.pull, SAMPLES, HELD_OUT, 4096).loss


def measure_loss() -> list[Row]:
    """Train with each choice and seed, in turns; `dense_every` and `push_every` from the first step on: the worst."""
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    losses: dict[str, list[float]] = {name: [] for name in CHOICES}
    for seed in range(SEEDS):
        for name, wire in CHOICES.items():
            losses[name].append(loss_of(wire, seed))
    exact = losses.pop("float32")
    spread = statistics.stdev(exact)
    rows: list[Row] = []
    for name, found in losses.items():
        changes = [mine - its for mine, its in zip(found, exact, strict=True)]
        change = statistics.mean(changes)
        told, ok = (f"<= {spread:.5f} either way", abs(change) <= spread) if name in BYTES_BARS else ("", None)
        note = f"float32 {statistics.mean(exact):.5f}, its deviation over {SEEDS} seeds {spread:.5f}; "
        rows.append(
            row(f"held-out loss, {name}: change", change, "", told, ok, f"{note}by seed {np.round(changes, 5)}")
        )
    return rows


def run(seconds: float = 40.0) -> list[Row]:
    return [*measure_bytes(seconds / 2), *measure_speed(seconds), *measure_loss()]


if __name__ == "__main__":
    if sys.argv[1:] == ["network"]:
        answer({"join": join, "passed": passed})
    json.dump({"rows": run(float(sys.argv[1]) if len(sys.argv) > 1 else 40.0)}, sys.stdout, indent=2)
    print()

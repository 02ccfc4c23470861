"""`resources.workers.dense: group` beside `servers`: bytes of the busiest process, and steps a second.

Four workers and one server, each a process, over unix sockets; the model has a million and a half dense parameters,
and rows of 64 keys a step. A step is a pull and a push, without computing. Bytes are those of the parts of all messages
in and out. Both ways alternate.

python -m tests.bench.training.group [seconds]
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.bench.claims import Claim, at_most
from tests.bench.processes import OURS, Process, Servers, answer
from tests.bench.rows import Row, row

WORKERS, DENSE, KEYS, BATCH = 4, 1_500_000, 64, 512
ROUNDS, SECONDS = 3, 4.0
BYTES_BAR, SPEED_BAR = 0.5, 1.15
BYTES_ROW = "dense gradients in a group of 4: bytes a step of the busiest process"
CLAIMS = (
    Claim("HeterPS §3", "E3: CPU workers use servers, accelerators of one type an all-reduce", "no figure",
          "bytes of the busiest process of a group of 4, beside the server that takes all gradients; workers of "
          "any one type may be a group, and servers keep the optimizer", at_most(BYTES_BAR), BYTES_ROW),
)  # fmt: skip


class Counted:
    """Bytes of the parts of messages that pass this process."""

    def __init__(self) -> None:
        self.total, self._lock = 0, threading.Lock()

    def add(self, parts: Sequence[Any]) -> None:
        size = sum(memoryview(part).nbytes for part in parts)
        with self._lock:
            self.total += size


def _count(counted: Counted) -> None:
    """Count what connections and listeners of this process send and receive."""
    from stretto.group import membership
    from stretto_plane import Connection

    send, receive, handle = Connection.send, Connection.receive, membership.Membership._handle

    def counted_send(self: Any, kind: int, parts: Any) -> None:
        counted.add(parts)
        send(self, kind, parts)

    def counted_receive(self: Any, *given: Any) -> Any:
        message = receive(self, *given)
        counted.add(message.parts)
        return message

    def counted_handle(self: Any, message: Any, peer: Any) -> Any:
        counted.add(message.parts)
        kind, parts = handle(self, message, peer)
        counted.add(parts)
        return kind, parts

    Connection.send, Connection.receive = counted_send, counted_receive  # type: ignore[method-assign]
    membership.Membership._handle = counted_handle  # type: ignore[method-assign]


def _start(state: dict[str, Any], worker: int, servers: dict[str, str], key: str, encrypted: bool, folder: str) -> str:
    from stretto.engine import Access, Key, Parameters, one_table
    from stretto.group.shared_dense import SharedDense

    state["counted"] = Counted()
    _count(state["counted"])
    layout = one_table(16, DENSE, seed=1)
    access = Access(Key.of(key.encode()), encrypted)
    state["parameters"] = parameters = Parameters(
        layout, {int(server): address for server, address in servers.items()}, worker=worker, access=access
    )
    parameters.seed(np.zeros(DENSE, np.float32))
    address = f"unix:{folder}/worker-{worker}.sock"
    state["shared"] = SharedDense(worker, layout, access, address, time.monotonic)
    parameters.average_dense(state["shared"])
    return address


def _train(state: dict[str, Any], worker: int, members: dict[str, str], seconds: float, shard: int) -> dict[str, float]:
    """Step for so long; ``members`` of one alone: each gradient goes to the server by itself."""
    parameters, counted = state["parameters"], state["counted"]
    state["shared"].use({int(member): address for member, address in members.items()})
    random = np.random.default_rng(worker)
    gradient = random.normal(size=DENSE).astype(np.float32)
    keys = parameters.layout.index(random.integers(0, 10_000, KEYS))
    rows = [np.full((len(of), 16), 0.01, np.float32) for of in keys.tables]
    begun, begun_bytes, steps = time.monotonic(), counted.total, 0
    while time.monotonic() < begun + seconds:
        parameters.begin_pull(keys).result()
        start = steps * BATCH
        parameters.push(keys, rows, gradient, shard=shard + worker, attempt=1, start=start, stop=start + BATCH)
        steps += 1
    return {"steps": steps, "seconds": time.monotonic() - begun, "bytes": counted.total - begun_bytes}


def _round(
    workers: Sequence[Process], members: dict[str, str], seconds: float, shard: int
) -> tuple[float, float, float]:
    """Return steps a second of a worker, and bytes a step of the busiest worker and of the server."""
    for number, worker in enumerate(workers):
        own = members or {str(number): ""}
        worker.send(do="train", worker=number, members=own, seconds=seconds, shard=shard)
    found = [worker.receive() for worker in workers]
    rate = statistics.mean(each["steps"] / each["seconds"] for each in found)
    of_worker = max(each["bytes"] / each["steps"] for each in found)
    total = sum(each["bytes"] / each["steps"] for each in found)
    dense_bytes = 4 * DENSE
    # between members each byte is counted at both ends, at the server at the workers' alone
    among = 4 * (WORKERS - 1) * dense_bytes if members else 0
    return rate, of_worker, total - among


def run(seconds: float = SECONDS) -> list[Row]:
    servers = Servers(OURS)
    servers.start()
    servers.place()
    workers = [OURS.process("-m", "tests.bench.training.group", "worker") for _ in range(WORKERS)]
    try:
        folder = servers.addresses[0].removeprefix("unix:").rpartition("/")[0]
        for number, worker in enumerate(workers):
            worker.send(do="start", worker=number, servers=servers.addresses, folder=folder, **servers.access)
        members = {str(number): worker.receive() for number, worker in enumerate(workers)}
        alone, grouped = list[tuple[float, float, float]](), list[tuple[float, float, float]]()
        for number in range(2 * ROUNDS):
            kept, chosen = (alone, {}) if number % 2 == 0 else (grouped, members)
            kept.append(_round(workers, chosen, seconds, 100 * (number + 1)))
    finally:
        for process in workers:
            process.kill()
        servers.kill()
    ratios = [ours[0] / theirs[0] for theirs, ours in zip(alone, grouped, strict=True)]
    speed, ratio = statistics.median(each[0] for each in grouped), statistics.median(ratios)
    theirs = statistics.median(max(each[1], each[2]) for each in alone)
    ours = statistics.median(max(each[1], each[2]) for each in grouped)
    told = f"{DENSE:,} dense parameters, {WORKERS} workers, 1 server"
    return [
        row(BYTES_ROW, ours / 1e6, "MB", f"<= {BYTES_BAR} x", ours <= BYTES_BAR * theirs, told, theirs / 1e6),
        row(
            "dense gradients in a group of 4: steps a second of a worker",
            *(speed, "steps/s", f">= {SPEED_BAR} x", ratio >= SPEED_BAR),
            f"{told}; on this machine's cores alone: the network costs copies. Rounds {[round(r, 2) for r in ratios]}",
            *(statistics.median(each[0] for each in alone), ratio),
        ),
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        answer({"start": _start, "train": _train})
    for each in run(*map(float, sys.argv[1:])):
        print(each)

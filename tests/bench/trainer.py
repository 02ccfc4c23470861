"""The trainer: steps per second compared with ParameterServerStrategy, and the pause of a live change of servers.

python -m tests.bench.trainer [seconds]
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stretto.readers.synthetic import Synthetic

from tests.bench.rows import Row, row
from tests.bench.trainer_joining import measure_joining

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "libs/trainer/tests"
PS_SCRIPT = TESTS / "engine/ps_process.py"
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from shipped_planner import first_columns, planned_from  # noqa: E402

WORKERS = 2
SERVERS = 2
ROWS = 1_800_000  # of 136 B: about 245 MB of embeddings and slots


class Process:
    """A child process that answers each JSON line with one."""

    def __init__(self, *command: str, cwd: Path = ROOT) -> None:
        environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
        self.child = subprocess.Popen(
            [sys.executable, *command],
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def send(self, **message: Any) -> Process:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(message) + "\n")
        self.child.stdin.flush()
        return self

    def receive(self) -> Any:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise EOFError(f"{self.child.args} ended with status {self.child.wait()}")
        return json.loads(line)

    def ask(self, **message: Any) -> Any:
        return self.send(**message).receive()

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()


def ask_all(processes: list[Process], **message: Any) -> list[Any]:
    for process in processes:
        process.send(**message)
    return [process.receive() for process in processes]


class Stretto:
    """The parameter servers and workers of the real engine, without a bus."""

    def __init__(self) -> None:
        self.servers: list[Process] = []
        self.workers: list[Process] = []
        self.addresses: dict[int, str] = {}

    def start_workers(self) -> None:
        self.workers = [Process("-m", "tests.bench.trainer_worker") for _ in range(WORKERS)]
        self.layout = ask_all(self.workers, do="layout")[0]["layout"]

    def start_server(self) -> int:
        self.servers.append(Process(str(PS_SCRIPT)))
        index = len(self.servers) - 1
        self.addresses[index] = self.servers[index].ask(do="start", index=index, layout=self.layout, threads=1)[
            "address"
        ]
        return index

    def connect(self, first_shard: int = 0, pipeline: bool = True) -> None:
        for i, worker in enumerate(self.workers):
            worker.send(do="connect", servers=self.addresses, worker=i, first_shard=first_shard, pipeline=pipeline)
        for worker in self.workers:
            worker.receive()

    def train(self, seconds: float) -> list[list[float]]:
        """Train; return the ends of each worker's steps, on the machine's monotonic clock."""
        ask_all(self.workers, do="train", seconds=seconds)
        return [answer["ends"] for answer in ask_all(self.workers, do="collect")]

    def rate(self, seconds: float) -> float:
        """Train; return the steps per second from the command to the last step, like the other side's."""
        begun = time.monotonic()
        ends = [end for worker in self.train(seconds) for end in worker]
        return len(ends) / (max(ends) - begun)

    def kill(self) -> None:
        for process in [*self.servers, *self.workers]:
            process.kill()


class Strategy:
    """TensorFlow's own ParameterServerStrategy."""

    def __init__(self) -> None:
        # all ports are held until all are known, so that they differ
        holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(1 + WORKERS + SERVERS)]
        ports = [f"127.0.0.1:{holder.getsockname()[1]}" for holder in holders]
        for holder in holders:
            holder.close()
        cluster = {"chief": ports[:1], "worker": ports[1 : 1 + WORKERS], "ps": ports[1 + WORKERS :]}
        module = ("-m", "tests.bench.trainer_strategy")
        self.processes = [
            Process(*module, role, str(i), json.dumps(cluster)) for role in ("ps", "worker") for i in range(WORKERS)
        ]
        for process in self.processes:
            process.receive()
        self.chief = Process(*module, "chief", "0", json.dumps(cluster))
        self.processes.append(self.chief)

    def train(self, steps: int) -> float:
        """Train; return steps per second."""
        return steps / self.chief.ask(steps=steps)["seconds"]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


def measure_steps(seconds: float) -> list[Row]:
    """Measure all three in alternating rounds, warm, while the other two are at rest."""
    rounds = 8
    each_s = max(1.5, seconds / (2 * rounds))
    ours, theirs = {pipeline: Stretto() for pipeline in (True, False)}, Strategy()
    try:
        for pipeline, job in ours.items():
            job.start_workers()
            for _ in range(SERVERS):
                job.start_server()
            place(job)
            job.connect(pipeline=pipeline)
            job.train(2.0)
        rate = theirs.train(100)
        rates: list[tuple[dict[bool, float], float]] = []
        for _ in range(rounds):
            mine = {pipeline: job.rate(each_s) for pipeline, job in ours.items()}
            rate = theirs.train(max(20, int(rate * each_s)))
            rates.append((mine, rate))
    finally:
        for job in ours.values():
            job.kill()
        theirs.kill()
    return [steps_row(rates, pipeline) for pipeline in ours]


def steps_row(rates: list[tuple[dict[bool, float], float]], pipeline: bool) -> Row:
    """Make the row; the bar is for the default of jobs."""
    pairs = [(mine[pipeline], other) for mine, other in rates]
    ratio = statistics.median(mine / other for mine, other in pairs)
    return row(
        f"training steps, 2 workers, 2 parameter servers{'' if pipeline else ', model.pipeline: false'}",
        statistics.median(mine for mine, _ in pairs),
        "steps/s",
        ">= 1.0" if pipeline else "",
        ratio >= 1.0 if pipeline else None,
        f"ParameterServerStrategy, same model and batches; rounds {[round(m / o, 2) for m, o in pairs]}",
        statistics.median(other for _, other in pairs),
        ratio,
    )


def place(job: Stretto) -> None:
    from stretto.engine.layout import Layout

    for index, columns in first_columns(Layout.from_dict(job.layout), job.addresses).items():
        job.servers[index].ask(do="own", columns=columns)


def fill(job: Stretto) -> float:
    """Fill the tables with rows; return the megabytes of keys, rows and slots in use."""
    import numpy as np
    from stretto.engine import Layout, Parameters

    layout = Layout.from_dict(job.layout)
    parameters = Parameters(layout, job.addresses, worker=99)
    block = 60_000
    for i in range(ROWS // block):
        keys = layout.index(np.arange(i * block, (i + 1) * block) + (1 << 55))
        rows = np.full((len(keys), layout.dimension), 0.01, np.float32)
        dense = np.zeros(layout.dense_size, np.float32)
        parameters.push(keys, rows, dense, shard=-1, attempt=1, start=i, stop=i + 1)
    parameters.close()
    return ROWS * layout.row_bytes / 1e6


def longest_gap(ends: list[list[float]], begin: float, end: float) -> float:
    """Return the longest time between two steps of one worker that touches [begin, end]."""
    gaps = [b - a for e in ends for a, b in itertools.pairwise(e) if b >= begin and a <= end]
    return max(gaps, default=0.0)


def measure_migration(seconds: float) -> list[Row]:
    """Change 2 to 3 servers while both workers train; then the same by checkpoint, stop, restart, restore."""
    job = Stretto()
    ordinary_s = max(4.0, seconds / 4)
    with tempfile.TemporaryDirectory() as folder:
        try:
            job.start_workers()
            for _ in range(SERVERS):
                job.start_server()
            place(job)
            megabytes = fill(job)
            job.connect()
            job.train(2.0)
            ask_all(job.workers, do="train", seconds=600)
            begun = time.monotonic()
            time.sleep(ordinary_s)
            quiet_until = time.monotonic()
            newcomer = job.start_server()
            ask_all(job.workers, do="meet", servers=job.addresses)
            moved, move_s = move(job, newcomer)
            ended = time.monotonic()
            time.sleep(1.0)
            ask_all(job.workers, do="stop")
            ends = [answer["ends"] for answer in ask_all(job.workers, do="collect")]
            pause = longest_gap(ends, quiet_until, ended)
            ordinary = longest_gap(ends, begun, quiet_until)
            restart = restart_pause(job, Path(folder))
        finally:
            job.kill()
    note = f"{megabytes:.0f} MB of rows and slots, {moved:.0f} MB moved in {move_s:.1f} s while both workers train"
    return [
        row(
            "longest pause, 2 -> 3 servers live, beside a restart",
            pause, "s", "<= 0.03", pause <= 0.03 * restart,
            f"{note}; baseline: checkpoint, stop, restart at 3 servers, restore", restart,
        ),
        row(
            "longest pause, 2 -> 3 servers live, beside an ordinary step",
            pause, "s", "<= 6", pause <= 6 * ordinary,
            f"baseline: the longest step of {ordinary_s:.0f} s without a move", ordinary,
        ),
    ]  # fmt: skip


def move(job: Stretto, newcomer: int) -> tuple[float, float]:
    from stretto.engine import Control, Layout

    layout = Layout.from_dict(job.layout)
    with ExitStack() as sessions:
        controls = [sessions.enter_context(Control(layout, job.addresses[s], s)) for s in job.addresses]
        sources = planned_from(layout, controls, job.addresses)[newcomer]
    answer = job.servers[newcomer].ask(do="move", sources=sources, addresses=job.addresses)
    if "error" in answer:
        raise RuntimeError(answer["text"])
    return sum(step[1] for step in answer["steps"]) / 1e6, answer["seconds"]


def restart_pause(job: Stretto, folder: Path) -> float:
    """Return the seconds from the last step before to the last worker's first step after; all processes start anew."""
    ask_all(job.workers, do="train", seconds=1.0)
    last = max(answer["ends"][-1] for answer in ask_all(job.workers, do="collect"))
    paths = [str(folder / f"ps-{i}") for i in job.addresses]
    for server, path in zip(job.servers, paths, strict=True):
        server.send(do="save", path=path)
    for server in job.servers:
        server.receive()
    count = len(job.servers)
    job.kill()
    job.servers, job.addresses = [], {}
    layout = job.layout
    servers = [Process(str(PS_SCRIPT)) for _ in range(count)]
    job.workers = [Process("-m", "tests.bench.trainer_worker") for _ in range(WORKERS)]
    job.servers = servers
    for index, server in enumerate(servers):
        server.send(do="start", index=index, layout=layout, threads=1)
    for index, server in enumerate(servers):
        job.addresses[index] = server.receive()["address"]
    from stretto.engine.layout import Layout

    placement = first_columns(Layout.from_dict(layout), range(count))
    for index, server in enumerate(servers):
        server.send(do="load", paths=paths, columns=placement[index])
    for server in servers:
        server.receive()
    job.connect(first_shard=500_000)
    ends = job.train(2.0)
    return max(e[0] for e in ends) - last


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
    """Return rows of steps, migration and joining, after about `seconds` of measuring and some 80 s of starting."""
    return [*measure_steps(seconds / 2), *measure_migration(seconds / 2), measure_joining(), measure_generator()]


if __name__ == "__main__":
    json.dump({"rows": run(float(sys.argv[1]) if len(sys.argv) > 1 else 40.0)}, sys.stdout, indent=2)
    print()

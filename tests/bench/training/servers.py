"""Parameter servers without a model: the cost of pulls and pushes, the start, memory and growth.

Batches are 512 samples of 26 uniform ids (13.2 thousand unique keys of 1 or 5 million rows of 16 weights with Adagrad)
and 145 thousand dense floats: the worst case of a step. Two servers and two workers, each in a process of its own, on
unix sockets as pods of one machine. The engine of this tree and the baseline (processes.py) take turns in one run, and
what counts is their CPU time, since the machine is shared.

python -m tests.bench.training.servers [shared|cost|transports|start|memory]
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from stretto.engine import one_table

from tests.bench.places import ROOT
from tests.bench.processes import OURS, BaselineMissing, Engine, Process, Servers, ask_all, baseline
from tests.bench.rows import Row, row, row_at_most
from tests.bench.training.trainer_joining import Pods

if TYPE_CHECKING:
    from stretto.engine.layout import U64
    from stretto.engine.locked_store import LockedStore

SERVERS, WORKERS = 2, 2
SIZES = (1_000_000, 5_000_000)
ROUNDS, ROUND_S = 6, 2.0
FILL_BLOCK = 60_000
GROWN_ROWS = 4_000_000
STARTS, GROWTHS = 7, 3
CPU_BAR, READY_BAR_S, EMPTY_BAR_MIB, ROW_BYTES_BAR, WORST_PUSH_BAR_MS = 2.0, 0.5, 80.0, 0.6, 40.0
MIB = 2**20
CLIENT = str(ROOT / "tests/bench/training/parameters_client.py")


@dataclass(frozen=True, slots=True)
class Cost:
    """One round: CPU milliseconds of all workers and of all servers per step, and milliseconds of each step."""

    worker_ms: float
    server_ms: float
    steps_ms: list[float]
    rate: float

    @property
    def cpu_ms(self) -> float:
        return self.worker_ms + self.server_ms


@dataclass
class Job:
    """Servers and clients of one engine."""

    engine: Engine
    servers_count: int = SERVERS
    clients_count: int = WORKERS
    transport: str = "unix"
    clients: list[Process] = field(default_factory=list[Process])

    def start(self) -> None:
        # -P: the folder of the script holds names that others import from elsewhere
        self.clients = [self.engine.process("-P", CLIENT) for _ in range(self.clients_count)]
        layout = ask_all(self.clients, do="describe")[0]["layout"]
        self.servers = Servers(self.engine, layout, self.transport)
        self.servers.start(self.servers_count)
        self.servers.place()
        self.empty_bytes = self.servers.resident_bytes()
        for number, client in enumerate(self.clients):
            client.ask(do="connect", servers=self.servers.addresses, worker=number, **self.servers.access)
        self.rows = 0

    def fill(self, rows: int, block: int = FILL_BLOCK) -> list[float]:
        """Push new ids until there are so many; return the seconds of each push."""
        first, self.rows = self.rows, rows
        return self.clients[0].ask(do="fill", first=first, last=rows, block=block)["seconds"]

    def round(self, seconds: float = ROUND_S) -> Cost:
        server_s = self.servers.cpu_s()
        answers = ask_all(self.clients, do="train", seconds=seconds)
        server_s = self.servers.cpu_s() - server_s
        steps = [1e3 * each for answer in answers for each in answer["steps"]]
        worker_s = sum(answer["cpu_s"] for answer in answers)
        return Cost(1e3 * worker_s / len(steps), 1e3 * server_s / len(steps), steps, len(steps) / seconds)

    def kill(self) -> None:
        for client in self.clients:
            client.kill()
        self.servers.kill()


@contextmanager
def started(*jobs: Job) -> Iterator[None]:
    with ExitStack() as stack:
        for job in jobs:
            job.start()
            stack.callback(job.kill)
        yield


def sides() -> tuple[list[Engine], str]:
    """Return the engines to measure, and why there is no baseline."""
    try:
        return [OURS, baseline()], ""
    except BaselineMissing as error:
        return [OURS], str(error)


# --- pull and push --------------------------------------------------------------------------------------------


def measure_cost(sizes: tuple[int, ...] = SIZES) -> list[Row]:
    """Return the rows of CPU per step at each size."""
    engines, missing = sides()
    jobs = [Job(engine) for engine in engines]
    found: list[Row] = []
    with started(*jobs):
        for size in sizes:
            for job in jobs:
                job.fill(size)
                ask_all(job.clients, do="prepare", ids=size)
                job.round(1.0)
            rounds = [[job.round() for job in jobs] for _ in range(ROUNDS)]
            found.append(cost_row(f"{size // 10**6} M rows", rounds, missing))
    return found


def cost_row(name: str, rounds: list[list[Cost]], missing: str) -> Row:
    typical = [told([turn[side] for turn in rounds]) for side in range(len(rounds[0]))]
    name = f"CPU of a pull and a push, both sides, {name}"
    value = statistics.median(turn[0].cpu_ms for turn in rounds)
    if missing:
        return row(name, value, "ms", "", None, f"{typical[0]}; no baseline: {missing}")
    ratios = [turn[1].cpu_ms / turn[0].cpu_ms for turn in rounds]
    ratio = statistics.median(ratios)
    return row(
        name, value, "ms", f"baseline >= {CPU_BAR:g} x", ratio >= CPU_BAR,
        f"{typical[0]}; baseline {typical[1]}; rounds {[round(each, 2) for each in ratios]}",
        statistics.median(turn[1].cpu_ms for turn in rounds), 1 / ratio,
    )  # fmt: skip


def told(rounds: list[Cost]) -> str:
    steps = sorted(each for one in rounds for each in one.steps_ms)
    worker, server, rate = (
        statistics.median(getattr(one, name) for one in rounds) for name in ("worker_ms", "server_ms", "rate")
    )
    p50, p99 = (steps[int(len(steps) * share)] for share in (0.5, 0.99))
    return f"workers {worker:.1f} + servers {server:.1f} ms, p50 {p50:.1f}, p99 {p99:.1f} ms, {rate:.0f} steps/s"


def measure_transports() -> list[Row]:
    """Return one row for each transport beside unix sockets, at a million rows."""
    jobs = [Job(OURS, transport=transport) for transport in ("unix", "tcp", "tls")]
    with started(*jobs):
        for job in jobs:
            job.fill(SIZES[0])
            ask_all(job.clients, do="prepare", ids=SIZES[0])
            job.round(1.0)
        rounds = [[job.round() for job in jobs] for _ in range(ROUNDS)]
    plain = statistics.median(turn[0].cpu_ms for turn in rounds)
    return [
        row(
            f"the same over {name}, 1 M rows", statistics.median(turn[side].cpu_ms for turn in rounds), "ms", "", None,
            f"{told([turn[side] for turn in rounds])}; baseline: unix sockets", plain,
            statistics.median(turn[side].cpu_ms / turn[0].cpu_ms for turn in rounds),
        )
        for side, name in ((1, "TCP of this machine"), (2, "TLS"))
    ]  # fmt: skip


# --- start ----------------------------------------------------------------------------------------------------


def measure_start() -> list[Row]:
    """Return the rows of a server's start: a bare process, and a pod with its agent on a real bus."""
    engines, missing = sides()
    layouts = [layout_of(engine) for engine in engines]
    rounds = [[start_of(*side) for side in zip(engines, layouts, strict=True)] for _ in range(STARTS)]
    with Pods() as pods:
        pod_rounds = [pods.start_of_server(number) for number in range(STARTS)]
    least = [[min(one[side][i] for one in rounds) for side in range(len(engines))] for i in range(3)]
    pod = [min(one[i] for one in pod_rounds) for i in range(3)]
    base = [each[1] if len(each) > 1 else None for each in least]
    note = f"; no baseline: {missing}" if missing else ""
    ready, cpu, resident = (each[0] for each in least)
    median = statistics.median(one[0][0] for one in rounds)
    return [
        row_at_most("server: exec to ready", ready, "s", READY_BAR_S,
                    f"to the first answered greeting; best of {STARTS}, median {median:.2f} s, CPU {cpu:.2f}", base[0]),
        row_at_most("server: a pod, exec to ready", pod[0], "s", None,
                    f"python -m stretto.ps on a real bus, to the first answered ping; CPU {pod[1]:.2f} s", base[0]),
        row_at_most("server: resident when empty", resident, "MiB", EMPTY_BAR_MIB, f"a bare process{note}", base[2]),
        row_at_most("server: a pod, resident when empty", pod[2], "MiB", None, "with its agent on the bus", base[2]),
    ]  # fmt: skip


def layout_of(engine: Engine) -> dict[str, Any]:
    client = engine.process("-P", CLIENT)
    try:
        return client.ask(do="describe")["layout"]
    finally:
        client.kill()


def start_of(engine: Engine, layout: dict[str, Any]) -> tuple[float, float, float]:
    """Return the seconds from exec to the first answered greeting, those of CPU, and the resident MiB."""
    servers = Servers(engine, layout)
    access = servers.access
    begun = time.perf_counter()
    try:
        servers.start()
        if not engine.is_baseline:
            from stretto.engine.link import Access, Link
            from stretto_plane import Key

            Link(0, servers.addresses[0], Access(Key.of(access["key"].encode())), None, 5.0).close()
        seconds = time.perf_counter() - begun
        return seconds, servers.cpu_s(), servers.resident_bytes() / MIB
    finally:
        servers.kill()


# --- memory and growth ----------------------------------------------------------------------------------------


def measure_memory() -> list[Row]:
    """Return the rows of growth to 4 million rows by pushes of new ids, and of memory at 5 million; one server."""
    engines, missing = sides()
    found = [grown(engines[0], GROWTHS), *(grown(engine, 1) for engine in engines[1:])]
    note = f"; no baseline: {missing}" if missing else ""
    base = found[1] if len(found) > 1 else {}
    ours = found[0]
    ratio = ours["row_bytes"] / base["row_bytes"] if base else None
    growth = (
        f"best of {GROWTHS} growths by pushes of 13,312 new rows to one server: median {ours['median_ms']:.1f} ms, "
        f"p99 {ours['p99_ms']:.1f}"
    )
    return [
        row_at_most("server: worst push while growing to 4 M rows", ours["worst_ms"], "ms", WORST_PUSH_BAR_MS,
                    growth + note, base.get("worst_ms")),
        row("server: resident memory of a row at 5 M", ours["row_bytes"], "B", f"<= {ROW_BYTES_BAR:g} x baseline",
            None if ratio is None else ratio <= ROW_BYTES_BAR, f"payload 136{note}", base.get("row_bytes"), ratio),
    ]  # fmt: skip


def grown(engine: Engine, times: int) -> dict[str, float]:
    """Return the figures of the growth with the fastest worst push: the others shared the machine with more."""
    found: list[dict[str, float]] = []
    for _ in range(times):
        job = Job(engine, servers_count=1, clients_count=1)
        with started(job):
            ms = sorted(1e3 * each for each in job.fill(GROWN_ROWS, 13_312))
            job.fill(SIZES[-1])
            row_bytes = (job.servers.resident_bytes() - job.empty_bytes) / SIZES[-1]
        shares = {"median_ms": statistics.median(ms), "p99_ms": ms[len(ms) * 99 // 100], "worst_ms": ms[-1]}
        found.append({**shares, "row_bytes": row_bytes})
    return min(found, key=lambda each: each["worst_ms"])


# --- pulls side by side ---------------------------------------------------------------------------------------


def measure_shared_pulls() -> list[Row]:
    """Return the row of pulls of two connections at one server, beside those of one: a lock that they share."""
    from stretto.engine.locked_store import LockedStore
    from stretto_parameters import Own, RawBucket
    from stretto_parameters.layout import RowFormat

    layout = one_table(16, 1200)
    control = LockedStore(0, layout, 2**33)
    control.set_own(range(layout.columns), Own.MINE)
    draw = np.random.default_rng(1)
    words = RowFormat.of_table(layout.tables[0]).words
    per_bucket = SIZES[0] // layout.buckets
    for bucket in range(layout.buckets):
        keys = np.unique(draw.integers(0, 2**layout.shift, per_bucket, np.uint64)) + np.uint64(bucket << layout.shift)
        control.import_bucket(bucket, [RawBucket(keys, np.zeros((len(keys), words), np.float32))])
    wanted = [np.sort(draw.integers(0, 2**64, 13_000, np.uint64)) for _ in range(2)]
    rounds = [(pulls_per_s(control, wanted[:1]), pulls_per_s(control, wanted)) for _ in range(ROUNDS)]
    one, two = (statistics.median(each) for each in zip(*rounds, strict=True))
    note = f"13,000 keys each, in one process without sockets; rounds {[round(b / a, 2) for a, b in rounds]}"
    return [row("server: pulls of two threads beside those of one", two, "1/s", ">= 1.3", two >= 1.3 * one, note, one)]


def pulls_per_s(control: LockedStore, wanted: list[U64]) -> float:
    """Return the pulls a second of as many threads as there are batches."""
    ends = time.perf_counter() + ROUND_S
    counts = [0] * len(wanted)
    slices = np.zeros(0, np.int64)

    def pull(number: int) -> None:
        while time.perf_counter() < ends:
            control.pull([wanted[number]], slices)
            counts[number] += 1

    threads = [threading.Thread(target=pull, args=(number,)) for number in range(len(wanted))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / ROUND_S


PARTS = {
    "shared": measure_shared_pulls,
    "cost": measure_cost,
    "transports": measure_transports,
    "start": measure_start,
    "memory": measure_memory,
}


def run() -> list[Row]:
    return [each for part in PARTS.values() for each in part()]


if __name__ == "__main__":
    json.dump([each for name in sys.argv[1:] or PARTS for each in PARTS[name]()], sys.stdout, indent=1)
    print()

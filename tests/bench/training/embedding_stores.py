"""Stores of embedding rows side by side: Stretto's, PyTorch's, FBGEMM's, Paddle's, RocksDB and LMDB.

A million rows of 16 weights with Adagrad; batches of 13,312 draws by Zipf's law (exponent 1.05), whose different keys
are pulled and pushed once each. All sides get the same batches, in turns of one run, each in processes of its own while
the others rest, with one thread of its own and the gradients in hand. A side's rows per second of CPU time are its rows
a core: all its threads and processes count. Bytes a row are those that the processes are larger by (resident).

At 25 % hot, Stretto's store keeps a quarter of its rows in memory, and all entries and indices. What it then takes in
all is the cache of RocksDB, whose write buffers and filters come on top, and of LMDB, by a control group of memory.
Paddle's SSD table keeps what it reads in memory: each round begins anew with that quarter of the rows which is drawn
most; the others are measured when they are warm. The files of all but LMDB are written back and dropped from the
page cache before each step, which does not count, so that a cold row is a read of the disk. By the clock, waits for
these reads count; no side waits for its writes.

The environment names each peer's Python, which has NumPy too: ``TORCH_PYTHON`` (torch), ``FBGEMM_PYTHON``
(fbgemm-gpu-cpu, torch), ``PADDLE_PYTHON`` (paddlepaddle==2.6.2, protobuf<6), ``KEYVALUE_PYTHON`` (rocksdict, lmdb).

python -m tests.bench.training.embedding_stores
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from stretto.engine.spilling import random_reads_per_s
from stretto_actuator.local.control_groups import Cgroups, Group
from stretto_parameters import kernels

from tests.bench.processes import Process
from tests.bench.rows import Row, row
from tests.bench.training.store import keys_of
from tests.bench.training.stores.side import DISK, MEMORY, ROWS

DRAWS, EXPONENT = 13_312, 1.05
WARM_STEPS, ROUNDS, STEPS = 150, 5, 15
DISK_BAR, FBGEMM_BAR = 2.0, 0.5
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Kind:
    """A store that is measured.

    module: its side. python: the variable that names its Python; "" for this one. needs: a module which that has. bars:
    of Stretto's rows a second / its own, by mode. but: what it does and Stretto's does not, or the other way round.
    """

    name: str
    module: str
    python: str = ""
    needs: str = ""
    bars: Mapping[str, float | None] = field(default_factory=lambda: {MEMORY: None, DISK: None})
    but: str = ""
    warm_steps: int = WARM_STEPS
    """Steps at 25 % hot before it is measured."""
    is_renewed: bool = False
    """At 25 % hot each round begins with a new process: it does not stay at 25 %."""

    def why_missing(self) -> str:
        """Return why it cannot be measured, else ""."""
        if self.python and not os.environ.get(self.python):
            return f"{self.python} is not set (an environment with {self.needs} and numpy)"
        try:
            found = subprocess.run([self.command, "-c", f"import {self.needs}"], capture_output=True, text=True)
        except OSError as error:
            return f"{self.python}: {error}"
        return found.stderr.strip().splitlines()[-1][:200] if found.returncode else ""

    @property
    def command(self) -> str:
        return os.environ[self.python] if self.python else sys.executable


OURS = Kind("Stretto", "ours", needs="stretto_parameters")
ARRAY = "an array: it finds no key, makes no row, and keeps no records of samples"
BYTES = "it knows bytes alone: NumPy updates rows within the step; no records of samples"
PADDLE = "no records of samples, and no push is waited for; it crosses a socket, and Stretto's store does not here"
PEERS = (
    Kind("PyTorch", "torch_bag", "TORCH_PYTHON", "torch", {MEMORY: None}, ARRAY),
    Kind("FBGEMM", "fbgemm", "FBGEMM_PYTHON", "fbgemm_gpu", {MEMORY: FBGEMM_BAR}, ARRAY),
    Kind("Paddle", "paddle_ps", "PADDLE_PYTHON", "paddle", {MEMORY: None, DISK: DISK_BAR}, PADDLE, 1, is_renewed=True),
    Kind("RocksDB", "rocks", "KEYVALUE_PYTHON", "rocksdict", {MEMORY: None, DISK: DISK_BAR}, BYTES),
    Kind("LMDB", "pages", "KEYVALUE_PYTHON", "lmdb", but=BYTES, warm_steps=40),
)


class Missing(RuntimeError):
    """A side cannot be measured."""


class Running:
    """A side that is measured: a process, what it told after it was warm, and the answers of its rounds."""

    def __init__(self, kind: Kind, mode: str, folder: Path, budget_bytes: int, stack: ExitStack) -> None:
        """Raises Missing, EOFError."""
        if reason := kind.why_missing():
            raise Missing(reason)
        self.kind, self.mode, self.folder, self.budget_bytes = kind, mode, folder, budget_bytes
        self.rounds: list[dict[str, Any]] = []
        stack.callback(lambda: self.process.kill())
        self.begin(stack)

    def begin(self, stack: ExitStack) -> None:
        """Open and fill it; at 25 % hot take the rest from memory. Raises Missing, EOFError."""
        own = tempfile.mkdtemp(dir=self.folder)
        module = f"tests.bench.training.stores.{self.kind.module}"
        self.process = process = Process("-m", module, environment=ONE_THREAD, python=self.kind.command)
        on_disk = self.mode == DISK
        group = stack.enter_context(limited(process)) if on_disk and self.kind.module == "pages" else None
        where = {"batches": str(self.folder / "batches.npz"), "mode": self.mode, "folder": own}
        if opened := process.ask(do="open", **where, budget_bytes=self.budget_bytes):
            raise Missing(opened["missing"])
        process.ask(do="fill")
        if on_disk:
            process.ask(do="tighten")
        if group is not None:
            group.set(0, process.resident_bytes() + self.budget_bytes)
        self.warm = self.run(0, self.kind.warm_steps if on_disk else STEPS)

    def round(self, number: int, stack: ExitStack) -> None:
        """Add a round. Raises EOFError."""
        if self.mode == DISK and self.kind.is_renewed and number:
            self.process.kill()
            self.begin(stack)
        self.rounds.append(self.run(WARM_STEPS + number * STEPS, STEPS))

    def run(self, first: int, count: int) -> dict[str, Any]:
        answered: dict[str, Any] = self.process.ask(do="run", first=first, count=count)
        return answered

    def rates(self, clock: str) -> list[float]:
        """Return the rows a second of each round, by `wall_s` or `cpu_s`."""
        return [each["rows"] / each[clock] for each in self.rounds]


@contextmanager
def limited(process: Process) -> Iterator[Group]:
    """Put a process into a control group of memory. Raises Missing."""
    cgroups = Cgroups.find(f"stretto-bench-{os.getpid()}")
    if not cgroups.has("memory"):
        raise Missing("there is no control group of memory that may be written, and nothing else limits the page cache")
    group = Group({"memory": cgroups.group("pages").folders["memory"]})
    group.make()
    for entry in group.entries:
        Path(entry).write_text(str(process.child.pid))
    try:
        yield group
    finally:
        process.kill()
        group.remove()


def write_batches(path: Path) -> None:
    """Write the keys by rank, and those of each batch; the same as positions of an array."""
    random = np.random.default_rng(1)
    shares = np.cumsum(1 / np.arange(1, ROWS + 1) ** EXPONENT)
    positions = random.permutation(ROWS)
    keys = keys_of(ROWS)
    drawn = [
        np.unique(positions[np.searchsorted(shares, random.random(DRAWS) * shares[-1])])
        for _ in range(WARM_STEPS + ROUNDS * STEPS)
    ]
    ends = np.cumsum([len(each) for each in drawn])
    drawn_keys = np.concatenate([np.sort(keys[each]) for each in drawn])
    given = {"drawn_keys": drawn_keys, "drawn_positions": np.concatenate(drawn), "ends": ends}
    np.savez(path, keys=keys[positions], positions=positions, **given)


def measured(mode: str, folder: Path) -> list[Row]:
    """Measure all sides in one mode, in turns."""
    missing: dict[str, str] = {}
    sides: dict[str, Running] = {}
    budget_bytes = 0
    peers = [each for each in PEERS if mode in each.bars]
    with ExitStack() as stack:
        for kind in (OURS, *peers):
            try:
                sides[kind.name] = side = Running(kind, mode, folder, budget_bytes, stack)
            except (Missing, EOFError) as error:
                missing[kind.name] = str(error)
                continue
            budget_bytes = budget_bytes or side.warm["memory_bytes"]
        for number in range(ROUNDS):
            for name, side in list(sides.items()):
                try:
                    side.round(number, stack)
                except EOFError as error:
                    missing[name] = str(error)
                    del sides[name]
    clocks = ("cpu_s", "wall_s") if mode == DISK else ("cpu_s",)
    return [row_of(peer, mode, clock, sides, missing) for peer in peers for clock in clocks]


def row_of(peer: Kind, mode: str, clock: str, sides: Mapping[str, Running], missing: Mapping[str, str]) -> Row:
    """Return Stretto's rows a second of a clock beside a peer's."""
    by = "a core" if clock == "cpu_s" else "by the clock"
    name = f"embedding stores, {'all in memory' if mode == MEMORY else '25 % hot'}: rows/s {by}, beside {peer.name}"
    bar = peer.bars[mode]
    told = "" if bar is None else f">= {bar:g}"
    if why := missing.get(OURS.name) or missing.get(peer.name):
        return row(name, float("nan"), "1/s", told, None, f"skipped: {why}")
    ours, theirs = sides[OURS.name], sides[peer.name]
    ratios = [one / other for one, other in zip(ours.rates(clock), theirs.rates(clock), strict=True)]
    ratio = statistics.median(ratios)
    last, other = ours.rounds[-1], theirs.rounds[-1]
    note = (
        f"bytes a row {last['row_bytes']:.0f}, {peer.name} {other['row_bytes']:.0f}; {other['versions']}; {peer.but}; "
    )
    if mode == DISK:
        reads = (last["read"] - ours.warm["read"]) / (ROUNDS * STEPS)
        note += f"{reads:.0f} of {last['rows'] / STEPS:.0f} rows read, {last['hot']:.2f} hot; "
    note += f"rounds {[round(each, 2) for each in ratios]}"
    value, baseline = statistics.median(ours.rates(clock)), statistics.median(theirs.rates(clock))
    return row(name, value, "1/s", told, None if bar is None else ratio >= bar, note, baseline, ratio)


def disk_row(rates: Sequence[float]) -> Row:
    note = "of a page, as many asked for at once as a batch needs"
    return row("embedding stores: random reads of this disk", statistics.median(rates), "1/s", "", None, note)


def run() -> list[Row]:
    """Return the rows of all peers, all in memory and at 25 % hot."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_batches(folder / "batches.npz")
        disk = [random_reads_per_s(folder, kernels.load()) for _ in range(5)]
        return [*measured(MEMORY, folder), *measured(DISK, folder), disk_row(disk)]


if __name__ == "__main__":
    for each in run():
        print(each)

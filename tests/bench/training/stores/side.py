"""A store as one side of embedding_stores.py: a child process in an environment of its own, of which NumPy is asked.

A step gives the weights of a batch's rows to the caller, and updates the rows with gradients that the caller has. Its
CPU time is that of all threads of the side, of its other processes, and of what it does between the steps.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tests.bench.processes import answer

ROWS, WIDTH, RATE, EPSILON = 1_000_000, 16, 0.05, 1e-8
FILLED_ROWS = 13_312
MEMORY, DISK = "memory", "disk"


class Side(ABC):
    """A store with a row for each key. mode: all rows in memory, or those that fit `budget_bytes`."""

    by_position: ClassVar[bool] = False
    """The store is an array: its keys are positions, and it finds nothing by a key."""
    uncached: ClassVar[bool] = True
    """On the disk: its files are taken out of the page cache before each step."""
    pids: tuple[int, ...] = ()
    """The other processes of the side, which have the rows."""
    pause_s: ClassVar[float] = 0.0
    """Seconds that `settle` sleeps in any case: they do not count."""

    def __init__(self, mode: str, folder: Path, budget_bytes: int) -> None:
        self.mode, self.folder, self.budget_bytes = mode, folder, budget_bytes
        self.empty_bytes = resident_bytes()
        """Resident bytes before it has a row."""

    @abstractmethod
    def step(self, keys: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        """Return the weights [n, WIDTH] of different keys [n], and update their rows."""

    def fill(self, keys: np.ndarray) -> None:
        """Make a row for each key."""
        gradients = np.ones((FILLED_ROWS, WIDTH), np.float32)
        for begin in range(0, len(keys), FILLED_ROWS):
            some = np.sort(keys[begin : begin + FILLED_ROWS])
            self.step(some, gradients[: len(some)])

    def tighten(self, hot: np.ndarray) -> None:  # noqa: B027 - a side without a disk has nothing to do
        """Leave a quarter of the rows in memory. hot: the keys that are drawn most."""

    def settle(self) -> None:  # noqa: B027 - most sides are done when a step is
        """Wait until nothing that a step began is left to do."""

    def told(self) -> dict[str, Any]:
        """Return `versions`, and counts, for the note of the figures."""
        return {}


class ArraySide(Side):
    """A store that is an array. Its memory without a row is taken after a first step has loaded the library."""

    by_position = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.make(rows=1)
        self.step(np.zeros(1, np.int64), np.zeros((1, WIDTH), np.float32))
        self.empty_bytes = resident_bytes()
        self.make(ROWS)

    @abstractmethod
    def make(self, rows: int) -> None:
        """Have an array of `rows` rows."""


def adagrad(rows: np.ndarray, gradients: np.ndarray) -> None:
    """Update rows [weights | sums of squares] of a store that knows bytes alone."""
    rows[:, WIDTH:] += gradients * gradients
    rows[:, :WIDTH] -= RATE * gradients / (np.sqrt(rows[:, WIDTH:]) + EPSILON)


def serve(side: type[Side]) -> None:
    """Serve the parent: open, fill, tighten, run, told."""
    answer(
        {"open": lambda state, **given: _open(state, side, **given), "fill": _fill, "tighten": _tighten, "run": _run}
    )


def _open(state: dict[str, Any], side: type[Side], batches: str, mode: str, folder: str, budget_bytes: int) -> Any:
    data = np.load(batches)
    state["keys"] = data["positions" if side.by_position else "keys"]
    state["drawn"] = np.split(data["drawn_positions" if side.by_position else "drawn_keys"], data["ends"][:-1])
    state["gradients"] = np.random.default_rng(1).normal(0, 1, (FILLED_ROWS, WIDTH)).astype(np.float32)
    try:
        state["side"] = side(mode, Path(folder), budget_bytes)
    except Exception as error:
        return {"missing": f"{type(error).__name__}: {error}"}
    return {}


def _fill(state: dict[str, Any]) -> Any:
    side, keys = state["side"], np.sort(state["keys"][:64])
    side.fill(state["keys"])
    side.settle()
    before = side.step(keys, np.ones((64, WIDTH), np.float32))
    side.settle()
    after = side.step(keys, np.zeros((64, WIDTH), np.float32))
    assert (after < before).all(), "the rows do not learn"
    return _told(state)


def _tighten(state: dict[str, Any]) -> Any:
    state["side"].tighten(state["keys"][: ROWS // 4])
    return _told(state)


def _told(state: dict[str, Any]) -> dict[str, Any]:
    side = state["side"]
    return {"row_bytes": (resident_bytes(side.pids) - side.empty_bytes) / ROWS, **side.told()}


def _run(state: dict[str, Any], first: int, count: int) -> Any:
    side = state["side"]
    uncached = side.mode == DISK and side.uncached
    rows, wall_s, cpu_s = 0, 0.0, -_cpu_s(side.pids)
    for keys in state["drawn"][first : first + count]:
        if uncached:
            cpu_s -= uncache(side.folder)
        begun = time.perf_counter()
        side.step(keys, state["gradients"][: len(keys)])
        wall_s += time.perf_counter() - begun
        rows += len(keys)
    begun = time.perf_counter()
    side.settle()
    wall_s += time.perf_counter() - begun - side.pause_s
    return {"rows": rows, "wall_s": wall_s, "cpu_s": cpu_s + _cpu_s(side.pids), **_told(state)}


def uncache(folder: Path) -> float:
    """Take a side's files out of the page cache, open ones without a name too; return the CPU seconds of that."""
    begun = time.thread_time()
    named = [path for path in folder.rglob("*") if path.is_file()]
    nameless = [f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")]
    for path in [*named, *(each for each in nameless if _target(each).startswith(f"{folder}/"))]:
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:  # a file that the store has deleted meanwhile
            continue
        os.fdatasync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    return time.thread_time() - begun


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _cpu_s(pids: tuple[int, ...]) -> float:
    # the kernel's number of another process's CPU clock
    return time.process_time() + sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def resident_bytes(pids: tuple[int, ...] = ()) -> int:
    """Return the resident bytes of processes; of this one if none is named."""
    pages = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in pids or ("self",)]
    return sum(map(int, pages)) * os.sysconf("SC_PAGESIZE")


def versions(*names: str) -> str:
    """Name the versions of distributions."""
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in names) + f", Python {sys.version.split()[0]}"

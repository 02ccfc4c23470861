"""Child processes of measurements, and the two engines whose servers and workers they are.

The engine of this tree is measured beside that of :data:`BASELINE`, the last one inside TensorFlow. Its tree is taken
from the history of this clone, below a folder that git ignores, and its processes import from there: PYTHONPATH goes
before installed distributions.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tests.bench.places import ROOT

BASELINE = "d4aab18"
FOLDER = ROOT / ".stretto" / f"baseline-{BASELINE}"
PS_SCRIPT = Path("libs/trainer/tests/engine/ps_process.py")


class Process:
    """A child process that answers each JSON line with one. `python`: of another environment."""

    def __init__(
        self,
        *command: str,
        cwd: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        given = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", **(environment or {})}
        self.child = subprocess.Popen(
            [python, *command],
            cwd=cwd,
            env=os.environ | given,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
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
            raise EOFError(f"{self.child.args} ended with status {self.child.wait()}: {self._last_complaint()}")
        return json.loads(line)

    def _last_complaint(self) -> str:
        self.complaints.seek(0)
        return (self.complaints.read().decode(errors="replace").strip().splitlines() or ["without a word"])[-1]

    def ask(self, **message: Any) -> Any:
        return self.send(**message).receive()

    def cpu_s(self) -> float:
        """Return the CPU time of all its threads so far."""
        return time.clock_gettime((~self.child.pid << 3) | 2)  # the kernel's number of another process's CPU clock

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGESIZE")

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()


def answer(commands: Mapping[str, Callable[..., Any]]) -> NoReturn:
    """Serve the parent's :class:`Process` in a child: call the command of each line with a common state."""
    state: dict[str, Any] = {}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        message = json.loads(line)
        print(json.dumps(commands[message.pop("do")](state, **message)), file=answers, flush=True)
    os._exit(0)


def ask_all(processes: Sequence[Process], **message: Any) -> list[Any]:
    for process in processes:
        process.send(**message)
    return [process.receive() for process in processes]


@dataclass(frozen=True, slots=True)
class Engine:
    """A tree whose servers and workers are measured. `is_baseline`: its servers get a layout, and know no key."""

    name: str
    root: Path = ROOT
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    is_baseline: bool = False
    trainer: str = "tests.bench.training.trainer_worker"

    def process(self, *command: str) -> Process:
        return Process(*command, cwd=self.root, environment=self.environment)

    def server(self) -> Process:
        return self.process(str(self.root / PS_SCRIPT))


OURS = Engine("Stretto")


class BaselineMissing(RuntimeError):
    """The history of this clone lacks the baseline."""


def baseline() -> Engine:
    """Return the engine of BASELINE; its tree is taken from the history once. Raises BaselineMissing."""
    if not FOLDER.exists():
        archive = subprocess.run(["git", "archive", BASELINE, "libs", "tests"], cwd=ROOT, capture_output=True)
        if archive.returncode:
            raise BaselineMissing(
                f"the history of this clone lacks {BASELINE}: {archive.stderr.decode().strip()[:100]}"
            )
        part = FOLDER.with_name(FOLDER.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        subprocess.run(["tar", "x"], cwd=part, input=archive.stdout, check=True)
        part.rename(FOLDER)
    paths = [str(path) for path in (FOLDER, *sorted((FOLDER / "libs").iterdir()))]
    return Engine(
        f"engine of {BASELINE}",
        FOLDER,
        {"PYTHONPATH": os.pathsep.join(paths)},
        is_baseline=True,
        trainer="tests.bench.trainer_worker",
    )


@dataclass
class Servers:
    """The parameter servers of one job of an engine.

    layout: that of the engine's own `to_dict`; only the baseline needs it. transport: "unix", "tcp" or "tls".
    """

    engine: Engine
    layout: dict[str, Any] = field(default_factory=dict[str, Any])
    transport: str = "unix"
    spill: dict[str, Any] | None = None
    """Folder and budget_bytes of each server's cold rows."""
    processes: list[Process] = field(default_factory=list[Process])
    addresses: dict[int, str] = field(default_factory=dict[int, str])

    def __post_init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="stretto-bench-")
        self._key = ""

    @property
    def access(self) -> dict[str, Any]:
        """Return the arguments of a worker or control session beside the addresses; none at the baseline."""
        if self.engine.is_baseline:
            return {}
        if not self._key:
            from stretto_plane import Key

            self._key = Key.random().pem.decode()
        return {"key": self._key, "encrypted": self.transport == "tls"}

    def start(self, count: int = 1) -> None:
        """Start servers that own nothing, all at the same time."""
        first = len(self.processes)
        for index in range(first, first + count):
            self.processes.append(self.engine.server())
            self.processes[index].send(do="start", index=index, **self._arguments(index))
        for index in range(first, first + count):
            self.addresses[index] = self.processes[index].receive()["address"]

    def _arguments(self, index: int) -> dict[str, Any]:
        if self.engine.is_baseline:
            return {"layout": self.layout, "threads": 1}
        address = f"unix:{self._folder.name}/ps-{index}.sock" if self.transport == "unix" else "127.0.0.1:0"
        return {"address": address, **({"spill": self.spill} if self.spill else {}), **self.access}

    def place(self) -> None:
        """Give every column an owner, as the actuator does at the start of a job."""
        for index, columns in first_columns(self.addresses).items():
            self.processes[index].ask(do="own", columns=columns)

    def move(self, to: int, sources: Mapping[int, int]) -> tuple[float, float]:
        """Move columns (column -> source); return the megabytes moved and the seconds."""
        answer = self.processes[to].ask(do="move", sources=sources, addresses=self.addresses)
        if "error" in answer:
            raise RuntimeError(answer["text"])
        return sum(step[1] for step in answer["steps"]) / 1e6, answer["seconds"]

    def cpu_s(self) -> float:
        return sum(process.cpu_s() for process in self.processes)

    def resident_bytes(self) -> int:
        return sum(process.resident_bytes() for process in self.processes)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        self._folder.cleanup()


def first_columns(servers: Any) -> dict[int, list[int]]:
    """Return the columns of each server of a new job, as the actuator plans them: server -> columns."""
    from stretto_core.actuator.placement import claim
    from stretto_messages.values import BUCKETS, SLICES

    parts = claim(list(servers), BUCKETS, SLICES)
    return {server: [*buckets, *(BUCKETS + s for s in slices)] for server, (buckets, slices) in parts.items()}


def moves_to(newcomer: int, servers: Sequence[int]) -> dict[int, int]:
    """Return the moves of a newcomer's share, from servers that have their first columns: column -> source."""
    from stretto_core.actuator.placement import plan_moves
    from stretto_messages.values import BUCKETS, SLICES

    own = {
        server: [int(c in columns) for c in range(BUCKETS + SLICES)]
        for server, columns in first_columns(servers).items()
    }
    own[newcomer] = [0] * (BUCKETS + SLICES)
    moves = plan_moves(
        {server: vector[:BUCKETS] for server, vector in own.items()},
        {server: vector[BUCKETS:] for server, vector in own.items()},
        [1] * BUCKETS,
        dict.fromkeys(own, 1.0),
    )
    return dict(moves[newcomer])

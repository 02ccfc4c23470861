"""Programs under `python -m stretto_programs.run`, as processes: forks of one with TensorFlow imported, or cold."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
from warm_processes import WarmProcess, WarmProcesses

from tests.waits import wait_until

LIMIT_S = 240.0
_OURS = (
    "lanes.processes", "resume.checkpoints", "tensorflow.keras_fit", "tensorflow.loops", "tensorflow.sessions",
)  # fmt: skip
WARM = WarmProcesses("tensorflow", "keras", *(f"stretto_programs.{name}" for name in _OURS), "warm_programs")
"""Starts programs with TensorFlow imported; conftest.py closes it."""

UNTRIED = """
from stretto_programs.lanes import trial
from stretto_programs.run import main
trial.STEPS = 0
main()
"""
"""A runner that keeps data workers from the first step on, whether they pay or not."""
FREE = """
import sys
from stretto_programs.lanes import trial
from stretto_programs.partition import partition
from stretto_programs.partition.cut import Prices
from stretto_programs.run import main
from stretto_programs.splitting import split
from stretto_programs.tensorflow import datasets
trial.STEPS = 0
split.REQUEST_US = partition.REQUEST_US = -1.0
partition.WORTH_SHARE = -9.0
datasets.Prices = lambda: Prices(0.0, 0.0)
main()
"""


class Program:
    """A program that runs."""

    def __init__(self, folder: Path, process: subprocess.Popen[str] | WarmProcess) -> None:
        self._folder = folder
        self._process = process
        self.killed = 0
        """Number of data workers that the test has killed; their sockets remain."""
        self.pid = process.pid

    @property
    def lanes(self) -> list[psutil.Process]:
        """Data workers that serve."""
        serving = [each for each in self._folder.glob("stretto-run-*/data-worker-*") if each.suffix != ".log"]
        nurseries = psutil.Process(self._process.pid).children()
        lanes = [each for nursery in nurseries for each in _children(nursery)]
        return lanes if len(serving) - self.killed >= len(lanes) else []

    def meet(self, step: int) -> None:
        """Wait until the program is at a step."""
        until(lambda: (self._folder / f"step-{step}").exists() or self._process.poll() is not None)
        assert self._process.poll() is None, (self._folder / "stderr").read_text()

    def go_on(self, step: int) -> None:
        (self._folder / f"step-{step}-done").touch()

    def meet_lanes(self, step: int, count: int) -> None:
        """Let the program wait at a step until this many data workers serve."""
        self.meet(step)
        until(lambda: len(self.lanes) == count)
        self.go_on(step)

    def kill_lane(self) -> None:
        """Kill one of the data workers, and wait until another one serves in its place."""
        count, victim = len(self.lanes), self.lanes[0]
        victim.send_signal(signal.SIGKILL)
        self.killed += 1
        until(lambda: len({*self.lanes} - {victim}) == count)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def ended(self) -> tuple[int, str, str]:
        """Return exit status, standard output, and standard error."""
        status = self._process.wait(LIMIT_S)
        return status, (self._folder / "stdout").read_text(), (self._folder / "stderr").read_text()


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [each for each in process.children() if each.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:  # it, or one of them, ended meanwhile
        return []


until = partial(wait_until, limit_s=LIMIT_S)


@contextmanager
def running(
    folder: Path,
    text: str,
    *options: str,
    plain: bool = False,
    meet: bool = False,
    free: str | None = "",
    warm: WarmProcesses | None = WARM,
) -> Iterator[Program]:
    """Run a program.

    plain: alone; meet: it waits for the test; free: another runner than UNTRIED, None: the user's own. warm: forks it;
    None: it is started as its user would, without anything imported before.
    """
    folder.mkdir()
    (folder / "begin.py").write_text(free or UNTRIED)
    (folder / "train.py").write_text(text)
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    environment |= {"STRETTO_PIPELINE": "off"} if plain else {}
    environment |= {"MEET": "1"} if meet else {}
    runner = ["-m", "stretto_programs.run"] if free is None else ["begin.py"]
    command = [*runner, "--exact", *options, "train.py", "3", "--an-option"]
    process: subprocess.Popen[str] | WarmProcess
    with (folder / "stdout").open("w") as out, (folder / "stderr").open("w") as errors, open(os.devnull) as nothing:
        if warm is None:
            command = [sys.executable, *command]
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=errors, text=True)
        else:
            environment["PYTHONHASHSEED"] = "0"  # else it would begin again, with a salt that its lanes can have
            process = warm.start(
                *command, environment=environment, cwd=str(folder), stdin=nothing, stdout=out, stderr=errors
            )
    try:
        yield Program(folder, process)
    finally:
        process.kill()
        process.wait()


def alone(folder: Path, text: str, *, status: int = 0, warm: WarmProcesses | None = WARM) -> str:
    """Run a program alone, to its end; return what it printed. status: with which it ends."""
    with running(folder, text, plain=True, warm=warm) as program:
        found, out, errors = program.ended()
    assert found == status, errors
    assert "stretto:" not in errors
    return out


def compared(
    folder: Path,
    text: str,
    *,
    lanes: int = 1,
    meet: int | None = None,
    free: str = "",
    warm: WarmProcesses | None = WARM,
) -> tuple[str, str]:
    """Run a program alone and with data workers, to its end: both print the same.

    Return what they print, and the standard error of the second run. meet: a step at which the second run waits until
    its data workers serve.
    """
    out = alone(folder / "alone", text, warm=warm)
    options = ["--data-workers", str(lanes)]
    with running(folder / "run", text, *options, meet=meet is not None, free=free, warm=warm) as program:
        if meet is not None:
            program.meet_lanes(meet, lanes)
        ended = program.ended()
    assert ended[:2] == (0, out), ended[2]
    return out, ended[2]


def steps_of(errors: str) -> tuple[int, int]:
    """Return the steps that data workers prepared, and all."""
    found = re.search(r"s prepared (\d+) of (\d+) steps; .*CPU, imports included: \d+\.\d s in the program", errors)
    assert found is not None, errors
    return int(found[1]), int(found[2])

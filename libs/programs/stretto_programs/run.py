"""Run a training program with data workers on this machine: `python -m stretto_programs.run [OPTIONS] train.py …`.

The program runs in this process as `python train.py …` would run it: output, exit status, signals and files are the
program's own, and no file of it is touched. Two lines on stderr are Stretto's: what moved, and what it brought.
`stretto run` starts this module.
"""

from __future__ import annotations

import argparse
import os
import resource
import runpy
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .import_hooks import Hook
    from .lanes.data_workers import DataWorkers

LANES_MAX = 64
"""Most data workers of one program (taste)."""
OPTION = "--data-workers"
SWITCH = "STRETTO_PIPELINE"
"""Environment variable: `off` runs the plain program."""
SEED = "STRETTO_PIPELINE_HASH_SEED"
"""Environment variable by which this module passes the seed of hashes to itself when it starts again."""

TORCH = "a PyTorch DataLoader has data workers of its own: give it num_workers"


@dataclass(frozen=True, slots=True)
class Options:
    """The command line.

    data_workers: number of data workers. is_exact: TensorFlow's graph optimizer is off, also in the plain program.
    is_resuming: the program's places in its data are kept beside its checkpoints, and used after a restore.
    """

    data_workers: int
    is_exact: bool
    is_resuming: bool
    script: Path
    arguments: tuple[str, ...]


class Way(Protocol):
    """A way in which programs take samples, with its hooks. was_asked: the program took samples in this way."""

    @property
    def name(self) -> str: ...

    @property
    def was_asked(self) -> bool: ...

    def hooks(self) -> dict[str, Hook]:
        """Return the hooks, by the module after whose import they belong."""
        ...


def options_of(arguments: Sequence[str], cores: int) -> Options:
    """Return the options of a command line. What follows the script's name belongs to the script. Raises SystemExit."""
    parser = argparse.ArgumentParser("python -m stretto_programs.run", description=__doc__, allow_abbrev=False)
    parser.add_argument(OPTION, type=int, default=min(LANES_MAX, max(1, cores - 1)), metavar="N")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("script", type=Path)
    given = parser.parse_args(arguments[: (ours := _own_part(arguments))])
    if not 1 <= given.data_workers <= LANES_MAX:
        parser.error(f"{OPTION} {given.data_workers}: give 1 to {LANES_MAX}")
    if not given.script.is_file():
        parser.error(f"{given.script} is no file: name a Python script")
    return Options(given.data_workers, given.exact, given.resume, given.script, tuple(arguments[ours:]))


def _own_part(arguments: Sequence[str]) -> int:
    """Return how many arguments belong to this module: all up to the script.

    `--` behind the script is the script's, too.
    """
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        place += 2 if arguments[place] == OPTION else 1
    return place + 1


def run(options: Options, environment: Mapping[str, str], hash_seed: str | None = None) -> None:
    """Run the program. An exception of the program is raised, SystemExit included.

    hash_seed: seed of this process's hashes, which data workers need for the same hashes; None: it is in the
    environment.
    """
    from .import_hooks import AfterImport

    sys.argv = [str(options.script), *options.arguments]
    sys.path[: 0 if sys.flags.safe_path else 1] = [str(options.script.resolve().parent)]
    paths = [each for each in sys.path if each]
    exact: dict[str, Hook] = {"tensorflow": _exact} if options.is_exact else {}
    if environment.get(SWITCH, "").lower() == "off":
        AfterImport([exact], _raise)
        _run_script(options)
        return
    from .lanes.data_workers import DataWorkers
    from .resume.checkpoints import Checkpoints
    from .resume.resume import Resume
    from .tensorflow.datasets import Datasets
    from .tensorflow.keras_fit import KerasFit
    from .tensorflow.loops import Loops
    from .tensorflow.sessions import Sessions

    say = _sayer()
    workers = DataWorkers(options.data_workers, paths, {"PYTHONHASHSEED": hash_seed} if hash_seed else {}, say)
    resume = Resume(options.script.name, say, is_on=options.is_resuming)
    datasets = Datasets(workers, resume)
    ways: Sequence[Way] = [KerasFit(datasets), Loops(datasets)]
    sessions = Sessions(say)
    hooks = [datasets.hooks(), *(each.hooks() for each in (*ways, sessions)), Checkpoints(resume).hooks()]
    AfterImport(hooks, lambda missing: say(f"nothing moves: {missing}"))
    AfterImport([exact], _raise)
    try:
        _run_script(options)
    finally:
        if workers.is_ours:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            workers.close()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            there_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            say(brought(workers, ways, there_s, has_sessions=sessions.was_asked))


def _raise(error: Exception) -> None:
    raise error


def _run_script(options: Options) -> None:
    runpy.run_path(str(options.script), run_name="__main__")


def brought(workers: DataWorkers, ways: Sequence[Way], there_s: float, *, has_sessions: bool) -> str:
    """Return what data workers brought, in words. there_s: CPU of all their processes, imports included."""
    if workers.feed is None and workers.steps_alone:
        return f"the program ran without data workers: its {workers.steps_alone} steps were over before they were tried"
    if workers.feed is None:
        asked = has_sessions or any(each.was_asked for each in ways)
        known = ", no ".join(each.name for each in ways)
        torch = f"; {TORCH}" if "torch.utils.data" in sys.modules else ""
        return "the program ran without data workers" + ("" if asked else f": it called no {known}{torch}")
    counts = workers.feed.counts
    figures = f"; {workers.figures}" if workers.figures else ""
    if not counts.answers and not counts.failed:
        figures = "; the program ended before a data worker was ready, which takes each some seconds"
    return (
        f"data workers prepared {counts.from_lanes} of {counts.delivered + workers.steps_alone} steps{figures}; CPU, "
        f"imports included: {time.process_time():.1f} s in the program, {there_s:.1f} s in data workers"
    )


def _exact(tensorflow: ModuleType) -> None:
    tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def _sayer() -> Callable[[str], None]:
    """Return a function that writes a line on the stderr of this moment, even if the program closes its own."""
    try:
        kept = os.dup(2)
    except OSError:  # stderr is closed already
        return lambda text: None

    def say(text: str) -> None:
        with suppress(OSError):
            os.write(kept, f"stretto: {text}\n".encode())

    return say


def main() -> None:
    """Run the program of the command line, in a process whose seed of hashes data workers can be given."""
    options = options_of(sys.argv[1:], len(os.sched_getaffinity(0)))
    is_plain = os.environ.get(SWITCH, "").lower() == "off"
    seed = os.environ.pop(SEED, None)
    if seed is None and not is_plain and os.environ.get("PYTHONHASHSEED") in (None, "", "random"):
        seed = str(secrets.randbelow(2**32))
        os.execve(sys.executable, sys.orig_argv, os.environ | {SEED: seed, "PYTHONHASHSEED": seed})
    if seed is not None:  # the program's environment did not have the variable
        os.environ.pop("PYTHONHASHSEED", None)
    run(options, os.environ, seed)


if __name__ == "__main__":
    main()

"""Runs a training program with data workers on this machine: `python -m stretto_pipeline.run [OPTIONS] train.py …`.

The program runs in this process as `python train.py …` would run it: its output, exit status, signals and files are its
own, and no file of it is touched. Two lines on stderr are ours: what moved, and what it brought. `stretto run` runs it.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .execution.data_workers import DataWorkers
    from .execution.importing import Hook

SWITCH = "STRETTO_PIPELINE"
"""Environment variable: `off` runs the plain program."""
REFUSED = 2
LANES_MAX = 64


@dataclass(frozen=True, slots=True)
class Options:
    """The command line.

    is_exact: TensorFlow's optimizer of graphs is off, also in the plain program. is_tf1: the program is one of
    TensorFlow 1.
    """

    lanes: int
    is_exact: bool
    is_tf1: bool
    script: Path
    arguments: tuple[str, ...]


class Way(Protocol):
    """A way in which programs take samples, and its hooks. was_asked: the program went this way."""

    @property
    def name(self) -> str: ...

    @property
    def was_asked(self) -> bool: ...

    def hooks(self) -> dict[str, Hook]:
        """Return the hooks, by the module after whose import they belong."""
        ...


def options_of(arguments: Sequence[str], cores: int) -> Options:
    """Read a command line; the script's own options stand behind its name. Raises SystemExit."""
    parser = argparse.ArgumentParser("python -m stretto_pipeline.run", description=__doc__, allow_abbrev=False)
    parser.add_argument("--data-workers", type=int, default=max(1, cores - 1), metavar="N")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--tf1", action="store_true")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if not 1 <= given.data_workers <= LANES_MAX:
        parser.error(f"--data-workers {given.data_workers}: give 1 to {LANES_MAX}")
    if not given.script.is_file():
        parser.error(f"{given.script} is no file: name a Python script")
    return Options(given.data_workers, given.exact, given.tf1, given.script, tuple(given.arguments))


def run(options: Options, environment: Mapping[str, str]) -> None:
    """Run the program. What it raises is raised, SystemExit included."""
    from .execution.importing import AfterImport
    from .execution.tf1 import use_tf1

    paths = [each for each in sys.path[1:] if each]
    sys.argv = [str(options.script), *options.arguments]
    sys.path[0] = str(options.script.resolve().parent)
    exact: dict[str, Hook] = {}
    if options.is_exact:
        exact = {"tensorflow": _exact, "tensorflow.python.client.session": _exact_sessions}
    if options.is_tf1:
        use_tf1(options.script.resolve().parent)
    if environment.get(SWITCH, "").lower() == "off":
        AfterImport([exact])
        _run_script(options)
        return
    from .execution.data_workers import DataWorkers
    from .execution.datasets import Datasets
    from .execution.keras_fit import KerasFit
    from .execution.loader import TorchLoader
    from .execution.loops import Loops
    from .execution.sessions import Sessions

    workers = DataWorkers(options.lanes, paths, _say)
    datasets = Datasets(workers)
    ways: Sequence[Way] = [KerasFit(datasets), Loops(datasets), Sessions(workers), TorchLoader(workers)]
    AfterImport([exact, datasets.hooks(), *(each.hooks() for each in ways)])
    try:
        _run_script(options)
    finally:
        workers.close()
        _say(_brought(workers, ways))


def _run_script(options: Options) -> None:
    from .execution.tf1 import LAYERS, WITHOUT_LAYERS

    try:
        runpy.run_path(str(options.script), run_name="__main__")
    except AttributeError as error:
        if options.is_tf1 and WITHOUT_LAYERS in str(error):
            _say(LAYERS)
        raise


def _brought(workers: DataWorkers, ways: Sequence[Way]) -> str:
    if workers.feed is None:
        asked = any(each.was_asked for each in ways)
        known = ", no ".join(each.name for each in ways)
        return "the program ran without data workers" + ("" if asked else f": it called no {known}")
    counts = workers.feed.machine.counts
    return (
        f"data workers prepared {counts.from_lanes} of {counts.delivered} steps, "
        f"with {workers.feed.cpu_us / 1e6:.1f} s of CPU"
    )


def _exact(tensorflow: ModuleType) -> None:
    tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def _exact_sessions(sessions: ModuleType) -> None:
    from .execution.importing import replace_method

    def made(original: Any) -> Any:
        def init(session: Any, target: Any = "", graph: Any = None, config: Any = None) -> None:
            exact = sessions.config_pb2.ConfigProto()
            if config is not None:
                exact.CopyFrom(config)
            exact.graph_options.rewrite_options.disable_meta_optimizer = True
            original(session, target, graph, exact)

        return init

    replace_method(sessions.BaseSession, "__init__", made)


def _say(text: str) -> None:
    sys.stderr.write(f"stretto: {text}\n")
    sys.stderr.flush()


def main() -> None:
    """Run the program that the command line names."""
    run(options_of(sys.argv[1:], len(os.sched_getaffinity(0))), os.environ)


if __name__ == "__main__":
    main()

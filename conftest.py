"""Tiers of tests, their order, and tests that run alone.

``make check`` passes ``--pure``: tests without servers and TensorFlow, with a tenth of Hypothesis' examples. Those
marked ``proof`` are left to ``make test``, which runs a quarter of the examples, and those marked ``night`` to
``make test-night``, which runs all examples.

Generated examples are the same in every run, so that a run judges the change alone; ``make explore`` draws others.
No example has a deadline: the machine may be busy.

``make test`` runs five tests at a time, since most wait for leases to expire or processes to start. The files that
took longest when ``make durations`` recorded them begin first. A test marked ``alone`` needs the whole machine: it
comes before all others, and the other workers wait. A readers' lock of files keeps them apart; a test that waits to be
alone holds the turnstile, so that no further test starts before it.

Ctrl-C ends the workers and whatever their tests have started, within seconds.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from tests.durations import Recorder, seconds_of

sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type] - see below
"""A package that jsonschema imports for the format ``iri``, which no schema here has: its grammar takes 1.4 s."""

settings.register_profile("explore", deadline=None)
settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile("same")

PURE_EXAMPLES, EXAMPLES = 0.1, 0.25
"""Shares of Hypothesis' examples: of ``--pure``, and of a run that states none."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pure", action="store_true", help="only pure tests, with a tenth of the generated examples")
    parser.addoption("--examples", type=float, default=EXAMPLES, help="share of the generated examples")
    parser.addoption("--record-durations", action="store_true", help="write tests/DURATIONS.md")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Interruptible(config))
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put tests that run alone first, then the longest files. Under ``--pure``, leave out what is slow."""
    items.sort(key=lambda item: (item.get_closest_marker("alone") is None, -seconds_of(item.nodeid.partition("::")[0])))
    if pure := config.getoption("--pure"):
        kept_out = ("slow", "alone", "proof", "night")
        left_out = {item for item in items if any(item.get_closest_marker(name) for name in kept_out)}
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    generate(items, PURE_EXAMPLES if pure else config.getoption("--examples"))


def generate(items: list[pytest.Item], share: float) -> None:
    """Let Hypothesis generate this share of the examples that tests and stateful machines state."""

    def fewer(stated: settings) -> settings:
        return settings(stated, max_examples=min(stated.max_examples, max(5, int(stated.max_examples * share))))

    functions = {getattr(item.obj, "__func__", item.obj) for item in items if isinstance(item, pytest.Function)}
    for function in functions:  # each once, however many parameters it has
        if (stated := getattr(function, "_hypothesis_internal_use_settings", None)) is not None:
            function._hypothesis_internal_use_settings = fewer(stated)
    for machine in {getattr(item, "cls", None) for item in items}:  # Hypothesis' stateful tests state theirs by class
        if isinstance(stated := getattr(machine, "settings", None), settings):
            machine.settings = fewer(stated)  # type: ignore[union-attr]


ENDS_WITH_US = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "warm_processes.py")
"""Words in the command lines of processes that end with the process that started them."""


MARK = "STARTED_BY_TESTS"
"""Variable with the id of the process that ran the tests; what they start inherits it."""
END_S = 5.0
"""Time for an installation of a test to end its pods."""


class Interruptible:
    """Ends all workers at SIGINT. They would finish their tests first, and the tests' own servers stay for ever."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        signal.signal(signal.SIGINT, self._interrupted)

    def _interrupted(self, number: int, _: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        workers = psutil.Process().children()
        self._say(f"interrupted: ending {len(workers)} workers and all that their tests have started")
        marks = {str(each.pid) for each in workers}
        below = [child for each in workers for child in _below(each)]
        for process in workers:  # before the look below, which would miss what they start after it
            with suppress(psutil.Error):
                process.kill()
        started = [process for process, given in _environments() if given.get(MARK) in marks]
        below += [child for each in started for child in _below(each)]
        left = list({*started, *below, *workers} - {psutil.Process()})
        for end in (psutil.Process.terminate, psutil.Process.kill):
            for process in left:
                with suppress(psutil.Error):
                    end(process)
            left = psutil.wait_procs(left, END_S)[1]
        raise KeyboardInterrupt

    def _say(self, text: str) -> None:
        with suppress(RuntimeError):  # it was writing
            self._config.get_terminal_writer().line(f"\n{text}", flush=True)


def _environments() -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """Yield the processes of this user, each with its environment."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has ended meanwhile, or is another user's
            yield process, process.environ()


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return process.children(recursive=True)
    return []


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Method: a process inherits the mark of the run, and the name of the test that started it."""
    os.environ[MARK] = mark = str(os.getpid())
    yield
    left = list[str]()
    for process, given in _environments():
        with suppress(psutil.Error):
            command = " ".join(process.cmdline())
            if given.get(MARK) == mark and not any(name in command for name in ENDS_WITH_US):
                left.append(f"{given.get('PYTEST_CURRENT_TEST', 'a fixture')} left {process.pid}: {command}")
    assert not left, "\n".join(left)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real installation of nats, redis and gateway, for the tests of command, client and drills: ``Installed``."""
    from installed_gateway import installed_gateway  # of libs/cli/tests; most tests need none of its imports

    with installed_gateway(tmp_path_factory.mktemp("installed")) as found:
        yield found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Each test, with all of its fixtures, inside the room."""
    if not hasattr(item.config, "workerinput"):  # one after another anyway
        return (yield)
    with _room(item.config.cache.mkdir("company"), alone=item.get_closest_marker("alone") is not None):
        return (yield)


@contextmanager
def _room(folder: Path, alone: bool) -> Iterator[None]:
    with ExitStack() as inside:
        with ExitStack() as entering:
            _lock(entering, folder / "turnstile", fcntl.LOCK_EX)
            _lock(inside, folder / "room", fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def _lock(held: ExitStack, path: Path, how: int) -> None:
    file = held.enter_context(path.open("a"))
    fcntl.flock(file, how)

"""Tiers of tests, and tests that run alone.

``make check`` passes ``--pure``: tests without servers and TensorFlow, with a tenth of Hypothesis' examples. Those
marked ``proof`` are left to ``make test``.

Generated examples are the same in every run, so that a run judges the change alone; ``make explore`` draws others.
No example has a deadline: the machine may be busy.

``make test`` runs three tests at a time, since most wait for leases to expire or processes to start. A test marked
``alone`` needs the whole machine: it comes first, and the other workers wait. A readers' lock of files keeps them
apart; a test that waits to be alone holds the turnstile, so that no further test starts before it.
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("explore", deadline=None)
settings.register_profile("same", deadline=None, derandomize=True)
settings.load_profile("same")

PURE_EXAMPLES = 0.1
"""Share of Hypothesis' examples that ``--pure`` runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pure", action="store_true", help="only pure tests, with a tenth of the generated examples")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put those that run alone first. Under ``--pure``, leave out what is slow, and generate less."""
    items.sort(key=lambda item: item.get_closest_marker("alone") is None)
    if not config.getoption("--pure"):
        return
    left_out = {item for item in items if any(item.get_closest_marker(name) for name in ("slow", "alone", "proof"))}
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    functions = {getattr(item.obj, "__func__", item.obj) for item in items if isinstance(item, pytest.Function)}
    for function in functions:  # each once, however many parameters it has
        if (stated := getattr(function, "_hypothesis_internal_use_settings", None)) is not None:
            function._hypothesis_internal_use_settings = _fewer(stated)
    for machine in {getattr(item, "cls", None) for item in items}:  # Hypothesis' stateful tests state theirs by class
        if isinstance(stated := getattr(machine, "settings", None), settings):
            machine.settings = _fewer(stated)  # type: ignore[union-attr]


def _fewer(stated: settings) -> settings:
    return settings(stated, max_examples=max(5, int(stated.max_examples * PURE_EXAMPLES)))


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

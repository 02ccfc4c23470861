"""Two tests at a time (``make test``), but what is marked ``alone`` while no other test runs: it needs the machine.

Tests wait more than they compute: for leases to expire, for processes to start. A readers' lock of files keeps those
apart that do not bear company; who waits to be alone holds the turnstile, so that the others let it in.
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest


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

"""A real server for each test, as the runtime's own tests start it, and processes that only sleep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import pytest
from owners import Started, sleepers
from runtime_fixtures import client, replicas, server
from stretto_runtime.process.telemetry import configure_logs

from tests.live_bus import nats_server

__all__ = ["client", "replicas", "server"]

configure_logs("test", "error")


@pytest.fixture
def serving() -> Iterator[Callable[[Path, int], Popen[bytes]]]:
    """Start nats-servers, each with a configuration of the test, that end with it."""
    with ExitStack() as ending:
        yield lambda configuration, port: ending.enter_context(nats_server(configuration, port))


@pytest.fixture
def sleeper() -> Iterator[Started]:
    """Start processes that only sleep."""
    with sleepers() as start:
        yield start

"""A real server for each test, as the runtime's own tests start it, and processes that only sleep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from owners import Started, sleepers
from runtime_fixtures import client, replicas, server
from stretto_runtime.process.telemetry import configure_logs

__all__ = ["client", "replicas", "server"]

configure_logs("test", "error")


@pytest.fixture
def sleeper() -> Iterator[Started]:
    """Start processes that only sleep."""
    with sleepers() as start:
        yield start

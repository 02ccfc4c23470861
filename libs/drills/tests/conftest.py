"""Processes that only sleep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from owners import Started, sleepers


@pytest.fixture
def sleeper() -> Iterator[Started]:
    """Start processes that only sleep."""
    with sleepers() as start:
        yield start

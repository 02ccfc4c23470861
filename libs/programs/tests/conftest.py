"""Common to all tests: the harness of those that run programs is on the path."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))  # pytest's importlib mode leaves the folder off the path

from program_harness import WARM


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[None]:
    """End the processes that programs are forked from with the tests."""
    yield
    WARM.close()

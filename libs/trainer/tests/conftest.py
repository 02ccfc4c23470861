"""Common to all tests of the trainer: the helpers beside them on the path, and processes that start warm."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # pytest's importlib mode leaves the folder off the path

from warm_processes import WarmProcesses


@pytest.fixture(scope="session")
def warm() -> Iterator[WarmProcesses]:
    processes = WarmProcesses(
        "stretto.engine", "stretto.evaluate", "stretto.exports", "stretto.model_keras", "stretto.program",
        "stretto.training",
    )  # fmt: skip
    yield processes
    processes.close()
